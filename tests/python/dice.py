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

    def expert(self, method):
        """The parameters of one expert."""
        parameters = {"weight": self.setting(0.1, 1.0) if self.chance(0.8) else self.number(-0.8, -0.1)}
        if method in ("ties", "dare_linear", "dare_ties"):
            parameters["density"] = self.pick(1, 0.0, self.setting(0.05, 1.0), self.setting(0.2, 0.9))
        return parameters

    def common(self, method):
        """Parameters of the whole merge."""
        if method == "slerp":
            return {"t": self.setting(-0.2, 1.2)}
        if method == "linear":
            return {"normalize": self.chance(0.5)}
        parameters = {"lambda": self.setting(0.2, 1.5)} if self.chance(0.6) else {}
        for key in ("normalize", "rescale", "int8_mask"):
            if self.chance(0.3):
                parameters[key] = self.chance(0.5)
        return parameters

    def models(self, family, method):
        base, experts = family.base, list(self.random.permutation(family.experts))
        if method == "linear":
            listed = [base, *experts] if self.chance(0.5) else experts
            # Positive weights: a sum near zero would blow up any rounding.
            return recipes.models(method, None, listed, [{"weight": self.setting(0.1, 1.0)} for _ in listed], self.common(method))
        if method == "slerp":
            return recipes.models(method, base, experts[:1], parameters=self.common(method))
        listed = experts[: self.random.integers(1, len(experts) + 1)]
        return recipes.models(method, base, listed, [self.expert(method) for _ in listed], self.common(method))

    def slices(self, family, method):
        """One to three slices; the base first in each of them."""
        experts = family.experts[:1] if method == "slerp" else family.experts[: self.random.integers(1, 4)]
        out = []
        for _ in range(self.random.integers(1, 4)):
            size = self.random.integers(1, LAYERS + 1)
            begins = self.random.integers(0, LAYERS - size + 1, len(experts) + 1).tolist()
            at = lambda i: (begins[i], begins[i] + int(size))
            each = [{} if method == "slerp" else self.expert(method) for _ in experts]
            out.append([recipes.source(family.base, *at(0))] + [recipes.source(e, *at(i + 1), **p) for i, (e, p) in enumerate(zip(experts, each))])
        return recipes.sliced(method, out, family.base, self.common(method))


def well_conditioned(recipe):
    """The recipe with positive weights where their sum is a divisor: nearly nothing as divisor is beyond any tolerance on the result."""
    if recipe.get("parameters", {}).get("normalize", recipe["merge_method"] == "ties"):
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
    if method in ("linear", "dare_linear", "dare_ties") or dice.chance(0.7):
        return well_conditioned(dice.models(family, method))
    recipe = well_conditioned(dice.slices(family, method))
    for source in (s for piece in recipe["slices"] for s in piece["sources"]):
        drop_filters(source.get("parameters", {}))
    drop_filters(recipe.get("parameters", {}))
    return recipe
