"""What a recipe means: an independent reading of it in Python, down to the merged values of every tensor.

A recipe is the dict that its YAML gives. merge() yields for each output tensor the dtype to store and the values before rounding.
"""

import re
from dataclasses import dataclass, field

import numpy as np

import formulas
import randomness
import spheres
from checkpoints import FLOATS, Tensor

LAYER = re.compile(r"\.(\d+)\.")
EMBEDDING = re.compile(r"embed|wte|wpe")
DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
NORMALIZES = ("ties", "della")
RESCALES = ("dare_linear", "dare_ties", "della", "della_linear")
ELECTS = ("ties", "dare_ties", "breadcrumbs_ties", "della")


# --- parameters ------------------------------------------------------------------------------------------------------


def interpolate(value, t):
    """A scalar, or a gradient at t in [0, 1]; an empty gradient is no value; booleans are picked, not mixed."""
    if not isinstance(value, list):
        return value
    if not value:
        return None
    if isinstance(value[0], bool):
        return value[int(t * (len(value) - 1))]
    at = t * (len(value) - 1)
    low = int(at)
    high, part = min(len(value) - 1, low + 1), at - low
    return (1 - part) * float(value[low]) + part * float(value[high])


def evaluate(setting, name, t):
    """A parameter setting for one tensor: scalar, gradient, or the first entry whose filter is part of the name."""
    if isinstance(setting, dict):
        setting = [setting]
    if isinstance(setting, list) and setting and isinstance(setting[0], dict):
        for entry in setting:
            if entry.get("filter") in (None, "*") or entry["filter"] in name:
                return interpolate(entry["value"], t)
        return None
    return interpolate(setting, t)


@dataclass
class Place:
    """One output tensor: its slice, its gradient position, and what each source calls it."""

    name: str
    slice: dict
    t: float
    inputs: list = field(default_factory=list)  # (source, tensor name), in source order


def parameter(recipe, place, key, default, source=None):
    """Looks a parameter up from the most to the least specific level."""
    levels = [(place.slice.get("parameters"), place.name), (place.slice.get("module"), place.name), (recipe.get("parameters"), place.name)]
    if source is not None:
        its_name = next(n for s, n in place.inputs if s is source)
        levels = [(source.get("parameters"), its_name)] + [(level, its_name) for level, _ in levels]
    for settings, name in levels:
        value = evaluate((settings or {}).get(key), name, place.t)
        if value is not None:
            return value if isinstance(default, bool) else float(value)
    return default


# --- layers ----------------------------------------------------------------------------------------------------------


def layer_of(name):
    found = LAYER.search(name)
    return int(found.group(1)) if found else None


def with_layer(name, layer):
    return LAYER.sub(f".{layer}.", name, count=1)


def layer_count(tensors):
    return 1 + max((layer_of(n) for n in tensors if layer_of(n) is not None), default=-1)


def whole_models(recipe, models, load):
    """The models form as one slice; a base that is not listed joins at the end."""
    sources = [dict(m) for m in models]
    base = recipe.get("base_model")
    if base and all(s["model"] != base for s in sources):
        sources.append({"model": base})
    for s in sources:
        s["layer_range"] = [0, layer_count(load(s["model"]))]
    return [{"sources": sources}]


def slices_of(recipe, load):
    module = (recipe.get("modules") or {}).get("default", {})
    shape = {**recipe, **{k: module[k] for k in ("models", "slices") if k in module}}
    slices = shape.get("slices") or whole_models(recipe, shape["models"], load)
    return [{**s, "module": module.get("parameters")} for s in slices]


def layer_places(slices, load):
    """Every layer tensor of the output, layers numbered through over the slices."""
    out = 0
    for s in slices:
        begin, end = s["sources"][0]["layer_range"]
        names = sorted({with_layer(n, 0) for n in load(s["sources"][0]["model"]) if layer_of(n) is not None})
        for k in range(end - begin):
            t = k / (end - begin - 1) if end - begin > 1 else 1.0
            for n in names:
                inputs = [(x, with_layer(n, x["layer_range"][0] + k)) for x in s["sources"]]
                if inputs[0][1] in load(s["sources"][0]["model"]):
                    yield Place(with_layer(n, out), s, t, inputs)
            out += 1


def other_places(slices, load):
    """Embeddings belong to the first slice, all else outside the layers to the last one; gradients stand at their start."""
    for name in load(slices[0]["sources"][0]["model"]):
        if layer_of(name) is None:
            s = slices[0] if EMBEDDING.search(name) else slices[-1]
            yield Place(name, s, 0.0, [(x, name) for x in s["sources"]])


# --- merging ---------------------------------------------------------------------------------------------------------


def compute_type(tensors):
    return np.float64 if any(t.dtype == "F64" for t in tensors) else np.float32


class Inputs:
    """What a method is given for one output tensor: values, in the type it computes with, and its parameters."""

    def __init__(self, recipe, place, tensors, seed):
        self.recipe, self.place, self.seed = recipe, place, seed
        self.method = recipe["merge_method"]
        kind = compute_type(tensors)
        self.values = [t.values(kind) for t in tensors]
        self.sources = [s for s, _ in place.inputs]
        name = place.slice.get("base_model") or recipe.get("base_model")
        at = next((i for i, s in enumerate(self.sources) if s["model"] == name), None)
        self.base = None if at is None else self.values[at]
        self.others = [i for i in range(len(tensors)) if i != at]

    @property
    def models(self):
        """All but the base."""
        return [self.values[i] for i in self.others]

    def get(self, key, default=None, source=None):
        return parameter(self.recipe, self.place, key, default, source)

    def each(self, key, default=None):
        """A parameter of each model but the base."""
        return [self.get(key, default, self.sources[i]) for i in self.others]

    def uniform(self, position):
        """The random numbers of the model at a position among those that are not the base."""
        return randomness.uniform(randomness.stream(self.seed, position, self.place.name), self.values[0].shape)


