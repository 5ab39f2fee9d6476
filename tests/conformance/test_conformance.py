"""Every recipe gives what mergekit gives, and keeps its promises under a budget."""

import json

import pytest

import checkpoints
import referee
from cases import CASES
from comparison import TOLERANCE, in_float32, largest_difference, obeys_budgets, row


def layer_count(config):
    return config.get("num_hidden_layers", config.get("n_layer"))


@pytest.mark.parametrize("name", CASES)
def test_recipe(name, mp, zoo, results, tmp_path):
    case = CASES[name]
    folder = zoo(case.family)
    recipe = in_float32(case.recipe, "float64" if case.precise else "float32")
    want, config = referee.merge(folder, recipe, tmp_path / "theirs", **case.options)
    out = mp.merge(in_float32(case.recipe), *case.flags, cwd=folder)
    got = checkpoints.read_checkpoint(out)
    assert sorted(got) == sorted(want)
    assert {n: t.shape for n, t in got.items()} == {n: t.shape for n, t in want.items()}
    difference, where = largest_difference(got, want)
    results.append(row(name, case, difference))
    assert difference <= TOLERANCE, where
    ours = json.loads((out / "config.json").read_text())
    assert layer_count(ours) == layer_count(config)
    assert ours["vocab_size"] == config["vocab_size"] and ours["architectures"] == config["architectures"]
    assert ours.get("dtype", ours.get("torch_dtype")) == config["dtype"]


@pytest.mark.parametrize("name", CASES)
def test_budget(name, mp, zoo):
    """100 % gives the bytes of no budget; 20 % holds, is the same every time, and replays."""
    obeys_budgets(mp, CASES[name].recipe, zoo(CASES[name].family))
