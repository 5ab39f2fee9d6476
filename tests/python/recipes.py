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


# What each method asks of a recipe with `experts` experts: the smallest that does something with every input.
def smallest(method, base, experts, **top):
    if method == "linear":
        return models(method, None, [base, *experts], each={"weight": 0.5}, **top)
    if method == "slerp":
        return models(method, base, experts[:1], parameters={"t": 0.35}, **top)
    if method == "passthrough":
        return models(method, None, experts[:1], each={"scale": 0.75}, **top)
    density = {} if method == "task_arithmetic" else {"density": 0.4}
    return models(method, base, experts, each={"weight": 0.5} | density, **top)


METHODS = ("linear", "task_arithmetic", "ties", "dare_linear", "dare_ties", "slerp", "passthrough")
DELTA_METHODS = ("task_arithmetic", "ties", "dare_linear", "dare_ties")