def merge_task_vectors(x):
    stem = x.method.split("_")[0]
    density = x.each("density", 1.0)
    each = {"gamma": x.each("gamma", 0.01), "epsilon": x.each("epsilon", 0.15)}
    keeps = {
        "breadcrumbs": lambda i: lambda delta, p: formulas.keep_middle(delta, p, each["gamma"][i]),
        "dare": lambda i: lambda delta, p: formulas.keep_by_chance(delta, p, x.uniform(i)),
        "della": lambda i: lambda delta, p: formulas.keep_by_rank(delta, p, each["epsilon"][i], x.uniform(i)),
    }.get(stem, lambda i: formulas.keep_largest)
    return formulas.task_vectors(
        x.base,
        x.models,
        x.each("weight"),
        combine=formulas.elect if x.method in ELECTS else formulas.add,
        densities=None if stem == "task" else density,
        keeps=[keeps(i) for i in range(len(x.others))],
        rescale=x.get("rescale", x.method in RESCALES),
        normalize=x.get("normalize", x.method in NORMALIZES),
        factor=x.get("lambda", 1.0),
    )


def merge_nuslerp(x):
    return spheres.nuslerp(x.base, x.models, x.each("weight"), x.get("nuslerp_flatten", True), x.get("nuslerp_row_wise", False))


def merge_multislerp(x):
    return spheres.multislerp(x.base, x.models, x.each("weight"), x.get("normalize_weights", True), x.get("eps", 1e-8))


MERGES = {
    "linear": lambda x: formulas.linear(x.values, [x.get("weight", None, s) for s in x.sources], x.get("normalize", True)),
    "passthrough": lambda x: formulas.passthrough(x.values[0], x.get("scale", None, x.sources[0])),
    "slerp": lambda x: spheres.slerp(x.base, x.models[0], x.get("t")),
    "nuslerp": merge_nuslerp,
    "multislerp": merge_multislerp,
    "karcher": lambda x: spheres.karcher(x.values, x.get("max_iter", 10), x.get("tol", 1e-5)),
    "model_stock": lambda x: spheres.model_stock(x.base, x.models, x.get("filter_wise", False)),
    "sce": lambda x: formulas.sce(x.base, x.models, x.get("select_topk", 1.0)),
    "ram": lambda x: formulas.ram(x.base, x.models, x.get("epsilon", 1e-5)),
    "ramplus_tl": lambda x: formulas.ramplus_tl(x.base, x.models, x.get("r", 0.1), x.get("alpha", 0.2), x.get("epsilon", 1e-5)),
    "nearswap": lambda x: formulas.nearswap(x.base, x.models[0], x.get("t")),
    "arcee_fusion": lambda x: formulas.arcee_fusion(x.base, x.models[0]),
}


@dataclass
class Merged:
    dtype: str
    values: np.ndarray  # before rounding; raw bits for what is only copied


def reference(recipe, place, tensors):
    """The tensor whose dtype the output has and that is copied where nothing is merged: the base's, else the first."""
    base = place.slice.get("base_model") or recipe.get("base_model")
    return next((t for t, (s, _) in zip(tensors, place.inputs) if s["model"] == base), tensors[0])


def merge(recipe, load, seed=0):
    """Name to Merged. load gives the checkpoint of a model reference."""
    slices = slices_of(recipe, load)
    stored = recipe.get("out_dtype") or recipe.get("dtype")
    out = {}
    for place in [*layer_places(slices, load), *other_places(slices, load)]:
        tensors = [load(s["model"])[n] for s, n in place.inputs]
        like = reference(recipe, place, tensors)
        if like.dtype not in FLOATS:
            out[place.name] = Merged(like.dtype, like.bits)
            continue
        with np.errstate(all="ignore"):
            values = MERGES.get(recipe["merge_method"], merge_task_vectors)(Inputs(recipe, place, tensors, seed))
        out[place.name] = Merged(DTYPES[stored.removeprefix("torch.")] if stored else like.dtype, values)
    return out


# --- comparing -------------------------------------------------------------------------------------------------------

TOLERANCE = 2e-6  # of the largest magnitude in the tensor


def fault(got, want, tolerance=TOLERANCE):
    """Why a stored tensor is not what the oracle says, or None: got must lie between the roundings of the least and the largest
    value that the tolerance allows, so for 16-bit types it may differ only where the exact value is at a rounding boundary."""
    if got.dtype != want.dtype:
        return f"is stored as {got.dtype}, wanted {want.dtype}"
    if got.shape != want.values.shape:
        return f"has shape {got.shape}, wanted {want.values.shape}"
    if got.dtype not in FLOATS:
        return None if np.array_equal(got.bits, want.values) else "was not copied"
    exact = want.values.astype(np.float64)
    room = tolerance * np.abs(exact).max(initial=0.0)
    low, high = (Tensor.of(got.dtype, exact + d).values(np.float64) for d in (-room, room))
    value = got.values(np.float64)
    outside = ~((low <= value) & (value <= high))
    if not outside.any():
        return None
    first = np.unravel_index(np.argmax(outside), outside.shape)
    return f"differs in {outside.sum()} of {outside.size} elements, first {first}: {value[first]} for {exact[first]}"


def faults(got, want, tolerance=TOLERANCE):
    """All differences between a checkpoint and what the oracle says, as lines."""
    lines = [f"{n}: is missing" for n in want if n not in got] + [f"{n}: was not asked for" for n in got if n not in want]
    for name in want.keys() & got.keys():
        why = fault(got[name], want[name], tolerance)
        lines += [f"{name}: {why}"] if why else []
    return sorted(lines)
