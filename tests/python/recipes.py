"""Recipes as dicts, and as the YAML that the program reads."""

import yaml


def text(recipe):
    return recipe if isinstance(recipe, str) else yaml.safe_dump(recipe, sort_keys=False)


def models(method, base, experts, each=None, parameters=None, **top):
    """A recipe in the models form. each: the parameters of every expert, or one dict for each of them."""
    each = each if isinstance(each, list) else [each] * len(experts)
    listed = [{"model": str(e)} | ({"parameters": dict(p)} if p else {}) for e, p in zip(experts, each)]
    recipe = {"merge_method": method} | ({"base_model": str(base)} if base is not None else {}) | {"models": listed}
    return recipe | ({"parameters": parameters} if parameters else {}) | top


def source(model, begin, end, **parameters):
    return {"model": str(model), "layer_range": [begin, end]} | ({"parameters": parameters} if parameters else {})


def sliced(method, slices, base=None, parameters=None, **top):
    """A recipe in the slices form. slices: a list of sources for each slice, or whole slice dicts."""
    listed = [s if isinstance(s, dict) else {"sources": s} for s in slices]
    recipe = {"merge_method": method} | ({"base_model": str(base)} if base is not None else {}) | {"slices": listed}
    return recipe | ({"parameters": parameters} if parameters else {}) | top


TASK_VECTOR_METHODS = (
    "task_arithmetic", "ties", "dare_linear", "dare_ties", "breadcrumbs", "breadcrumbs_ties", "della", "della_linear",
)
RANDOM_METHODS = ("dare_linear", "dare_ties", "della", "della_linear")
# Those that give the base's bits where no expert differs from it.
DELTA_METHODS = TASK_VECTOR_METHODS + ("sce", "ram", "ramplus_tl", "nearswap", "model_stock", "nuslerp", "multislerp", "arcee_fusion")
METHODS = DELTA_METHODS + ("linear", "karcher", "slerp", "passthrough")

ONE_EXPERT = ("slerp", "nearswap", "arcee_fusion", "passthrough")
WEIGHTED = TASK_VECTOR_METHODS + ("nuslerp", "multislerp", "linear")
BASELESS = ("linear", "karcher", "passthrough")  # a base that they name is a model like any other

# Parameters that take other paths through a method than the defaults do: (method, of the merge, of each expert).
VARIANTS = {
    "task_arithmetic normalized": ("task_arithmetic", {"normalize": True, "lambda": 1.3}, {}),
    "ties rescaled": ("ties", {"rescale": True, "normalize": False}, {}),
    "dare_ties normalized": ("dare_ties", {"normalize": True, "rescale": False}, {}),
    "breadcrumbs rescaled": ("breadcrumbs", {"rescale": True, "normalize": True, "lambda": 0.7}, {"gamma": 0.1}),
    "breadcrumbs without outliers": ("breadcrumbs", {}, {"gamma": 0}),
    "breadcrumbs_ties of nearly all": ("breadcrumbs_ties", {"normalize": True}, {"density": 0.95, "gamma": 0.2}),
    "della not rescaled": ("della", {"rescale": False, "normalize": False}, {"epsilon": 0.3}),
    "della_linear of equal chances": ("della_linear", {"normalize": True}, {"epsilon": 0}),
    "sce of all": ("sce", {"select_topk": 1.0}, {}),
    "sce of few": ("sce", {"select_topk": 0.02}, {}),
    "ram of large changes": ("ram", {"epsilon": 3e-3}, {}),
    "ramplus_tl of large changes": ("ramplus_tl", {"epsilon": 3e-3, "r": 0.5, "alpha": 3.0}, {}),
    "model_stock by rows": ("model_stock", {"filter_wise": True}, {}),
    "nuslerp by rows": ("nuslerp", {"nuslerp_flatten": False}, {}),
    "nuslerp by columns": ("nuslerp", {"nuslerp_flatten": False, "nuslerp_row_wise": True}, {}),
    "nuslerp of weights": ("nuslerp", {}, {"base": None}),
    "nuslerp of weights by rows": ("nuslerp", {"nuslerp_flatten": False}, {"base": None}),
    "multislerp of weights": ("multislerp", {}, {"base": None}),
    "multislerp not normalized": ("multislerp", {"normalize_weights": False}, {}),
    "karcher in one step": ("karcher", {"max_iter": 1}, {}),
    "karcher without steps": ("karcher", {"max_iter": 0}, {}),
}


def rotate(names, choices):
    """Every name with one of the choices after the other, where all with all would say no more."""
    return [(name, choices[i % len(choices)]) for i, name in enumerate(names)]


def takes(method, experts):
    """As many of the experts as a method takes."""
    return experts[:1] if method in ONE_EXPERT else experts[:2] if method == "nuslerp" else experts


def smallest(method, base, experts, **top):
    """The smallest recipe that does something with every input: of a method, or of one of VARIANTS."""
    method, common, own = VARIANTS.get(method, (method, {}, {}))
    listed = takes(method, experts)
    if method in ("linear", "karcher"):
        listed = [base, *listed]
    each = {"weight": 0.5} if method in WEIGHTED else {"scale": 0.75} if method == "passthrough" else {}
    if method in TASK_VECTOR_METHODS and method != "task_arithmetic":
        each |= {"density": 0.4}
    common = {"slerp": {"t": 0.35}, "nearswap": {"t": 1e-3}, "sce": {"select_topk": 0.3}}.get(method, {}) | common
    base = None if method in BASELESS else own.get("base", base)
    each |= {k: v for k, v in own.items() if k != "base"}
    return models(method, base, listed, each=each or None, parameters=common or None, **top)
