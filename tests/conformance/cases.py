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
    why: str = ""  # that they do

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
    "dare_linear in slices": sliced("dare_linear", [
        [source("base", 0, 2), source("a", 0, 2, weight=0.5, density=0.5), source("b", 2, 4, weight=0.4, density=0.3)],
        [source("a", 1, 3, weight=0.7, density=0.8), source("base", 2, 4), source("c", 2, 4, weight=1, density=0.5)],
    ], "base"),
    "della in slices": sliced("della", [[source("base", 0, 4), source("a", 0, 4, weight=0.5, density=[0.3, 0.7]), source("b", 0, 4, weight=0.4, density=0.5)]], "base"),
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

# Every switch of the methods that add task vectors.
SWITCHED = ("task_arithmetic", "ties", "dare_linear", "dare_ties", "della", "della_linear", "breadcrumbs", "breadcrumbs_ties")
SWITCHES = {
    f"{method} with normalize {normalize} and rescale {rescale}".lower(): task_vectors(
        method, density=0.6, parameters={"normalize": normalize, "rescale": rescale, "lambda": 0.9, "int8_mask": True})
    for method in SWITCHED for normalize in (True, False) for rescale in (True, False)
}

NUSLERPS = {
    f"nuslerp {'of task vectors ' if base else ''}with flatten {flatten} and row_wise {rows}".lower(): models(
        "nuslerp", base, AB, each(0.7, 0.2), {"nuslerp_flatten": flatten, "nuslerp_row_wise": rows})
    for base in (None, "base") for flatten in (True, False) for rows in (True, False)
}


def weighed(weight=None, parameters=None, of="task_arithmetic", **other):
    """A recipe whose first expert has the weight, the second 0.5."""
    return models(of, "base", AB, [{} if weight is None else {"weight": weight, **other}, {"weight": 0.5, **other}], parameters)


def in_slices(first, second, base=(), parameters=None, method="task_arithmetic"):
    """Two slices of two layers over base and a; the arguments are a's parameters."""
    part = lambda begin, own: [source("base", begin, begin + 2), source("a", begin, begin + 2, **own)]
    return sliced(method, [{"sources": part(0, first)}, {"sources": part(2, second)} | dict(base)], "base", parameters)


