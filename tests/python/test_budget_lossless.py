"""What the catalog lets a merge leave unread without changing a byte, with a budget and without one."""

import numpy as np
import pytest

import budgets
import checkpoints
import families
import formulas
import recipes
from checkpoints import Tensor

MANY = tuple(m for m in recipes.METHODS if m not in recipes.ONE_EXPERT + ("nuslerp",))  # those that take all three experts
FROZEN = ".layers.0."


def size(tensors, part=""):
    return sum(len(t.raw) for n, t in tensors.items() if part in n)


def before_and_after(mp, family, recipe, *density):
    """The report of a merge with an empty catalog, and with a full one; both give the same bytes."""
    unknown, out = budgets.merge_to(mp, recipe)
    budgets.analyze(mp, family, *density)
    known, again = budgets.merge_to(mp, recipe)
    assert budgets.weights(again) == budgets.weights(out), "what was skipped changed the result"
    assert unknown["lossless_skipped_bytes"] == 0
    return unknown["io"]["expert_read_bytes"], known["io"]["expert_read_bytes"], known["lossless_skipped_bytes"]


def family_of(mp, change, dtype="F32"):
    """A base and three uneven fine-tunes; change(base, tuned) alters the list of them."""
    base = checkpoints.llama(5, dtype, **budgets.SIZE)
    tuned = [budgets.uneven_tune(base, 50 + i) for i in range(3)]
    return families.write(mp.root, base, change(base, tuned))


def freeze(base, tuned):
    """The first layer of the second expert was never trained."""
    tuned[1] = {n: base[n] if FROZEN in n else t for n, t in tuned[1].items()}
    return tuned


def share(base, tuned):
    """One layer of the third expert is the first expert's."""
    tuned[2] = {n: tuned[0][n] if FROZEN in n else t for n, t in tuned[2].items()}
    return tuned


@pytest.mark.parametrize("method, dtype", recipes.rotate(MANY + ("nuslerp", "breadcrumbs rescaled", "model_stock by rows"), ("F32", "BF16", "mixed")))
def test_layers_that_were_never_trained_are_not_read(method, dtype, mp):
    family = family_of(mp, freeze, dtype)
    full, read, skipped = before_and_after(mp, family, families.smallest(method, family))
    frozen = size(family.load(family.experts[1]), FROZEN)
    assert full - read >= frozen and skipped >= frozen


@pytest.mark.parametrize("method", ("slerp", "nearswap", "arcee_fusion"))
def test_nor_are_those_of_the_only_expert(method, mp):
    family = family_of(mp, lambda base, tuned: freeze(base, tuned)[1:])
    full, read, _ = before_and_after(mp, family, families.smallest(method, family))
    assert full - read >= size(family.load(family.experts[0]), FROZEN)


@pytest.mark.parametrize("method", MANY)
def test_blocks_that_two_experts_share_are_read_once(method, mp):
    family = family_of(mp, share)
    full, read, skipped = before_and_after(mp, family, families.smallest(method, family))
    common = size(family.load(family.experts[2]), FROZEN)
    assert full - read >= common and skipped >= common


def test_an_expert_that_is_a_copy_of_another_costs_nothing(mp):
    family = family_of(mp, lambda base, tuned: [tuned[0], dict(tuned[0]), tuned[1]])
    full, read, _ = before_and_after(mp, family, families.smallest("task_arithmetic", family))
    assert read <= full * 2 // 3


