"""Every merge method gives the numbers of its formula, for every stored type and layout."""

import numpy as np
import pytest

import families
import recipes
from checkpoints import Tensor, read_checkpoint

DTYPES = ("F32", "F16", "BF16", "mixed")
LAYOUTS = ("single", "sharded", "file")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method, layout", recipes.rotate(recipes.METHODS, LAYOUTS))
def test_a_method_equals_its_formula(method, dtype, layout, mp):
    """Within 2e-6 of the tensor's largest value, and after rounding except at a rounding boundary; in the base's own dtypes."""
    family = families.make(mp.root, dtype, layout)
    assert families.faults(mp, family, families.smallest(method, family), "--seed", "7") == []


@pytest.mark.parametrize("dtype", ("F32", "mixed"))
@pytest.mark.parametrize("variant", recipes.VARIANTS)
def test_a_method_equals_its_formula_with_other_parameters(variant, dtype, mp):
    family = families.make(mp.root, dtype)
    assert families.faults(mp, family, families.smallest(variant, family)) == []


@pytest.mark.parametrize("method", recipes.TASK_VECTOR_METHODS + ("sce", "ram", "ramplus_tl", "karcher", "multislerp", "model_stock"))
def test_many_experts(method, mp):
    family = families.make(mp.root, "BF16", experts=11, layers=1)
    assert families.faults(mp, family, families.smallest(method, family)) == []


@pytest.mark.parametrize("base, experts", [("BF16", "F32"), ("F32", "BF16"), ("F16", "BF16"), ("BF16", "mixed"), ("F64", "F32"), ("F32", "F64")])
@pytest.mark.parametrize("method", recipes.METHODS)
def test_inputs_of_other_dtypes_are_widened_not_rounded(method, base, experts, mp):
    """An expert stored in float32 over a bfloat16 base counts with all its bits; the output has the base's dtype."""
    family = families.make(mp.root, base, expert_dtype=experts)
    assert families.faults(mp, family, families.smallest(method, family)) == []


def test_single_rows_of_a_f64_checkpoint_keep_what_float32_cannot(mp):
    """For F64 tensors the subtraction of the base and the last addition are in float64."""
    base = {"w": Tensor.of("F64", np.array([1.0, 1e6, -3.0]))}
    expert = {"w": Tensor.of("F64", np.array([1.0 + 1e-12, 1e6 + 1e-6, -3.0]))}
    family = families.write(mp.root, base, [expert])
    got = mp.merged(recipes.models("task_arithmetic", family.base, family.experts, {"weight": 1.0}))["w"].values(np.float64)
    moved = expert["w"].bits - base["w"].bits
    assert np.abs(got - base["w"].bits - moved).max() <= 1e-7 * moved.max() + 2e-16 * 1e6
    assert got[0] != 1.0 and got[2] == -3.0


# --- ties ------------------------------------------------------------------------------------------------------------


def kept_by_ties(mp, delta, density, *flags, dtype="F32"):
    """Which elements of one expert's delta TIES keeps."""
    family = families.write(mp.root / str(mp.made), {"w": Tensor.of(dtype, np.zeros_like(delta))}, [{"w": Tensor.of(dtype, delta)}])
    got = mp.merged(recipes.models("ties", family.base, family.experts, {"weight": 1.0, "density": density}), *flags)["w"].values()
    kept = got != 0
    assert np.array_equal(got[kept], delta[kept])
    return kept


@pytest.mark.parametrize("dtype", ("F32", "F16", "BF16"))
@pytest.mark.parametrize("density", (0.001, 0.25, 0.5, 0.9))
def test_ties_keeps_exactly_k_of_equal_magnitudes_by_lowest_index(density, dtype, mp):
    """Only four magnitudes among 50,000 elements: k is trunc(density * n) all the same, and the first ones at the cut stay."""
    random = np.random.default_rng(5)
    delta = (random.choice([1.0, 2.0, 3.0, 4.0], 50_000) * random.choice([-1, 1], 50_000)).astype(np.float32)
    kept = kept_by_ties(mp, delta, density, "--block-size", "16KiB", dtype=dtype)
    order = np.argsort(-np.abs(delta), kind="stable")[: int(density * delta.size)]
    assert set(np.flatnonzero(kept)) == set(order)


def test_ties_counts_zeros_of_a_sparse_delta_as_kept(mp):
    """60 percent zeros at density 0.5: k reaches into the zeros, so every other element stays."""
    random = np.random.default_rng(6)
    delta = random.standard_normal(100_000).astype(np.float32)
    delta[random.permutation(delta.size)[:60_000]] = 0
    assert np.array_equal(kept_by_ties(mp, delta, 0.5), delta != 0)


@pytest.mark.parametrize("n", (1, 2, 3, 7))
def test_ties_keeps_at_least_one_element(n, mp):
    delta = np.arange(1, n + 1, dtype=np.float32)
    assert kept_by_ties(mp, delta, 0.1).sum() == 1


def test_ties_tells_magnitudes_apart_to_the_last_bit(mp):
    """A histogram of leading bits alone would cut in the wrong place: these magnitudes differ in their last bits only."""
    delta = (1 + np.arange(4096, dtype=np.float32) * np.float32(2**-23))[np.random.default_rng(7).permutation(4096)]
    kept = kept_by_ties(mp, delta, 0.25)
    assert set(delta[kept]) == set(np.sort(delta)[-1024:])


