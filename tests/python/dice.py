"""Recipes drawn at random from one seed."""

import numpy as np

import recipes

LAYERS = 3
FILTERS = ("self_attn", "mlp", "q_proj", "layers.1.", "norm", "embed", "weight", "down_proj")


class Dice:
    """Draws parts of a recipe from one seed."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)

    def chance(self, p):
        return bool(self.random.random() < p)

    def pick(self, *choices):
        return choices[self.random.integers(len(choices))]

    def number(self, low, high):
        return round(float(self.random.uniform(low, high)), 3)

    def scalar_or_gradient(self, low, high):
        if self.chance(0.6):
            return self.number(low, high)
        return [self.number(low, high) for _ in range(self.random.integers(1, 5))]

    def setting(self, low, high):
        """A scalar, a gradient, or entries with filters and a rest."""
        if self.chance(0.6):
            return self.scalar_or_gradient(low, high)
        entries = [{"filter": self.pick(*FILTERS), "value": self.scalar_or_gradient(low, high)} for _ in range(self.random.integers(1, 3))]
        return [*entries, {"value": self.number(low, high)}]

    def density(self, method):
        """Of della a chance that stays between 0 and 1 when epsilon is added."""
        return self.pick(1, 0.0, self.setting(0.05, 1.0), self.setting(0.2, 0.9)) if method[:5] != "della" else self.pick(1, 0.0, self.setting(0.3, 0.7))

    def expert(self, method):
        """The parameters of one expert."""
        if method not in recipes.WEIGHTED:
            return {}
        # Positive weights where their sum divides: a sum near zero would blow up any rounding.
        positive = method not in recipes.TASK_VECTOR_METHODS or self.chance(0.8)
        parameters = {"weight": self.setting(0.1, 1.0) if positive else self.number(-0.8, -0.1)}
        if method in recipes.TASK_VECTOR_METHODS[1:]:
            parameters["density"] = self.density(method)
        if method.startswith("breadcrumbs") and self.chance(0.6):
            parameters["gamma"] = self.setting(0.0, 0.5)
        if method.startswith("della") and self.chance(0.6):
            parameters["epsilon"] = self.setting(0.0, 0.29)
        return parameters

    def common(self, method):
        """Parameters of the whole merge."""
        if method in recipes.TASK_VECTOR_METHODS:
            flags = {key: self.chance(0.5) for key in ("normalize", "rescale", "int8_mask") if self.chance(0.3)}
            return flags | ({"lambda": self.setting(0.2, 1.5)} if self.chance(0.6) else {})
        choices = {
            "linear": {"normalize": lambda: self.chance(0.5)},
            "nuslerp": {"nuslerp_flatten": lambda: self.chance(0.4), "nuslerp_row_wise": lambda: self.chance(0.5)},
            "multislerp": {"normalize_weights": lambda: self.chance(0.5)},
            "karcher": {"max_iter": lambda: int(self.random.integers(0, 6)), "tol": lambda: self.number(1e-3, 1e-1)},
            "sce": {"select_topk": lambda: self.setting(0.0, 1.2)},
            "ram": {"epsilon": lambda: self.setting(0.0, 5e-3)},
            "ramplus_tl": {"epsilon": lambda: self.number(1e-3, 5e-3), "r": lambda: self.setting(0.0, 1.0), "alpha": lambda: self.setting(0.0, 3.0)},
            "model_stock": {"filter_wise": lambda: self.chance(0.5)},
        }.get(method, {})
        parameters = {key: draw() for key, draw in choices.items() if self.chance(0.6)}
        return parameters | {"slerp": {"t": self.setting(-0.2, 1.2)}, "nearswap": {"t": self.setting(0.0, 0.02)}}.get(method, {})

    def takes(self, method, experts):
        """Some of the experts, as many as the method takes."""
        most = recipes.takes(method, experts)
        least = {"nuslerp": 2, "model_stock": 2}.get(method, 1)
        return most[: self.random.integers(least, len(most) + 1)]

    def models(self, family, method):
        experts = self.takes(method, list(self.random.permutation(family.experts)))
        listed = [family.base, *experts] if method in recipes.BASELESS and self.chance(0.5) else experts
        base = None if method in recipes.BASELESS or method in ("nuslerp", "multislerp") and self.chance(0.3) else family.base
        return recipes.models(method, base, listed, [self.expert(method) for _ in listed], self.common(method))

    def slices(self, family, method):
        """One to three slices; the base first in each of them, where the method has one."""
        base = None if method in recipes.BASELESS else family.base
        experts, out = self.takes(method, family.experts), []
        for _ in range(self.random.integers(1, 4)):
            size = int(self.random.integers(1, LAYERS + 1))
            at = lambda: (lambda begin: (begin, begin + size))(int(self.random.integers(0, LAYERS - size + 1)))
            piece = [recipes.source(e, *at(), **self.expert(method)) for e in experts]
            out.append(([recipes.source(base, *at())] if base else []) + piece)
        return recipes.sliced(method, out, base, self.common(method))


def well_conditioned(recipe):
    """The recipe with positive weights where their sum is a divisor: nearly nothing as divisor is beyond any tolerance on the result."""
    if recipe.get("parameters", {}).get("normalize", recipe["merge_method"] in ("ties", "della")):
        for place in [*recipe.get("models", []), *(s for piece in recipe.get("slices", []) for s in piece["sources"])]:
            if isinstance(place.get("parameters", {}).get("weight"), float):
                place["parameters"]["weight"] = abs(place["parameters"]["weight"])
    return recipe


def drop_filters(parameters):
    """Layer ranges may leave a filter with nothing to match, which is an error; gradients and scalars stay."""
    for key, value in parameters.items():
        if isinstance(value, list) and isinstance(value[0], dict):
            parameters[key] = value[-1]["value"]


def passthrough_slices(dice, family):
    """Layers of any model, one source for each slice; the base first, so that it gives the layout."""
    sources = [(family.base, 0)] + [(dice.pick(family.base, *family.experts), dice.random.integers(0, LAYERS)) for _ in range(3)]
    scaled = lambda: {"scale": dice.number(0.3, 1.2)} if dice.chance(0.4) else {}
    slices = [[recipes.source(model, int(at), int(at) + 1, **scaled())] for model, at in sources]
    return recipes.sliced("passthrough", slices, family.base)


def any_recipe(dice, family, method):
    """A recipe of any method, in the models form or in slices."""
    if method == "passthrough":
        return passthrough_slices(dice, family)
    if dice.chance(0.7):
        return well_conditioned(dice.models(family, method))
    recipe = well_conditioned(dice.slices(family, method))
    for source in (s for piece in recipe["slices"] for s in piece["sources"]):
        drop_filters(source.get("parameters", {}))
    drop_filters(recipe.get("parameters", {}))
    return recipe
