"""Recipes of several stages give what mergekit-multi gives, under a budget too."""

import pytest

import checkpoints
import recipes
import referee
from cases import ABC, Case, each
from comparison import TOLERANCE, in_float32, largest_difference, obeys_budgets, row
from recipes import models, sliced, source

W = {"weight": 0.5}
SLERP = sliced("slerp", [[source("a", 0, 4), source("far", 0, 4)]], "a", {
    "t": [{"filter": "self_attn", "value": [0, 0.5, 0.3, 0.7, 1]}, {"filter": "mlp", "value": [1, 0.5, 0.7, 0.3, 0]}, {"value": 0.5}],
})
TIES = models("ties", "base", ["gradient-slerp", "b"], [
    {"density": [1, 0.7, 0.1], "weight": 1.0}, {"density": 0.33, "weight": [{"filter": "mlp", "value": 0.5}, {"value": 0}]},
], {"normalize": True, "int8_mask": True})
STACK = sliced("passthrough", [[source("mixed", 0, 3)], [source("a", 1, 4)]])

# The last one is the result.
STAGES = {
    "example: mega": {"gradient-slerp": SLERP, "gradient-slerp-ties": TIES},
    "a mixture in a stack": {"mixed": models("task_arithmetic", "base", ABC, W), "stack": STACK},
    "two mixtures, mixed": {
        "left": models("ties", "base", ["a", "b"], W | {"density": 0.5}), "right": models("model_stock", "base", ABC),
        "both": models("linear", "base", ["left", "right"], parameters=W),
    },
    "a stage that is the base of another": {"first": models("linear", None, ["base", "a"], W), "second": models("dare_ties", "first", ["b", "c"], W | {"density": 0.5})},
    "the last stage stands first": {"end": models("nuslerp", None, ["start", "far"], each(1, 2)), "start": models("sce", "base", ABC)},
}
RESULTS = {"the last stage stands first": "end"}


def result_of(name):
    return RESULTS.get(name) or list(STAGES[name])[-1]


def text_of(name, work):
    """float64 inside for those that need it. The result has no name."""
    named = [({} if stage == result_of(name) else {"name": stage}) | in_float32(r, work) for stage, r in STAGES[name].items()]
    return "---\n".join(recipes.text(r) for r in named)


@pytest.mark.parametrize("name", STAGES)
def test_recipe(name, mp, zoo, results, tmp_path):
    folder, theirs = zoo("llama"), tmp_path / "theirs"
    precise = any(r["merge_method"] in ("slerp", "nuslerp") for r in STAGES[name].values())
    referee.merge_stages(folder, text_of(name, "float64" if precise else "float32"), theirs / "result", theirs / "named")
    out = mp.fresh("out")
    mp.ok("merge", mp.recipe(text_of(name, "float32")), out, "-I", mp.root / "named", cwd=folder)
    worst = 0.0
    for stage in STAGES[name]:
        ours, other = (out, theirs / "result") if stage == result_of(name) else (mp.root / "named" / stage, theirs / "named" / stage)
        got, want = checkpoints.read_checkpoint(ours), checkpoints.read_checkpoint(other)
        assert {n: t.shape for n, t in got.items()} == {n: t.shape for n, t in want.items()}
        difference, where = largest_difference(got, want)
        assert difference <= TOLERANCE, (stage, where)
        worst = max(worst, difference)
    last = STAGES[name][result_of(name)]
    results.append(row(f"stages: {name}", Case("llama", last, precise), worst) | {"method": ", ".join(r["merge_method"] for r in STAGES[name].values())})


@pytest.mark.parametrize("name", STAGES)
def test_budget(name, mp, zoo):
    """Of the stages, each by itself."""
    folder = zoo("llama")
    made = {}
    for stage in sorted(STAGES[name], key=lambda s: s == result_of(name)):
        text = recipes.text(in_float32(STAGES[name][stage]))
        for other, path in made.items():
            text = text.replace(f": {other}\n", f": {path}\n")
        obeys_budgets(mp, text, folder)
        made[stage] = mp.merge(text, cwd=folder)