def test_a_vote_of_exactly_zero_counts_as_positive(mp):
    """Weighted deltas +2 and -2: the positive one is taken."""
    base = {"w": Tensor.of("F32", np.zeros(4))}
    experts = [{"w": Tensor.of("F32", np.array([2.0, -2.0, 2.0, 0.0]) * s)} for s in (1, -1)]
    family = families.write(mp.root, base, experts)
    got = mp.merged(recipes.models("ties", family.base, family.experts, {"weight": 0.5}))["w"].values()
    assert got.tolist() == [2.0, 2.0, 2.0, 0.0]


def test_rescaling_in_f16_does_not_overflow(mp):
    """The L1 norms of 160,000 ones exceed the range of F16; the result is zeros and twos all the same."""
    family = families.write(mp.root, {"w": Tensor.of("F16", np.zeros(160_000))}, [{"w": Tensor.of("F16", np.ones(160_000))}])
    each = {"weight": 1.0, "density": 0.5}
    got = mp.merged(recipes.models("ties", family.base, family.experts, each, {"rescale": True}))["w"].values()
    assert np.array_equal(got, np.repeat(np.float32([2, 0]), 80_000))


# --- slerp -----------------------------------------------------------------------------------------------------------


def slerped(mp, base, other, t):
    family = families.write(mp.root / str(mp.made), {"w": Tensor.of("F32", base)}, [{"w": Tensor.of("F32", other)}])
    recipe = recipes.models("slerp", family.base, family.experts, parameters={"t": t})
    return families.faults(mp, family, recipe), mp.merged(recipe)["w"].values()


def test_slerp_ends_at_its_inputs(mp):
    random = np.random.default_rng(8)
    a, b = random.standard_normal((2, 500)).astype(np.float32)
    for t, end in ((0, a), (1, b)):
        wrong, got = slerped(mp, a, b, t)
        assert wrong == [] and np.abs(got - end).max() <= 2e-6 * np.abs(end).max()


@pytest.mark.parametrize("case", ("zero base", "zero other", "both zero", "parallel", "opposite", "orthogonal"))
def test_slerp_of_degenerate_vectors(case, mp):
    """A zero vector has no direction and counts as orthogonal; (anti)parallel ones are mixed in a straight line."""
    v = np.random.default_rng(9).standard_normal(64).astype(np.float32)
    half = np.float32([1] * 32 + [0] * 32)
    a, b = {
        "zero base": (0 * v, v), "zero other": (v, 0 * v), "both zero": (0 * v, 0 * v),
        "parallel": (v, 2 * v), "opposite": (v, -v), "orthogonal": (v * half, v * (1 - half)),
    }[case]
    wrong, got = slerped(mp, a, b, 0.25)
    assert wrong == []
    if case == "opposite":
        assert np.abs(got - v / 2).max() <= 2e-6 * np.abs(v).max()


def test_slerp_takes_its_norms_accurately(mp):
    """A million elements on a large common offset: float32 running sums would be off by more than the tolerance."""
    random = np.random.default_rng(10)
    a, b = (100 + 60 * random.standard_normal((2, 1_000_000))).astype(np.float32)
    assert slerped(mp, a, b, 0.4)[0] == []


# --- linear and passthrough ------------------------------------------------------------------------------------------


def test_linear_divides_by_the_sum_of_weights(mp):
    family = families.write(mp.root, {"w": Tensor.of("F32", np.float32([4, 8]))}, [{"w": Tensor.of("F32", np.float32([8, 0]))}])
    got = mp.merged(recipes.models("linear", None, [family.base, *family.experts], [{"weight": 3}, {"weight": 1}]))
    assert got["w"].values().tolist() == [5.0, 6.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_passthrough_without_scale_copies_bits(dtype, mp):
    """NaN payloads, infinities, -0.0 and subnormals of a copied tensor are not touched."""
    family = families.make(mp.root, dtype, experts=1)
    got = mp.merged(recipes.models("passthrough", None, family.experts))
    want = read_checkpoint(family.experts[0])
    assert {n: t.raw for n, t in got.items()} == {n: t.raw for n, t in want.items()}


# --- what the program says about a recipe ----------------------------------------------------------------------------


@pytest.mark.parametrize("parameter", ({"density": 0.3}, {"int8_mask": True}))
def test_a_parameter_that_the_method_ignores_is_told_as_a_warning(parameter, mp):
    """mergekit accepts it because another method would use it; it changes no byte."""
    family = families.make(mp.root)
    plain = recipes.models("task_arithmetic", family.base, family.experts, {"weight": 0.5})
    more = plain | {"parameters": parameter}
    out = mp.merge(plain)
    report = mp.report(more)
    assert {n: t.raw for n, t in read_checkpoint(report["output"]).items()} == {n: t.raw for n, t in read_checkpoint(out).items()}
    if "density" in parameter:
        assert any("density" in w for w in report["warnings"]), report["warnings"]


def test_a_base_that_joins_a_linear_merge_is_told_as_a_warning(mp):
    family = families.make(mp.root)
    report = mp.report(recipes.models("linear", family.base, family.experts, parameters={"weight": 0.3}))
    assert any(str(family.base) in w or "base" in w for w in report["warnings"]), report["warnings"]


@pytest.mark.parametrize("method", recipes.TASK_VECTOR_METHODS + ("sce", "ram", "ramplus_tl"))
def test_a_merge_without_experts_is_the_base(method, mp):
    """A recipe that lists nothing but its base gives the base's bits, whatever the lambda."""
    family = families.make(mp.root, "mixed")
    parameters = {"lambda": 0.5} if method in recipes.TASK_VECTOR_METHODS else None
    got = mp.merged(recipes.models(method, family.base, [family.base], parameters=parameters))
    assert {n: t.raw for n, t in got.items()} == {n: t.raw for n, t in family.load(family.base).items()}
