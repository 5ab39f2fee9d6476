"""How two results are compared, and what holds for every recipe under a budget."""

import numpy as np

import checkpoints

TOLERANCE = 2e-6  # of the largest value of a tensor


def in_float32(recipe, work="float32"):
    return recipe | {"dtype": work, "out_dtype": "float32"}


def largest_difference(got, want):
    """The tensor that differs most, relative to its largest value."""
    worst = (0.0, "")
    for name in want:
        tensor = want[name]
        ours, theirs = got[name].values(np.float64), tensor.values(np.float64)
        largest = np.abs(theirs).max(initial=0) or 1.0
        worst = max(worst, (float(np.abs(ours - theirs).max(initial=0) / largest), name))
    return worst


def row(name, case, difference):
    """A line of docs/conformance.md."""
    return {"name": name, "family": case.family, "method": case.recipe["merge_method"], "precise": case.precise, "random": case.random, "difference": difference, "why": case.why}


def weights(folder):
    return {p: d for p, d in checkpoints.digests(folder).items() if p.endswith((".safetensors", ".index.json"))}


def obeys_budgets(mp, recipe, folder):
    """100 % gives the bytes of no budget; 20 % is not exceeded, gives the same bytes every time, and replays."""
    plain, whole, out, again, replayed = (mp.fresh("out") for _ in range(5))
    path = mp.recipe(recipe)
    full = mp.ok("merge", path, plain, "--json", cwd=folder).json["io"]["expert_read_bytes"]
    mp.ok("merge", path, whole, "--budget", "100%", cwd=folder)
    assert weights(whole) == weights(plain)
    report = mp.ok("merge", path, out, "--budget", "20%", "--json", cwd=folder).json
    assert report["io"]["expert_read_bytes"] <= report["budget_bytes"] <= 0.2 * full
    mp.ok("merge", path, again, "--budget", "20%", "--threads", "2", cwd=folder)
    mp.ok("replay", out, replayed, cwd=folder)
    assert weights(again) == weights(replayed) == weights(out)
