"""What tests/conformance leaves out of mergekit's results: the oracle of these tests, spellings of YAML, rounding to 16 bits."""

import contextlib
import json
import os

import numpy as np
import pytest
import yaml

import checkpoints
import oracle
import recipes
from mergekit_recipes import RECIPES, SPELLINGS

LAYERS = 4


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """base, three fine-tunes, and one unrelated model; float32, so that no two magnitudes are equal."""
    folder = tmp_path_factory.mktemp("family")
    base = checkpoints.llama(1, layers=LAYERS)
    checkpoints.save(folder / "base", base)
    for i, name in enumerate("abc"):
        checkpoints.save(folder / name, checkpoints.fine_tune(base, 10 + i), "sharded" if name == "b" else "single")
    checkpoints.save(folder / "far", checkpoints.llama(2, layers=LAYERS))
    return folder


@pytest.fixture(scope="module")
def mergekit(family):
    """A function that merges a recipe with mergekit in this process and yields its checkpoint and config."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    import torch
    from mergekit.config import MergeConfiguration
    from mergekit.io.tasks import LoaderCache
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    torch.set_num_threads(1)

    def run(recipe, out):
        LoaderCache().loaders.clear()  # it knows models by their relative names only
        config = MergeConfiguration.model_validate(yaml.safe_load(recipes.text(recipe)))
        options = MergeOptions(quiet=True, copy_tokenizer=False, write_model_card=False, random_seed=0)
        run_merge(config, str(out), options)
        return checkpoints.read_checkpoint(out), json.loads((out / "config.json").read_text())

    return run


@pytest.fixture(scope="module")
def theirs(family, mergekit, tmp_path_factory):
    """A function that yields what mergekit makes of a recipe of RECIPES in float32; each is made once."""
    made = {}

    def of(name):
        if name not in made:
            with contextlib.chdir(family):
                made[name] = mergekit(in_float32(RECIPES[name]), tmp_path_factory.mktemp("theirs"))
        return made[name]

    return of


def reference(tensors):
    return {n: oracle.Merged(t.dtype, t.values()) for n, t in tensors.items()}


def in_float32(recipe, stored="float32"):
    return recipe | {"dtype": "float32", "out_dtype": stored}


@pytest.mark.parametrize("name", RECIPES)
def test_the_oracle_of_these_tests_gives_what_mergekit_gives(name, family, theirs):
    """So the tests that use the oracle stand on mergekit's word too."""
    want, _ = theirs(name)
    got = oracle.merge(in_float32(RECIPES[name]), lambda model: checkpoints.read_checkpoint(family / model))
    assert oracle.faults({n: checkpoints.Tensor.of(m.dtype, m.values) for n, m in got.items()}, reference(want)) == []


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_of_yaml_is_read_as_mergekit_reads_it(name, mp, family, mergekit, tmp_path, monkeypatch):
    monkeypatch.chdir(family)
    want, _ = mergekit(SPELLINGS[name], tmp_path / "theirs")
    path = tmp_path / "spelling.yml"
    path.write_bytes(SPELLINGS[name].encode())
    mp.ok("merge", path, tmp_path / "ours", cwd=family)
    assert oracle.faults(checkpoints.read_checkpoint(tmp_path / "ours"), reference(want)) == []
    assert (tmp_path / "ours/mergekit_config.yml").read_bytes() == path.read_bytes()


def sixteen_bit(dtype):
    """Recipes without a cut among equal magnitudes (on 16-bit weights mergekit keeps arbitrary ones of those), and without a plain
    mean of two (which often lies exactly between two stored values, where the last bit of the float32 sum decides)."""
    w = {"weight": 0.4}
    return {
        f"linear on {dtype}": recipes.models("linear", None, ["base", "a"], [{"weight": 0.3}, {"weight": 0.45}]),
        f"task arithmetic on {dtype}": recipes.models("task_arithmetic", "base", ["a", "b"], w),
        f"ties of everything on {dtype}": recipes.models("ties", "base", ["a", "b"], w),
        f"slerp on {dtype}": recipes.models("slerp", "base", ["a"], parameters={"t": 0.3}),
        f"passthrough on {dtype}": recipes.models("passthrough", None, ["a"], {"scale": 0.3}),
    }


@pytest.mark.parametrize("dtype, name", [(d, n) for d in ("BF16", "F16") for n in sixteen_bit(d)])
def test_16_bit_weights_are_merged_in_float32_and_rounded_once(dtype, name, mp, mergekit, tmp_path, monkeypatch):
    """mergekit with dtype float32 and out_dtype of the stored type is the reference, but where a value sits on a rounding boundary."""
    base = checkpoints.llama(3, dtype)
    for i, model in enumerate(("base", "a", "b")):
        checkpoints.save(tmp_path / model, checkpoints.fine_tune(base, 30 + i) if i else base)
    monkeypatch.chdir(tmp_path)
    recipe = sixteen_bit(dtype)[name]
    exact, _ = mergekit(in_float32(recipe), tmp_path / "exact")
    rounded, _ = mergekit(in_float32(recipe, {"BF16": "bfloat16", "F16": "float16"}[dtype]), tmp_path / "rounded")
    got = checkpoints.read_checkpoint(mp.merge(recipe, cwd=tmp_path))
    assert oracle.faults(got, {n: oracle.Merged(dtype, t.values()) for n, t in exact.items()}) == []
    other = sum(int((got[n].bits != rounded[n].bits).sum()) for n in got)
    assert other <= 1e-3 * sum(t.bits.size for t in got.values()), f"{other} elements are rounded to another value"


def test_the_output_dtype_is_the_recipes(mp, mergekit, tmp_path, monkeypatch):
    """dtype stands for out_dtype where that is not given; config.json tells it."""
    checkpoints.save(tmp_path / "base", checkpoints.llama(4))
    monkeypatch.chdir(tmp_path)
    for stored, told in (({"dtype": "bfloat16"}, "BF16"), ({"dtype": "float32", "out_dtype": "float16"}, "F16"), ({"out_dtype": "float64"}, "F64")):
        recipe = recipes.models("linear", None, ["base"], {"weight": 1}, **stored)
        want, config = mergekit(recipe, tmp_path / f"theirs-{told}")
        out = mp.merge(recipe, cwd=tmp_path)
        got = checkpoints.read_checkpoint(out)
        assert {t.dtype for t in got.values()} == {t.dtype for t in want.values()} == {told}
        assert all(np.array_equal(got[n].bits, want[n].bits) for n in want)
        ours = json.loads((out / "config.json").read_text())
        assert ours.get("dtype", ours.get("torch_dtype")) == config["dtype"]
