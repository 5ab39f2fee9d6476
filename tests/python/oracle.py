"""What a recipe means: an independent reading of it in Python, down to the merged values of every tensor.

A recipe is the dict that its YAML gives. merge() yields for each output tensor the dtype to store and the values before rounding.
"""

import re
from dataclasses import dataclass, field

import numpy as np

import formulas
from checkpoints import FLOATS, Tensor

LAYER = re.compile(r"\.(\d+)\.")
EMBEDDING = re.compile(r"embed|wte|wpe")
DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
DELTA_METHODS = ("task_arithmetic", "ties", "dare_linear", "dare_ties")
NORMALIZES = ("linear", "ties")
RESCALES = ("dare_linear", "dare_ties")


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


def merge_linear(recipe, place, tensors):
    wide = [t.values(compute_type(tensors)) for t in tensors]
    weights = [parameter(recipe, place, "weight", None, s) for s, _ in place.inputs]
    return formulas.linear(wide, weights, parameter(recipe, place, "normalize", True))


def merge_passthrough(recipe, place, tensors):
    (only,) = tensors
    return formulas.passthrough(only.values(compute_type(tensors)), parameter(recipe, place, "scale", None, place.inputs[0][0]))


def merge_slerp(recipe, place, tensors):
    base_at = base_index(recipe, place)
    base, other = (tensors[i].values(compute_type(tensors)) for i in (base_at, 1 - base_at))
    return formulas.slerp(base, other, parameter(recipe, place, "t", None))


def base_index(recipe, place):
    base = place.slice.get("base_model") or recipe["base_model"]
    return next(i for i, (s, _) in enumerate(place.inputs) if s["model"] == base)


def merge_task_vectors(recipe, place, tensors, masks=None):
    method, at = recipe["merge_method"], base_index(recipe, place)
    others = [i for i in range(len(tensors)) if i != at]
    sources = [place.inputs[i][0] for i in others]
    kind = compute_type(tensors)
    density = [parameter(recipe, place, "density", 1.0, s) for s in sources]
    return formulas.task_vectors(
        tensors[at].values(kind),
        [tensors[i].values(kind) for i in others],
        [parameter(recipe, place, "weight", None, s) for s in sources],
        combine=formulas.elect if method.endswith("ties") else formulas.add,
        densities=None if method == "task_arithmetic" else density,
        masks=masks and [m[place.name] for m in masks],
        rescale=parameter(recipe, place, "rescale", method in RESCALES),
        normalize=parameter(recipe, place, "normalize", method in NORMALIZES),
        factor=parameter(recipe, place, "lambda", 1.0),
    )


MERGES = {"linear": merge_linear, "passthrough": merge_passthrough, "slerp": merge_slerp}


@dataclass
class Merged:
    dtype: str
    values: np.ndarray  # before rounding; raw bits for what is only copied


def reference(recipe, place, tensors):
    """The tensor whose dtype the output has and that is copied where nothing is merged: the base's, else the first."""
    base = place.slice.get("base_model") or recipe.get("base_model")
    return next((t for t, (s, _) in zip(tensors, place.inputs) if s["model"] == base), tensors[0])


def merge(recipe, load, masks=None):
    """Name to Merged. load gives the checkpoint of a model reference; masks (for the dares) one dict of masks for each expert."""
    slices = slices_of(recipe, load)
    stored = recipe.get("out_dtype") or recipe.get("dtype")
    out = {}
    for place in [*layer_places(slices, load), *other_places(slices, load)]:
        tensors = [load(s["model"])[n] for s, n in place.inputs]
        like = reference(recipe, place, tensors)
        if like.dtype not in FLOATS:
            out[place.name] = Merged(like.dtype, like.bits)
            continue
        method = recipe["merge_method"]
        with np.errstate(all="ignore"):
            values = MERGES[method](recipe, place, tensors) if method in MERGES else merge_task_vectors(recipe, place, tensors, masks)
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
