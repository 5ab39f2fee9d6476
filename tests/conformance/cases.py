"""Recipes that both run. A case is a recipe over one family of checkpoint_zoo."""

from dataclasses import dataclass, field

import mergekit_recipes
from recipes import models, sliced, source

ABC = ["a", "b", "c"]
AB = ["a", "b"]


@dataclass
class Case:
    family: str
    recipe: dict
    precise: bool = False  # the referee computes in float64: in float32 its own error is above the tolerance
    options: dict = field(default_factory=dict)  # of mergekit's run
    flags: tuple = ()  # of ours
    why: str = ""  # what is left out of the comparison, and why

    @property
    def random(self):
        return self.recipe["merge_method"].startswith(("dare", "della"))


def each(*weights, **same):
    return [{"weight": w, **same} for w in weights]


WEIGHTS = each(0.5, 0.3, 0.9)


def task_vectors(method, *experts, each=WEIGHTS, parameters=None, **same):
    experts = list(experts) or ABC
    return models(method, "base", experts, [p | same for p in each[: len(experts)]], parameters)


METHODS = {
    # --- nuslerp
    "nuslerp": models("nuslerp", None, AB, each(0.4, 0.8)),
    "nuslerp of task vectors": models("nuslerp", "base", AB, each(0.4, 0.8)),
    "nuslerp with weights that cancel": models("nuslerp", None, AB, each(-0.5, 0.5)),
    "nuslerp with one weight for both": models("nuslerp", None, AB, parameters={"weight": 0.3}),
    "nuslerp by rows": models("nuslerp", None, AB, each(0.4, 0.8), {"nuslerp_flatten": False}),
    "nuslerp by columns": models("nuslerp", None, AB, each(0.4, 0.8), {"nuslerp_flatten": False, "nuslerp_row_wise": True}),
    "nuslerp of task vectors by rows": models("nuslerp", "base", AB, each(0.4, 0.8), {"nuslerp_flatten": False}),
    "nuslerp of task vectors by columns": models("nuslerp", "base", AB, each(0.4, 0.8), {"nuslerp_flatten": False, "nuslerp_row_wise": True}),
    "nuslerp of unlike models": models("nuslerp", None, ["a", "far"], each(0.4, 0.8)),
    "nuslerp with gradients": models("nuslerp", None, ["a", "far"], [{"weight": [0, 0.5, 1]}, {"weight": [{"filter": "mlp", "value": 0.2}, {"value": 1}]}]),
    "nuslerp in slices": sliced("nuslerp", [[source("a", 0, 2, weight=0.3), source("b", 2, 4, weight=0.6)], [source("a", 2, 4, weight=1), source("far", 0, 2, weight=1)]]),
    # --- multislerp
    "multislerp": models("multislerp", None, ABC, WEIGHTS),
    "multislerp of task vectors": models("multislerp", "base", ABC, WEIGHTS),
    "multislerp not normalized": models("multislerp", "base", ABC, WEIGHTS, {"normalize_weights": False}),
    "multislerp with a large eps": models("multislerp", "base", AB, each(0.5, 0.7), {"eps": 0.01}),
    "multislerp of one model": models("multislerp", "base", ["a"], each(0.5)),
    "multislerp of unlike models": models("multislerp", None, ["a", "far"], each(0.6, 0.3)),
    "multislerp of four": models("multislerp", "base", ["a", "b", "c", "d"], {"weight": 0.25}),
    "multislerp with filters": models("multislerp", "base", AB, [{"weight": [{"filter": "mlp", "value": 0.9}, {"value": 0.1}]}, {"weight": 0.5}]),
    # --- karcher
    "karcher": models("karcher", "base", ["base", "a", "b"]),
    "karcher with a base that joins": models("karcher", "base", ABC, parameters={"max_iter": 5}),
    "karcher with few steps": models("karcher", "a", ["a", "b", "far"], parameters={"max_iter": 1}),
    "karcher with no step": models("karcher", "a", ["a", "b", "far"], parameters={"max_iter": 0}),
    "karcher with a fine tolerance": models("karcher", "a", ["a", "b", "far"], parameters={"max_iter": 50, "tol": 1e-10}),
    "karcher of one model": models("karcher", "a", ["a"]),
    "karcher in slices": sliced("karcher", [[source("a", 0, 2), source("b", 2, 4)], [source("c", 0, 2), source("far", 2, 4)]], "a"),
    # --- della
    "della": task_vectors("della", density=0.5),
    "della with its own epsilon": task_vectors("della", density=0.66, epsilon=0.05, parameters={"lambda": 0.5}),
    "della not normalized": task_vectors("della", density=0.4, epsilon=0.3, parameters={"normalize": False}),
    "della not rescaled": task_vectors("della", density=0.4, epsilon=0.2, parameters={"rescale": False}),
    "della with densities of its own": models("della", "base", ABC, [{"weight": 1, "density": d} for d in (0.3, 1, 0.7)]),
    "della of everything": task_vectors("della", density=1),
    "della of nothing": models("della", "base", AB, [{"weight": 1, "density": 0}, {"weight": 0.5, "density": 0.5}]),
    "della with gradients": models("della", "base", AB, [{"weight": 0.4, "density": [0.8, 0.6, 0.2]}, {"weight": [0, 1], "density": 0.5, "epsilon": [0.1, 0.3]}]),
    "della_linear": task_vectors("della_linear", density=0.5),
    "della_linear normalized": task_vectors("della_linear", density=0.5, parameters={"normalize": True, "lambda": 1.1}),
    "della_linear not rescaled": task_vectors("della_linear", density=0.3, epsilon=0.1, parameters={"rescale": False}),
    "della_linear of everything": task_vectors("della_linear", density=1.0),
    "della_linear with negative weights": models("della_linear", "base", ABC, each(0.6, -0.7, 0.4, density=0.6)),
    # --- dare
    "dare_ties": task_vectors("dare_ties", density=0.5),
    "dare_ties with a low density": task_vectors("dare_ties", density=0.1),
    "dare_ties not rescaled": task_vectors("dare_ties", density=0.66, parameters={"rescale": False, "normalize": True}),
    "dare_ties of nothing": models("dare_ties", "base", AB, [{"weight": 1, "density": 0}, {"weight": 0.5, "density": 0.5}]),
    "dare_linear": task_vectors("dare_linear", density=0.5),
    "dare_linear with gradients": models("dare_linear", "base", AB, [{"weight": 0.4, "density": [1, 0.6, 0.2]}, {"weight": [0, 1], "density": 0.5}]),
    "dare_linear not rescaled": task_vectors("dare_linear", density=0.3, parameters={"rescale": False, "lambda": 2}),
    # --- breadcrumbs
    "breadcrumbs": task_vectors("breadcrumbs", density=0.5),
    "breadcrumbs with a large gamma": task_vectors("breadcrumbs", density=0.4, gamma=0.3),
    "breadcrumbs where gamma leaves too few": task_vectors("breadcrumbs", density=0.9, gamma=0.3),
    "breadcrumbs without outliers": task_vectors("breadcrumbs", density=0.4, gamma=0),
    "breadcrumbs rescaled": task_vectors("breadcrumbs", density=0.4, gamma=0.1, parameters={"rescale": True, "lambda": 0.7}),
    "breadcrumbs normalized": task_vectors("breadcrumbs", density=0.6, parameters={"normalize": True}),
    "breadcrumbs of everything": task_vectors("breadcrumbs", density=1, gamma=0.2),
    "breadcrumbs of nothing": task_vectors("breadcrumbs", density=0, gamma=0.2),
    "breadcrumbs with gradients": models("breadcrumbs", "base", AB, [{"weight": 0.4, "density": [0.9, 0.1], "gamma": [0, 0.1]}, {"weight": 1, "density": 0.5}]),
    "breadcrumbs_ties": task_vectors("breadcrumbs_ties", density=0.5, gamma=0.02),
    "breadcrumbs_ties rescaled": task_vectors("breadcrumbs_ties", density=0.3, gamma=0.1, parameters={"rescale": True}),
    "breadcrumbs_ties normalized": task_vectors("breadcrumbs_ties", density=0.3, gamma=0.1, parameters={"normalize": True, "int8_mask": True}),
    "breadcrumbs_ties with a negative weight": models("breadcrumbs_ties", "base", ABC, each(0.6, -0.7, 0.4, density=0.6)),
    # --- sce
    "sce": models("sce", "base", ABC),
    "sce with half": models("sce", "base", ABC, parameters={"select_topk": 0.5}),
    "sce with a tenth": models("sce", "base", ABC, parameters={"select_topk": 0.1}),
    "sce with nothing": models("sce", "base", ABC, parameters={"select_topk": 0}),
    "sce of one model": models("sce", "base", ["a"]),
    "sce of one model with half": models("sce", "base", ["a"], parameters={"select_topk": 0.5}),
    "sce by layer": models("sce", "base", ["a", "far"], parameters={"select_topk": [0.2, 1]}),
    "sce with int8 masks": models("sce", "base", AB, parameters={"int8_mask": True, "select_topk": 0.8}),
    # --- ram
    "ram": models("ram", "base", ABC),
    "ram with a large epsilon": models("ram", "base", ABC, parameters={"epsilon": 0.002}),
    "ram of one model": models("ram", "base", ["a"], parameters={"epsilon": 0.001}),
    "ramplus_tl": models("ramplus_tl", "base", ABC),
    "ramplus_tl with a large epsilon": models("ramplus_tl", "base", ABC, parameters={"epsilon": 0.002}),
    "ramplus_tl with r and alpha": models("ramplus_tl", "base", ABC, parameters={"epsilon": 0.003, "r": 0.05, "alpha": 1}),
    "ramplus_tl of one model": models("ramplus_tl", "base", ["a"], parameters={"epsilon": 0.001}),
    # --- model_stock
    "model_stock": models("model_stock", "base", ABC),
    "model_stock of two": models("model_stock", "base", AB),
    "model_stock by filters": models("model_stock", "base", ABC, parameters={"filter_wise": True}),
    "model_stock with unlike models": models("model_stock", "base", ["a", "b", "far"]),
    "model_stock with a base in the list": models("model_stock", "base", ["a", "base", "b"]),
    "model_stock by filters for some": models("model_stock", "base", AB, parameters={"filter_wise": [{"filter": "mlp", "value": True}, {"value": False}]}),
    "model_stock in slices": sliced("model_stock", [[source("base", 0, 4), source("a", 0, 4), source("b", 0, 4), source("c", 0, 4)]], "base"),
    # --- nearswap
    "nearswap": models("nearswap", "base", ["a"], parameters={"t": 1e-3}),
    "nearswap with a tiny t": models("nearswap", "base", ["a"], parameters={"t": "1e-4"}),
    "nearswap of nothing": models("nearswap", "base", ["a"], parameters={"t": 0}),
    "nearswap of everything": models("nearswap", "base", ["far"], parameters={"t": 10}),
    "nearswap by layer": models("nearswap", "base", ["far"], parameters={"t": [0, 0.01, 0.1]}),
    "nearswap with filters": models("nearswap", "base", ["far"], parameters={"t": [{"filter": "mlp", "value": 0.01}, {"value": 0.05}]}),
    # --- arcee_fusion
    "arcee_fusion": models("arcee_fusion", "base", ["a"]),
    "arcee_fusion of unlike models": models("arcee_fusion", "base", ["far"]),
    "arcee_fusion with the base listed": models("arcee_fusion", "base", ["base", "b"]),
    "arcee_fusion in slices": sliced("arcee_fusion", [[source("base", 0, 4), source("a", 0, 4)]], "base"),
}