# Which value counts, and how it is spelled.
VALUES = {
    "a model's value before the top's": weighed(0.2, {"weight": 0.9}),
    "the top's value where a model has none": weighed(None, {"weight": 0.9}),
    "a zero is a value": weighed(0, {"weight": 0.9}),
    "an empty gradient is none": weighed([], {"weight": 0.9}),
    "an empty gradient in a condition ends the search": weighed([{"filter": "mlp", "value": []}, {"value": 0.1}], {"weight": 0.9}),
    "the first condition that fits": weighed([{"filter": "q_proj", "value": 0.1}, {"filter": "self_attn", "value": 0.2}, {"filter": "proj", "value": 0.3}, {"value": 0.4}]),
    "a condition without a filter ends the list": weighed([{"value": 0.1}, {"filter": "mlp", "value": 7}]),
    "a star ends the list": weighed([{"filter": "mlp", "value": 1}, {"filter": "*", "value": 0.3}, {"filter": "q_proj", "value": 9}]),
    "a null filter": weighed([{"filter": "mlp", "value": 1}, {"filter": None, "value": 0.3}]),
    "filters by layer number": weighed([{"filter": "layers.1.", "value": 1}, {"filter": "layers.3.mlp", "value": -0.5}, {"value": 0.3}]),
    "filters for embedding, norm and head": weighed([{"filter": "embed_tokens", "value": 1}, {"filter": "model.norm", "value": -1}, {"filter": "lm_head", "value": 0.7}, {"value": 0}]),
    "one condition falls through to the top's conditions": weighed({"filter": "mlp", "value": 1}, {"weight": [{"filter": "self_attn", "value": 0.3}, {"value": 0.6}]}),
    "gradients in conditions": weighed([{"filter": "self_attn", "value": [0, 1]}, {"filter": "mlp", "value": [1, 0.5, 0]}, {"value": [0.2, 0.9]}]),
    "a gradient of one": weighed([0.3]),
    "a gradient with more anchors than layers": weighed([0.1, 0.9, 0.2, 0.8, 0.3, 0.7, 0.4]),
    "a gradient of texts": weighed(["1e-1", "0.9"]),
    "numbers as texts": weighed("3e-1", {"lambda": "1e0"}),
    "a whole number as text": weighed("1", {"lambda": "2"}),
    "booleans as numbers": weighed(True, {"lambda": [False, True]}),
    "words as booleans": weighed(0.4, {"normalize": "on", "rescale": "n", "int8_mask": "t"}, of="ties", density=0.5),
    "numbers as booleans": weighed(0.4, {"normalize": 0, "rescale": 1.0}, of="ties", density=0.5),
    "a gradient of booleans": weighed(0.4, {"normalize": [True, False]}, of="ties", density=0.5),
    "a gradient of three booleans": weighed(0.4, {"rescale": [False, True, True]}, of="breadcrumbs", density=0.5, gamma=0.05),
    "conditions for booleans": weighed(0.4, {"normalize": [{"filter": "mlp", "value": True}, {"value": False}]}, of="ties", density=0.5),
    "conditions for lambda": weighed(0.4, {"lambda": [{"filter": "down_proj", "value": 0}, {"filter": "mlp", "value": [0, 2]}, {"value": 0.5}]}),
    "a whole number given as a float": models("karcher", "a", ["a", "b", "far"], parameters={"max_iter": 3.0}),
    "a whole number by conditions": models("karcher", "a", ["a", "b", "far"], parameters={"max_iter": [{"filter": "mlp", "value": 0}, {"value": 4}]}),
    "a gradient of whole numbers": models("karcher", "a", ["a", "b", "far"], parameters={"max_iter": [0, 3]}),
    "a merge's value under a model": models("task_arithmetic", "base", AB, [{"weight": 0.5, "lambda": 7}, {"weight": 0.5, "normalize": True}]),
    "parameters of the base": models("ties", "base", ["base", "a"], [{"weight": 5, "density": 0.1}, {"weight": 0.5, "density": 0.4}]),
    "a parameter of another method": weighed(0.4, {"t": 0.5}),
    "a source's value before its slice's": in_slices({"weight": 0.2}, {}, {"parameters": {"weight": 0.6}}, {"weight": 0.9}),
    "a slice's value before the top's": in_slices({}, {}, {"parameters": {"weight": 0.6, "lambda": 0.3}}, {"weight": 0.9, "lambda": 2}),
    "gradients start again in each slice": in_slices({"weight": [0, 1]}, {"weight": [1, 0.2]}),
    "one layer takes the last of a gradient": sliced("task_arithmetic", [[source("base", i, i + 1), source("a", i, i + 1, weight=[0.1, 0.9])] for i in range(4)], "base"),
    "a slice's lambda in its conditions": in_slices({"weight": 1}, {"weight": 1}, {"parameters": {"lambda": [{"filter": "layers.3", "value": 0}, {"value": 0.5}]}}),
    "filters by source layers and by output layers": sliced("ties", [
        [source("base", 2, 4), source("a", 1, 3, weight=[{"filter": "layers.2.", "value": 1}, {"value": 0.3}], density=0.5)],
        [source("base", 0, 1), source("a", 0, 1, weight=0.5, density=0.7)],
    ], "base", {"lambda": [{"filter": "layers.2.", "value": 2}, {"value": 1}]}),
    "a module's value before the top's": {
        "merge_method": "ties", "base_model": "base", "parameters": {"weight": 0.9, "density": 0.5},
        "modules": {"default": {"parameters": {"density": 0.2, "lambda": 0.5}, "models": [{"model": "a", "parameters": {"weight": 0.4}}, {"model": "b"}]}},
    },
    "slices in a module": {
        "merge_method": "linear", "base_model": "base",
        "modules": {"default": {"parameters": {"weight": 0.4}, "slices": [
            {"sources": [source("base", 0, 2), source("a", 0, 2, weight=[1, 0])]}, {"sources": [source("b", 2, 4), source("c", 2, 4)], "parameters": {"weight": [0.1, 0.2]}},
        ]}},
    },
    "scales of a passthrough at every level": sliced("passthrough", [
        {"sources": [source("a", 0, 1, scale=2)]}, {"sources": [source("b", 1, 3)], "parameters": {"scale": [0.5, 0.25]}}, [source("c", 3, 4)],
    ], "base", {"scale": [{"filter": "norm", "value": 1}, {"value": 0.75}]}),
    "t of a slerp at two levels": sliced("slerp", [
        {"sources": [source("base", 0, 2), source("far", 0, 2)], "parameters": {"t": [{"filter": "mlp", "value": [0, 1]}]}},
        [source("base", 2, 4), source("far", 2, 4)],
    ], "base", {"t": [0.3, 0.6]}),
    "a longer model from mixed slices": sliced("linear", [
        [source("a", 0, 3, weight=1), source("base", 0, 3, weight=0.2)], [source("b", 1, 4, weight=0.3), source("c", 1, 4, weight=0.7)],
        [source("a", 3, 4, weight=1), source("far", 0, 1, weight=0.1)],
    ], "base"),
}

