"""Every recipe gives what mergekit gives, and keeps its promises under a budget."""

import json

import numpy as np
import pytest

import checkpoints
import referee
from cases import CASES

TOLERANCE = 2e-6  # of the largest value of a tensor


def in_float32(recipe, work="float32"):
    return recipe | {"dtype": work, "out_dtype": "float32"}


def inputs_of(recipe):
    """The experts of a recipe, in order, with the place where each stands."""
    lists = [recipe["models"]] if "models" in recipe else [s["sources"] for s in recipe["slices"]]
    return list(dict.fromkeys(m["model"] for listed in lists for m in listed if m["model"] != recipe.get("base_model")))


def masks_of(mp, folder, recipe):
    """What our random methods keep of each expert: with all weights but one at 0 and nothing rescaled, elements that differ from the
    base were kept."""
    base, masks = checkpoints.read_checkpoint(folder / recipe["base_model"]), {}
    for expert in inputs_of(recipe):
        probe = in_float32(recipe) | {"parameters": {**recipe.get("parameters", {}), "rescale": False, "normalize": False, "lambda": 1}}
        probe["models"] = [m | {"parameters": {**m.get("parameters", {}), "weight": float(m["model"] == expert)}} for m in recipe["models"]]
        kept = checkpoints.read_checkpoint(mp.merge(probe, cwd=folder))
        masks[expert] = {n: kept[n].values() != t.values() for n, t in base.items()}
    return masks


def largest_difference(got, want):
    """The tensor that differs most, relative to its largest value."""
    worst = (0.0, "")
    for name, tensor in want.items():
        ours, theirs = got[name].values(np.float64), tensor.values(np.float64)
        largest = np.abs(theirs).max(initial=0) or 1.0
        worst = max(worst, (float(np.abs(ours - theirs).max(initial=0) / largest), name))
    return worst


def layer_count(config):
    return config.get("num_hidden_layers", config.get("n_layer"))


@pytest.mark.parametrize("name", CASES)
def test_recipe(name, mp, zoo, results, tmp_path):
    case = CASES[name]
    folder = zoo(case.family)
    recipe = in_float32(case.recipe, "float64" if case.precise else "float32")
    with referee.drawing(masks_of(mp, folder, case.recipe) if case.random else {}):
        want, config = referee.merge(folder, recipe, tmp_path / "theirs", **case.options)
    out = mp.merge(in_float32(case.recipe), *case.flags, cwd=folder)
    got = checkpoints.read_checkpoint(out)
    assert sorted(got) == sorted(want)
    assert {n: t.shape for n, t in got.items()} == {n: t.shape for n, t in want.items()}
    difference, where = largest_difference(got, want)
    results.append({"name": name, "family": case.family, "method": case.recipe["merge_method"], "precise": case.precise, "random": case.random, "difference": difference, "why": case.why})
    assert difference <= TOLERANCE, where
    ours = json.loads((out / "config.json").read_text())
    assert layer_count(ours) == layer_count(config)
    assert ours["vocab_size"] == config["vocab_size"] and ours["architectures"] == config["architectures"]
    assert ours.get("dtype", ours.get("torch_dtype")) == config["dtype"]


@pytest.mark.parametrize("name", CASES)
def test_budget(name, mp, zoo):
    """100 % gives the bytes of no budget; 20 % holds, is the same every time, and replays."""
    case = CASES[name]
    folder = zoo(case.family)
    plain = mp.merge(case.recipe, cwd=folder)
    whole = mp.merge(case.recipe, "--budget", "100%", cwd=folder)
    assert weights(whole) == weights(plain)
    path, out = mp.recipe(case.recipe), mp.fresh("out")
    report = mp.ok("merge", path, out, "--budget", "20%", "--json", cwd=folder).json
    assert report["io"]["expert_read_bytes"] <= report["budget_bytes"]
    again = mp.fresh("out")
    mp.ok("merge", path, again, "--budget", "20%", "--threads", "2", cwd=folder)
    assert weights(again) == weights(out)
    replayed = mp.fresh("out")
    mp.ok("replay", out, replayed, cwd=folder)
    assert weights(replayed) == weights(out)


def weights(folder):
    return {p: d for p, d in checkpoints.digests(folder).items() if p.endswith((".safetensors", ".index.json"))}
