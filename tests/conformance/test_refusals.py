"""What mergekit refuses is refused here too: exit status 2, before anything is written."""

import pytest

import referee
from cases import AB, ABC, each
from recipes import models, sliced, source

REFUSED = {
    "an unknown method": models("tiez", "base", AB, {"weight": 0.5}),
    "no form at all": {"merge_method": "linear"},
    "two forms": models("linear", None, AB, {"weight": 1}) | {"slices": [{"sources": [source("a", 0, 4, weight=1)]}]},
    "no method": {"models": [{"model": "a"}]},
    "a weight is missing": models("linear", None, AB, [{"weight": 1}, {}]),
    "a weight is missing for some tensors": models("task_arithmetic", "base", ["a"], {"weight": [{"filter": "mlp", "value": 1}]}),
    "t is missing": models("slerp", "base", ["a"]),
    "t of a swap is missing": models("nearswap", "base", ["a"]),
    "a base is missing": models("ties", None, AB, {"weight": 1}),
    "slerp of three": models("slerp", "base", AB, parameters={"t": 0.5}),
    "slerp without a base": models("slerp", None, AB, parameters={"t": 0.5}),
    "nuslerp of three": models("nuslerp", None, ABC, {"weight": 1}),
    "nuslerp of the base and one": models("nuslerp", "base", ["base", "a"], {"weight": 1}),
    "nearswap of three": models("nearswap", "base", AB, parameters={"t": 0.5}),
    "a fusion of three": models("arcee_fusion", "base", AB),
    "model_stock of the base and one": models("model_stock", "base", ["a"]),
    "passthrough of two": models("passthrough", None, AB),
    "passthrough of one and a base": models("passthrough", "base", ["a"]),
    "a base that is in no slice": sliced("ties", [[source("a", 0, 4, weight=1), source("b", 0, 4, weight=1)]], "base"),
    "one model twice": models("linear", None, ["a", "a"], {"weight": 1}),
    "slices of unequal length": sliced("linear", [[source("a", 0, 4, weight=1), source("b", 0, 3, weight=1)]]),
    "layers behind the last": sliced("passthrough", [[source("a", 2, 6)]], "a"),
    "a dropping with a negative density": models("dare_linear", "base", AB, {"weight": 1, "density": -0.5}),
    "an epsilon out of range": models("della", "base", AB, {"weight": 1, "density": 0.66, "epsilon": 1.35}),
    "an epsilon above the density": models("della_linear", "base", AB, {"weight": 1, "density": 0.1, "epsilon": 0.2}),
    "text for a number": models("linear", None, AB, {"weight": "much"}),
    "null for a number": models("linear", None, AB, {"weight": None}),
    "a number for a boolean": models("ties", "base", AB, {"weight": 1}, {"normalize": 2}),
    "half a step": models("karcher", "a", ["a", "b"], parameters={"max_iter": 2.5}),
    "half a step between two layers": models("karcher", "a", ["a", "b"], parameters={"max_iter": [0, 1]}),
    "an unknown dtype": models("linear", None, AB, {"weight": 1}, dtype="float12"),
    "an unknown stored type": models("linear", None, AB, {"weight": 1}, out_dtype="int4"),
    "a model that is not there": models("linear", None, ["a", "/nowhere/at/all"], {"weight": 1}),
    "two adapters on one model": models("linear", None, ["a+b+c"], {"weight": 1}),
    "two revisions of one model": models("linear", None, ["a@b@c"], {"weight": 1}),
    "an unknown module": {"merge_method": "linear", "base_model": "base", "modules": {"tail": {"models": [{"model": "a", "parameters": {"weight": 1}}]}}},
    "a module of both forms": {"merge_method": "linear", "base_model": "base", "modules": {"default": {
        "models": [{"model": "a", "parameters": {"weight": 1}}], "slices": [{"sources": [source("a", 0, 4, weight=1)]}]}}},
    "both forms of a tokenizer": models("linear", "base", ["base", "a"], each(1, 1), tokenizer_source="base", tokenizer={"source": "base"}),
    "a range of three": {"merge_method": "passthrough", "slices": [{"sources": [{"model": "a", "layer_range": [0, 2, 4]}]}]},
    "sources that are missing": {"merge_method": "passthrough", "slices": [{"parameters": {"scale": 1}}]},
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, mp, zoo, tmp_path):
    recipe, folder = REFUSED[name], zoo("llama")
    with pytest.raises(Exception):
        referee.merge(folder, recipe, tmp_path / "theirs")
    out = mp.fresh("out")
    run = mp.run("merge", mp.recipe(recipe), out, cwd=folder)
    assert run.status == 2 and run.err.strip(), run
    assert not out.exists()


def test_a_last_slice_with_more_sources_than_the_first_is_refused_here_alone(mp, zoo, tmp_path):
    """mergekit takes as many of them as the first slice has for what stands behind the layers, and drops the rest without a word."""
    recipe = sliced("linear", [[source("a", 0, 2, weight=1)], [source("b", 2, 4, weight=0.3), source("c", 2, 4, weight=0.7)]], "base")
    referee.merge(zoo("llama"), recipe, tmp_path / "theirs")
    run = mp.run("merge", mp.recipe(recipe), mp.fresh("out"), cwd=zoo("llama"))
    assert run.status == 2 and "lm_head.weight" in run.err