# What the examples that mergekit publishes do, and recipes in their style.
EXAMPLES = {
    "example: bio merge": models("ties", "base", AB, {"weight": 0.5, "density": 0.5}, {"normalize": False, "int8_mask": True}),
    "example: arcee fusion": models("arcee_fusion", "a", ["a", "b"]),
    "example: layers 24 and 20 of two": sliced("passthrough", [[source("a", 0, 3)], [source("far", 2, 4)]]),
    "example: merge of instruct models by dare": models("dare_ties", "base", ["base", "a", "b", "c"], [{}, {"density": 0.53, "weight": 0.4}, {"density": 0.53, "weight": 0.3}, {"density": 0.53, "weight": 0.3}], {"int8_mask": True}),
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
    recipes = {
        "linear": models("linear", "base", ["base", "a", "b"], each(0.2, 0.5, 0.3)),
        "ties": task_vectors("ties", density=0.4),
        "slerp": models("slerp", "base", ["a"], parameters={"t": 0.35}),
        "model_stock": models("model_stock", "base", ABC, parameters={"filter_wise": True}),
        "della_linear": task_vectors("della_linear", density=0.5),
        "sce": models("sce", "base", ABC, parameters={"select_topk": 0.4}),
        "nuslerp": models("nuslerp", "base", AB, each(0.5, 0.25)),
    }
    if layers:
        recipes["passthrough in slices"] = sliced("passthrough", [[source("a", 0, 1)], [source("b", 1, layers)]], "base")
    else:
        recipes["modules"] = in_modules("task_arithmetic", {"shared": 0.2, "encoder": [0.1, 0.9], "decoder": [{"filter": "EncDecAttention", "value": 1}, {"value": 0.5}]})
    return recipes


def in_modules(method, weights):
    """The weight of a by module; b has 0.3 in all of them."""
    listed = lambda w: {"models": [{"model": "a", "parameters": {"weight": w}}, {"model": "b"}], "parameters": {"weight": 0.3}}
    return {"merge_method": method, "base_model": "base", "modules": {name: listed(w) for name, w in weights.items()}}


# By family, its layers; None: several stacks, of which slices can not be taken.
FAMILIES = {"llama_tied": 4, "qwen2": 4, "qwen3": 4, "gemma2": 4, "neox": 4, "mixtral": 2, "qwen3_moe": 2, "t5": None, "bert": 3}


SEEDED = {
    f"{method} with another seed": Case("llama", task_vectors(method, density=0.4), options={"random_seed": 7}, flags=("--seed", "7")) for method in ("dare_linear", "della")
}


def all_cases():
    cases = {f"{name}": Case("llama", recipe) for name, recipe in (mergekit_recipes.RECIPES | METHODS | SWITCHES | NUSLERPS | VALUES | EXAMPLES).items()}
    for family, layers in FAMILIES.items():
        recipes = for_every_family(layers)
        if family == "neox":  # its files hold a scalar for each layer, and mergekit's della ranks along the second axis of everything
            recipes["breadcrumbs"] = task_vectors("breadcrumbs", density=0.5, gamma=0.05)
            del recipes["della_linear"]
        for name, recipe in recipes.items():
            cases[f"{family}: {name}"] = Case(family, recipe)
    cases |= SEEDED
    for case in cases.values():
        case.precise = case.recipe["merge_method"] in PRECISE
    return cases


CASES = all_cases()