# Where 0.1.5 computes angles and lengths in float32 its own error comes near the tolerance.
PRECISE = ("slerp", "nuslerp", "multislerp", "karcher", "arcee_fusion")

# In the style of the examples that mergekit publishes.
EXAMPLES = {
    "example: bio merge": models("dare_ties", "base", ["base", "a", "b", "c"], [{}, {"density": 0.53, "weight": 0.4}, {"density": 0.53, "weight": 0.3}, {"density": 0.53, "weight": 0.3}], {"int8_mask": True}),
    "example: gradient slerp": sliced("slerp", [[source("a", 0, 4), source("far", 0, 4)]], "a", {
        "t": [{"filter": "self_attn", "value": [0, 0.5, 0.3, 0.7, 1]}, {"filter": "mlp", "value": [1, 0.5, 0.7, 0.3, 0]}, {"value": 0.5}],
    }),
    "example: linear": models("linear", None, ABC, each(1.0, 0.3, 0.5)),
    "example: stacked layers": sliced("passthrough", [[source("a", 0, 3)], [source("b", 1, 4)]]),
    "example: ties with gradients": models("ties", "base", ABC, [
        {"density": [1, 0.7, 0.1], "weight": 1.0}, {"density": 0.5, "weight": [0, 0.3, 0.7, 1]},
        {"density": 0.33, "weight": [{"filter": "mlp", "value": 0.5}, {"value": 0}]},
    ], {"normalize": True, "int8_mask": True}),
    "example: task arithmetic of a chat vector": models("task_arithmetic", "base", ["a", "far"], each(1.0, 0.4)),
    "example: model stock of a line": models("model_stock", "base", ["a", "b", "c", "d"], parameters={"filter_wise": False}),
    "example: della of three": models("della", "base", ABC, [{"weight": w, "density": 0.7, "epsilon": 0.1} for w in (0.5, 0.3, 0.2)], {"lambda": 1.1, "normalize": True, "int8_mask": True}),
    "example: breadcrumbs of a pool": models("breadcrumbs_ties", "base", ["a", "b", "c", "d"], {"weight": 0.25, "density": 0.9, "gamma": 0.01}, {"normalize": False}),
    "example: sce of reasoning models": models("sce", "base", ["a", "b", "c", "d"], parameters={"select_topk": 0.1}),
    "example: pruned depth": sliced("passthrough", [[source("a", 0, 2)], [source("a", 3, 4)]]),
    "example: slerp in two slices": sliced("slerp", [[source("base", 0, 2), source("far", 0, 2)], [source("base", 2, 4), source("far", 2, 4)]], "base", {"t": [0.1, 0.5, 0.9]}),
    "example: frankenmerge with scaled duplicates": sliced("passthrough", [
        [source("a", 0, 2)], [source("a", 1, 3, scale=[{"filter": "o_proj", "value": 0.0}, {"filter": "down_proj", "value": 0.0}, {"value": 1.0}])], [source("a", 2, 4)],
    ]),
}


