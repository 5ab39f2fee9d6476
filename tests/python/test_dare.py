"""Random dropping: the share that is kept, the rescaling rule, and what the masks depend on."""

import numpy as np
import pytest

import families
import formulas
import recipes
from checkpoints import Tensor

N = 200_000
SIZE = (500, 400)


def ones(mp, experts=1, tensors=("w",), dtype="F32"):
    """A base of zeros and experts that are 1 everywhere, so that results show the masks themselves."""
    base = {n: Tensor.of(dtype, np.zeros(SIZE)) for n in tensors}
    tuned = [{n: Tensor.of(dtype, np.ones(SIZE)) for n in tensors}] * experts
    return families.write(mp.root, base, tuned)


def masks(mp, family, density, *flags, weights=None):
    """One mask for each weight of 1, as dicts by tensor."""
    weights = weights or [1.0]
    each = [{"weight": w, "density": density} for w in weights]
    got = mp.merged(recipes.models("dare_linear", family.base, family.experts, each, {"rescale": False}), *flags)
    return {n: t.values() for n, t in got.items()}


def near(share, p, n=N):
    """Within five standard deviations of a binomial."""
    return abs(share - p) <= 5 * np.sqrt(p * (1 - p) / n)


@pytest.mark.parametrize("density", (0.05, 0.3, 0.66, 0.95))
def test_the_share_of_kept_elements_is_the_density(density, mp):
    mask = masks(mp, ones(mp), density)["w"]
    assert set(np.unique(mask)) == {0.0, 1.0}
    assert near(mask.mean(), density)
    assert all(near(part.mean(), density, part.size) for part in np.array_split(mask.ravel(), 10))


@pytest.mark.parametrize("method", ("dare_linear", "dare_ties"))
@pytest.mark.parametrize("density", (0.1, 0.5))
def test_what_is_kept_is_rescaled_to_the_whole_l1_norm(method, density, mp):
    """By the norm that was really kept, not by 1 / density."""
    random = np.random.default_rng(1)
    delta = random.pareto(2.5, SIZE).astype(np.float32) * random.choice([-1, 1], SIZE).astype(np.float32)
    family = families.write(mp.root, {"w": Tensor.of("F32", np.zeros(SIZE))}, [{"w": Tensor.of("F32", delta)}])
    got = mp.merged(recipes.models(method, family.base, family.experts, {"weight": 1.0, "density": density}))["w"].values()
    assert near((got != 0).mean(), density)
    want = formulas.masked(delta, got != 0, rescale=True)
    assert np.abs(got - want).max() <= 2e-6 * np.abs(want).max()
    assert abs(formulas.l1(got) / formulas.l1(delta) - 1) < 1e-6


@pytest.mark.parametrize("method", ("dare_linear", "dare_ties"))
def test_density_1_drops_nothing_and_density_0_everything(method, mp):
    family = ones(mp)
    for density, value in ((1, 1.0), (0, 0.0)):
        got = mp.merged(recipes.models(method, family.base, family.experts, {"weight": 1.0, "density": density}))["w"].values()
        assert np.all(got == value)


def test_the_seed_decides_and_its_default_is_0(mp):
    family = ones(mp)
    default, zero, one, again = (masks(mp, family, 0.5, *f)["w"] for f in ([], ["--seed", "0"], ["--seed", "1"], ["--seed", "1"]))
    assert np.array_equal(default, zero) and np.array_equal(one, again)
    assert near((zero == one).mean(), 0.5)


def test_experts_drop_independently_of_each_other(mp):
    family = ones(mp, experts=2)
    first, second = (masks(mp, family, 0.3, weights=w)["w"] for w in ([1.0, 0.0], [0.0, 1.0]))
    assert near((first * second).mean(), 0.09)


def test_tensors_drop_independently_of_each_other(mp):
    got = masks(mp, ones(mp, tensors=("first", "second")), 0.3)
    assert near((got["first"] * got["second"]).mean(), 0.09)


def test_neighbours_drop_independently_of_each_other(mp):
    mask = masks(mp, ones(mp), 0.3)["w"]
    for other in (mask[:, 1:] * mask[:, :-1], mask[1:] * mask[:-1], mask[::2] * mask[1::2]):
        assert near(other.mean(), 0.09, other.size)


def test_a_mask_depends_on_seed_place_tensor_and_element_only(mp):
    """Not on the stored dtype, the method, the order of tensors in the file, or what else is merged."""
    wide = masks(mp, ones(mp, experts=2, tensors=("other", "w")), 0.4, weights=[1.0, 0.0])["w"]
    mp.root = mp.root / "again"
    mp.root.mkdir()
    family = ones(mp, tensors=("w", "another"), dtype="BF16")
    each = {"weight": 1.0, "density": 0.4}
    ties = mp.merged(recipes.models("dare_ties", family.base, family.experts, each, {"rescale": False}))["w"].values()
    assert np.array_equal(wide, ties)


def test_a_negative_density_is_refused(mp):
    family = ones(mp)
    mp.refuse(recipes.models("dare_ties", family.base, family.experts, {"weight": 1.0, "density": -0.1}), "density")