def test_one_changed_element_is_enough_to_read_a_block(mp):
    """A frozen layer with one bit flipped at its very end."""
    def change(base, tuned):
        tuned = freeze(base, tuned)
        name = "model.layers.0.mlp.up_proj.weight"
        bits = base[name].bits.copy()
        bits.ravel()[-1:].view("u4")[:] ^= 1
        tuned[1][name] = Tensor("F32", bits)
        return tuned

    family = family_of(mp, change)
    recipe = recipes.models("task_arithmetic", family.base, family.experts, {"weight": 1.0})
    full, read, skipped = before_and_after(mp, family, recipe)
    name = "model.layers.0.mlp.up_proj.weight"
    base, expert = family.load(family.base)[name], family.load(family.experts[1])[name]
    last = budgets.cuts(base)[-1]
    frozen = size(family.load(family.experts[1]), FROZEN) - 4 * (last.stop - last.start)
    assert full - read == skipped == frozen
    assert not checkpoints.same_bits(base, expert)


def quiet_blocks(base, expert, density):
    """Blocks whose every delta is under the smallest that a trim of the whole tensor keeps, as (tensor, block)."""
    out = []
    for name, t in base.items():
        delta = np.abs(expert[name].values() - t.values()).ravel()
        kept = delta[formulas.keep_largest(delta, density)]
        out += [(name, c) for c in budgets.cuts(t) if delta[c].max() < kept.min()]
    return out


def loud_blocks(base, tuned):
    """Deltas that are a hundred times larger in the first block of each tensor; every tensor has many."""
    out = []
    for i, expert in enumerate(tuned):
        moved = {}
        for name, t in base.items():
            delta = (expert[name].values(np.float64) - t.values(np.float64)).ravel()
            delta[budgets.cuts(t)[0]] = np.random.default_rng(i).standard_normal(budgets.cuts(t)[0].stop) * 0.1
            delta[budgets.cuts(t)[0].stop :] = np.clip(delta[budgets.cuts(t)[0].stop :], -1e-3, 1e-3)
            moved[name] = Tensor.of(t.dtype, t.values(np.float64) + delta.reshape(t.shape))
        out.append(moved)
    return out


@pytest.mark.parametrize("dtype", ("F32", "BF16"))
def test_blocks_under_the_exact_threshold_of_a_trim_are_not_read(dtype, mp):
    base = checkpoints.llama(6, dtype, layers=1, hidden=128, inner=256, vocab=512)
    tuned = loud_blocks(base, [budgets.uneven_tune(base, 60 + i) for i in range(2)])
    family = families.write(mp.root, base, tuned)
    recipe = recipes.models("ties", family.base, family.experts, {"weight": 0.5, "density": 0.1})
    quiet = sum(c.stop - c.start for e in tuned for _, c in quiet_blocks(base, e, 0.1)) * budgets.BYTES[dtype]
    assert quiet > size(base) / 2, "the family has few quiet blocks: the test asks nothing"
    full, read, skipped = before_and_after(mp, family, recipe, "--density", "0.1")
    assert full - read >= quiet and skipped >= quiet


def test_a_threshold_of_another_density_skips_nothing_that_is_kept(mp):
    """Analysed for 0.05, merged with 0.5."""
    base = checkpoints.llama(6, "F32", layers=1, hidden=128, inner=256, vocab=512)
    family = families.write(mp.root, base, loud_blocks(base, [budgets.uneven_tune(base, 60 + i) for i in range(2)]))
    before_and_after(mp, family, recipes.models("ties", family.base, family.experts, {"weight": 0.5, "density": 0.5}), "--density", "0.05")


@pytest.mark.parametrize("method", ("task_arithmetic", "ties"))
@pytest.mark.parametrize("change", (freeze, share))
def test_what_is_skipped_leaves_more_of_a_budget(change, method, mp):
    """The bytes that remain to be read are enough for the full result."""
    family = family_of(mp, change)
    recipe = families.smallest(method, family)
    _, out = budgets.merge_to(mp, recipe)
    budgets.analyze(mp, family)
    needed = budgets.plan(mp, recipe)["expert_read_bytes"]
    told, again = budgets.merge_to(mp, recipe, "--budget", f"{needed}")
    assert budgets.weights(again) == budgets.weights(out)
    assert told["io"]["expert_read_bytes"] <= needed and told["lossless_skipped_bytes"] > 0