def for_every_family(layers):
    """A recipe of each kind of work: element by element, by whole tensors, by rows, by chance, by slices."""
    return {
        "linear": models("linear", "base", ["base", "a", "b"], each(0.2, 0.5, 0.3)),
        "ties": task_vectors("ties", density=0.4),
        "slerp": models("slerp", "base", ["a"], parameters={"t": 0.35}),
        "model_stock": models("model_stock", "base", ABC, parameters={"filter_wise": True}),
        "della_linear": task_vectors("della_linear", density=0.5),
        "sce": models("sce", "base", ABC, parameters={"select_topk": 0.4}),
        "nuslerp": models("nuslerp", "base", AB, each(0.5, 0.25)),
        "passthrough in slices": sliced("passthrough", [[source("a", 0, 1)], [source("b", 1, layers)]], "base"),
    }


# By family, its layers.
FAMILIES = {"llama_tied": 4, "qwen2": 4, "qwen3": 4, "gemma2": 4, "neox": 4, "mixtral": 2, "bert": 3}


def all_cases():
    cases = {f"{name}": Case("llama", recipe) for name, recipe in (mergekit_recipes.RECIPES | METHODS | EXAMPLES).items()}
    for family, layers in FAMILIES.items():
        recipes = for_every_family(layers)
        if family == "neox":  # its files hold a scalar for each layer, and mergekit's della ranks along the second axis of everything
            recipes["breadcrumbs"] = task_vectors("breadcrumbs", density=0.5, gamma=0.05)
            del recipes["della_linear"]
        for name, recipe in recipes.items():
            cases[f"{family}: {name}"] = Case(family, recipe)
    for case in cases.values():
        case.precise = case.recipe["merge_method"] in PRECISE
    return cases


CASES = all_cases()
