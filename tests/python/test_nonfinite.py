"""NaN and infinity: in an input, or made by the arithmetic, an error that names tensor and index before anything is published."""

import numpy as np
import pytest

import checkpoints
import families
import recipes
from checkpoints import Tensor, read_checkpoint

NORM, MATRIX = "model.norm.weight", "model.layers.1.mlp.up_proj.weight"
DTYPES = ("F32", "F16", "BF16", "F64")


def poisoned(mp, dtype, name, index, value, who=1, **size):
    """A family with one bad element in one input (0 is the base)."""
    base = checkpoints.llama(1, dtype, **size)
    models = [base, checkpoints.fine_tune(base, 2), checkpoints.fine_tune(base, 3)]
    values = models[who][name].values(np.float64).copy()
    values.flat[index] = value
    models[who] = models[who] | {name: Tensor.of(dtype, values)}
    return families.write(mp.root, models[0], models[1:], "sharded")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("who", (0, 1, 2))
@pytest.mark.parametrize("value", (np.nan, np.inf, -np.inf))
def test_one_bad_element_of_an_input_is_an_error_with_tensor_and_index(value, who, dtype, mp):
    family = poisoned(mp, dtype, NORM, 5, value, who)
    mp.refuse(families.smallest("task_arithmetic", family), NORM, "5", ("base", "e0", "e1")[who])


@pytest.mark.parametrize("method", recipes.METHODS)
def test_every_method_finds_it(method, mp):
    family = poisoned(mp, "BF16", NORM, 3, np.nan)
    mp.refuse(families.smallest(method, family), NORM, "3")


@pytest.mark.parametrize("method", recipes.METHODS + ("model_stock by rows", "nuslerp by columns", "breadcrumbs rescaled"))
def test_it_is_found_deep_in_a_large_tensor(method, mp):
    """Behind many blocks, in the last element, on several threads."""
    size = dict(layers=2, hidden=256, inner=1024)
    family = poisoned(mp, "BF16", MATRIX, 256 * 1024 - 1, np.nan, **size)
    mp.refuse(families.smallest(method, family), MATRIX, flags=["--block-size", "16KiB", "--threads", "4"])


def test_the_element_of_a_matrix_is_told(mp):
    """Flat, or as row and column."""
    family = poisoned(mp, "F32", MATRIX, 3 * 16 + 7, np.nan)
    run = mp.refuse(families.smallest("ties", family), MATRIX)
    assert "55" in run.err or "[3, 7]" in run.err


@pytest.mark.parametrize("method", recipes.METHODS)
def test_allow_nonfinite_goes_on(method, mp):
    """The other elements of elementwise methods are what they would be without it."""
    family = poisoned(mp, "F32", NORM, 5, np.nan)
    recipe = families.smallest(method, family)
    got = mp.merged(recipe, "--allow-nonfinite")
    if method in ("linear", "task_arithmetic", "passthrough"):
        want = family.want(recipe)[NORM].values
        assert np.flatnonzero(~np.isfinite(got[NORM].values())).tolist() == [5]
        assert np.allclose(np.delete(got[NORM].values(), 5), np.delete(want, 5), rtol=1e-5, atol=1e-7)
    assert all(np.isfinite(t.values()).all() for n, t in got.items() if n != NORM)


def test_a_replay_of_a_merge_that_allowed_it_allows_it_too(mp):
    family = poisoned(mp, "F32", NORM, 5, np.nan)
    out = mp.merge(families.smallest("linear", family), "--allow-nonfinite")
    mp.ok("replay", out, mp.root / "again")
    assert all(t.raw == read_checkpoint(mp.root / "again")[n].raw for n, t in read_checkpoint(out).items())


def test_an_overflow_of_the_stored_type_is_an_error(mp):
    """Finite inputs, finite float32 result, infinite in F16."""
    base = {"w": Tensor.of("F16", [1.0, 57344.0, 2.0]), "v": Tensor.of("F16", [1.0])}
    family = families.write(mp.root, base, [{"w": Tensor.of("F16", [1.0, 61440.0, 2.0]), "v": Tensor.of("F16", [1.0])}])
    recipe = recipes.models("task_arithmetic", family.base, family.experts, {"weight": 3.0})
    mp.refuse(recipe, "w", "1")
    assert np.isinf(mp.merged(recipe, "--allow-nonfinite")["w"].values()[1])
    assert mp.merged(recipe | {"out_dtype": "float32"})["w"].values()[1] == 69632.0


def test_weights_that_sum_to_zero_are_an_error_where_they_divide(mp):
    family = families.make(mp.root)
    mp.refuse(recipes.models("linear", None, family.experts[:2], [{"weight": 1}, {"weight": -1}]), "weight")


def test_an_overflow_in_float32_is_an_error(mp):
    base = {"w": Tensor.of("F32", [0.0, 3e38])}
    family = families.write(mp.root, base, [{"w": Tensor.of("F32", [0.0, -3e38])}])
    mp.refuse(recipes.models("task_arithmetic", family.base, family.experts, {"weight": 1.0}), "w", "1")


def test_a_nan_in_a_tensor_that_is_only_copied_is_found_too(mp):
    """passthrough publishes no NaN either. (An infinity of its one input is one that all inputs share.)"""
    family = poisoned(mp, "BF16", MATRIX, 9, np.nan)
    mp.refuse(recipes.models("passthrough", None, family.experts[:1]), MATRIX, "9")


def test_the_base_inside_an_old_output_stays_when_a_forced_merge_finds_a_nan(mp):
    """Replacing goes wrong before it begins: the old output is still whole."""
    family = poisoned(mp, "F32", NORM, 5, np.nan)
    good = recipes.models("linear", None, [family.base], {"weight": 1})
    out = mp.merge(good)
    before = checkpoints.digests(out)
    run = mp.run("merge", mp.recipe(families.smallest("ties", family)), out, "--force")
    assert run.status == 2 and checkpoints.digests(out) == before
    mp.ok("verify", out)
