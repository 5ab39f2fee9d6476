"""What a merge must leave alone: laws that hold to the last bit."""

import numpy as np
import pytest

import checkpoints
import families
import oracle
import recipes
from checkpoints import Tensor

DTYPES = ("F32", "F16", "BF16", "mixed", "F64")


def bits(tensors):
    return {n: (t.dtype, t.shape, t.raw) for n, t in tensors.items()}


def with_odd_values(tensors):
    """The tensors with zeros of both signs, subnormals and extremes sprinkled in."""
    out = {}
    for name, t in tensors.items():
        kind = checkpoints.STORED_AS[t.dtype]
        flat = t.bits.copy().ravel()
        raw = flat.view(kind.replace("f", "u"))
        sign = raw.dtype.type(1) << raw.dtype.type(8 * raw.itemsize - 1)
        raw[:8] = [sign, 0, 1, sign | raw.dtype.type(1), 2, sign | raw.dtype.type(3), sign, 5]
        out[name] = Tensor(t.dtype, flat.reshape(t.shape))
    return out


def odd_family(mp, dtype, experts):
    base = with_odd_values(checkpoints.llama(1, dtype))
    return families.write(mp.root, base, [experts(base, i) for i in range(3)])


def equal(base, i):
    return base


def tuned(base, i):
    return checkpoints.fine_tune(base, 50 + i)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", recipes.DELTA_METHODS)
def test_experts_equal_to_the_base_give_the_bits_of_the_base(method, dtype, mp):
    """-0.0 and subnormals too."""
    family = odd_family(mp, dtype, equal)
    assert bits(mp.merged(families.smallest(method, family))) == bits(family.load(family.base))


@pytest.mark.parametrize("variant", [n for n, (method, _, own) in recipes.VARIANTS.items() if method in recipes.DELTA_METHODS and "base" not in own])
def test_experts_equal_to_the_base_give_its_bits_with_other_parameters(variant, mp):
    family = odd_family(mp, "mixed", equal)
    assert bits(mp.merged(families.smallest(variant, family))) == bits(family.load(family.base))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", recipes.TASK_VECTOR_METHODS)
def test_weights_of_zero_give_the_bits_of_the_base(method, dtype, mp):
    family = odd_family(mp, dtype, tuned)
    got = mp.merged(recipes.models(method, family.base, family.experts, {"weight": 0.0}))
    assert bits(got) == bits(family.load(family.base))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", recipes.TASK_VECTOR_METHODS[1:])
def test_densities_of_zero_give_the_bits_of_the_base(method, dtype, mp):
    family = odd_family(mp, dtype, tuned)
    got = mp.merged(recipes.models(method, family.base, family.experts, {"weight": 0.7, "density": 0}))
    assert bits(got) == bits(family.load(family.base))


@pytest.mark.parametrize("method", recipes.DELTA_METHODS)
def test_elements_that_no_expert_changed_keep_their_bits_amid_others_that_changed(method, mp):
    """Half of the elements are tuned, in every dtype; the other half has -0.0 and subnormals in it."""
    def half(base, i):
        moved = checkpoints.fine_tune(base, 60 + i)
        keep = lambda n: np.arange(base[n].bits.size).reshape(base[n].shape) % 2 == 0
        return {n: Tensor(t.dtype, np.where(keep(n), t.bits, moved[n].bits)) for n, t in base.items()}

    family = odd_family(mp, "mixed", half)
    got, base = mp.merged(families.smallest(method, family)), family.load(family.base)
    for name, t in base.items():
        assert got[name].bits.ravel()[::2].tobytes() == t.bits.ravel()[::2].tobytes(), name
    assert any(got[n].raw != base[n].raw for n in base)


@pytest.mark.parametrize("dtype", ("F16", "BF16"))
@pytest.mark.parametrize("t", (0, 0.3, 1))
def test_slerp_of_a_16_bit_model_with_itself_is_itself(t, dtype, mp):
    family = odd_family(mp, dtype, equal)
    got = mp.merged(recipes.models("slerp", family.base, family.experts[:1], parameters={"t": t}))
    assert all(np.array_equal(got[n].values(), want.values()) for n, want in family.load(family.base).items())


@pytest.mark.parametrize("dtype", ("F16", "BF16"))
def test_a_weighted_mean_of_equal_16_bit_models_is_the_model(dtype, mp):
    family = odd_family(mp, dtype, equal)
    got = mp.merged(recipes.models("linear", None, family.experts, [{"weight": w} for w in (0.3, 0.7, 0.11)]))
    assert all(np.array_equal(got[n].values(), want.values()) for n, want in family.load(family.base).items())


@pytest.mark.parametrize("method", [m for m in recipes.METHODS if m not in recipes.RANDOM_METHODS + recipes.ONE_EXPERT + ("nuslerp",)])
def test_reversed_experts_give_the_same_within_rounding(method, mp):
    family = families.make(mp.root)
    weighted, dense = method in recipes.WEIGHTED, method in recipes.TASK_VECTOR_METHODS[1:]
    each = [({"weight": w} if weighted else {}) | ({"density": 0.5} if dense else {}) for w in (0.2, 0.5, 0.9)]
    base = None if method in recipes.BASELESS else family.base
    forth = mp.merged(recipes.models(method, base, family.experts, each))
    back = mp.merged(recipes.models(method, base, family.experts[::-1], each[::-1]))
    assert oracle.faults(back, {n: oracle.Merged(t.dtype, t.values()) for n, t in forth.items()}) == []


def test_slerp_from_the_other_end_gives_the_same_within_rounding(mp):
    family = families.make(mp.root, experts=1)
    (other,) = family.experts
    forth = mp.merged(recipes.models("slerp", family.base, [other], parameters={"t": 0.25}))
    back = mp.merged(recipes.models("slerp", other, [family.base], parameters={"t": 0.75}))
    assert oracle.faults(back, {n: oracle.Merged(t.dtype, t.values()) for n, t in forth.items()}) == []


@pytest.mark.parametrize("method", recipes.TASK_VECTOR_METHODS)
def test_one_expert_at_full_weight_and_density_is_that_expert(method, mp):
    family = families.make(mp.root, experts=1)
    got = mp.merged(recipes.models(method, family.base, family.experts, {"weight": 1.0, "density": 1.0}))
    want = family.load(family.experts[0])
    assert oracle.faults(got, {n: oracle.Merged(t.dtype, t.values()) for n, t in want.items()}) == []


def test_a_filter_touches_only_what_it_names(mp):
    """Weight 1 on mlp tensors and 0 elsewhere: all others are the base's bits."""
    family = families.make(mp.root, "BF16")
    each = {"weight": [{"filter": "mlp", "value": 1.0}, {"value": 0.0}]}
    got, base = mp.merged(recipes.models("task_arithmetic", family.base, family.experts[:1], each)), family.load(family.base)
    assert {n for n in base if got[n].raw != base[n].raw} == {n for n in base if "mlp" in n}


@pytest.mark.parametrize("method", recipes.METHODS)
def test_infinities_that_all_inputs_share_are_kept(method, mp):
    """A causal mask of -inf is a buffer like any other: not an error, and the same afterwards."""
    mask = Tensor.of("F32", np.triu(np.full((6, 6), -np.inf), 1))
    base = {"w": Tensor.of("F32", np.ones(6)), "mask": mask}
    family = families.write(mp.root, base, [{"w": Tensor.of("F32", np.full(6, 1.5 + i)), "mask": mask} for i in range(2)])
    got = mp.merged(families.smallest(method, family))
    assert np.array_equal(got["mask"].values(), mask.values())
    assert np.isfinite(got["w"].values()).all()
