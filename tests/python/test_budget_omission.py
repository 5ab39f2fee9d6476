"""An omitted block means that the expert agrees with the base there, and nothing else: budgeted merges against the oracle on experts whose
omitted blocks are the base's. The masks are found by trying all, so these tests read no plan and no manifest."""

import numpy as np
import pytest

import budgets
import checkpoints
import families
import formulas
import oracle
import recipes
from budgets import Search, cuts
from checkpoints import Tensor

SHAPES = {  # three blocks, two, one in F32; the last ones are short
    "model.layers.0.mlp.up_proj.weight": (100, 100),
    "model.layers.0.mlp.down_proj.weight": (64, 99),
    "model.layers.0.input_layernorm.weight": (777,),
}


def on_grid(values, step):
    return np.round(np.asarray(values) / step) * step


def made(mp, experts, dtype="F32"):
    """Values on two grids, so that base plus trimmed delta is exact in float32; deltas of about one size in all blocks, so that no block is
    trimmed away as a whole and masks can be told apart."""
    random = np.random.default_rng(11)
    base = {n: Tensor.of(dtype, on_grid(random.standard_normal(s) * 0.1, 2.0**-7)) for n, s in SHAPES.items()}
    tuned = []
    for _ in range(experts):
        tuned.append({})
        for name, t in base.items():
            delta = random.standard_normal(t.bits.size) * 2e-3
            for cut in cuts(t):
                delta[cut] *= random.uniform(0.5, 2)
            step = 2.0**-20 if dtype == "F32" else 2.0**-12
            tuned[-1][name] = Tensor.of("F32", t.values(np.float64) + on_grid(delta, step).reshape(t.shape))
    return families.write(mp.root, base, tuned)


def check(mp, search, budget, *flags):
    """Every tensor has masks that explain it, and what they read is what the ledger says. Yields the masks found, by tensor."""
    told, got = budgets.merge(mp, search.recipe, "--budget", budget, *flags)
    found = search.all(got)
    assert all(found.values()), f"no masks explain {[n for n, m in found.items() if not m]}"
    costs = [[search.read_bytes(n, masks) for masks in found[n]] for n in found]
    read, sampled = told["io"]["expert_read_bytes"], told["io"]["sample_read_bytes"]
    low, high = sum(map(min, costs)), sum(map(max, costs))
    assert low <= read <= high + sampled, f"{read} bytes in the ledger, {low} to {high} by the masks, {sampled} sampled"
    some = [masks for matches in found.values() for masks in matches]
    assert any(not read for masks in some for mask in masks for read in mask), "nothing was omitted: the test asks nothing"
    assert any(read for masks in some for mask in masks for read in mask), "nothing was read: the test asks nothing"
    return found, got


def recipe_of(method, family):
    if method in ("ties", "dare_linear", "dare_ties"):
        each = [{"weight": w, "density": 0.3} for w in (0.6, 0.5)]
        return recipes.models(method, family.base, family.experts, each, {"normalize": method == "ties"})
    return families.smallest(method, family)


PLAIN = tuple(m for m in recipes.METHODS if m not in ("ties", "dare_linear", "dare_ties", "passthrough"))  # those have tests of their own


@pytest.mark.parametrize("known", (False, True))
@pytest.mark.parametrize("method", PLAIN + ("model_stock by rows", "breadcrumbs rescaled"))
def test_an_omitted_block_is_the_bases(method, known, mp):
    family = made(mp, experts=1 if method in recipes.ONE_EXPERT else 2)
    if known:
        budgets.analyze(mp, family)
    search = Search(family, families.smallest(method, family))
    for budget, policy in (("55%", "gram"), ("30%", "random"), ("60%", "uniform")):
        check(mp, search, budget, "--policy", policy)


@pytest.mark.parametrize("known", (False, True))
@pytest.mark.parametrize("method", ("dare_linear", "dare_ties"))
def test_dare_rescales_by_the_norms_of_the_delta_as_masked(method, known, mp):
    """Both norms: were the upper one of the whole delta, what was read would be blown up."""
    family = made(mp, experts=2)
    recipe = recipe_of(method, family)
    if known:
        budgets.analyze(mp, family, "--density", "0.3")
    search = Search(family, recipe)
    for budget, policy in (("55%", "gram"), ("40%", "random")):
        check(mp, search, budget, "--policy", policy)


def trimmed_whole(family, recipe, rescale=False):
    """What a merge sees when thresholds are those of whole deltas: first trimmed, then masked. For a recipe with density 1."""
    def see(i, expert, base, mask):
        density = recipe["models"][i]["parameters"]["density"]
        delta = expert.values() - base.values()
        kept = formulas.sparsify(delta, density, rescale)
        return budgets.omit(Tensor.of("F32", base.values() + kept), base, mask)

    whole = recipe | {"models": [m | {"parameters": m["parameters"] | {"density": 1.0}} for m in recipe["models"]]}
    return Search(family, whole, see)


def explains(search, got):
    return all(search.all(got).values())


@pytest.mark.parametrize("rescale", (False, True))
def test_ties_trims_the_delta_as_masked_where_no_threshold_is_known(rescale, mp):
    family = made(mp, experts=2)
    recipe = recipe_of("ties", family)
    recipe["parameters"]["rescale"] = rescale
    for density in (None, "0.7"):
        if density:
            budgets.analyze(mp, family, "--density", density)  # another one than the recipe's
        _, got = check(mp, Search(family, recipe), "55%", "--policy", "random")
    assert not explains(trimmed_whole(family, recipe, rescale), got), "both meanings fit: the test asks nothing"


def test_ties_trims_whole_deltas_where_their_thresholds_are_known(mp):
    """By `analyze --density`: omitted blocks then do not make room for smaller elements."""
    family = made(mp, experts=2)
    recipe = recipe_of("ties", family)
    budgets.analyze(mp, family, "--density", "0.3")
    search, plain = trimmed_whole(family, recipe), Search(family, recipe)
    for budget, policy in (("55%", "gram"), ("45%", "random")):
        told, got = budgets.merge(mp, recipe, "--budget", budget, "--policy", policy)
        assert explains(search, got)
        assert not explains(plain, got), "both meanings fit: the test asks nothing"
        assert told["io"]["expert_read_bytes"] <= told["budget_bytes"]


def test_a_trim_of_whole_deltas_rescales_by_their_norms(mp):
    family = made(mp, experts=2)
    recipe = recipe_of("ties", family)
    recipe["parameters"]["rescale"] = True
    budgets.analyze(mp, family, "--density", "0.3")
    _, got = budgets.merge(mp, recipe, "--budget", "55%", "--policy", "random")
    assert explains(trimmed_whole(family, recipe, rescale=True), got)


@pytest.mark.parametrize("method", ("task_arithmetic", "ties"))
def test_the_meaning_does_not_depend_on_stored_types(method, mp):
    """A base in bfloat16 and experts in float32: a block is 8,192 elements then, and costs an expert 32 KiB."""
    family = made(mp, experts=2, dtype="BF16")
    budgets.analyze(mp, family)
    check(mp, Search(family, recipe_of(method, family)), "60%", "--policy", "random")


def test_a_layer_that_is_passed_through_is_the_base_where_it_is_omitted(mp):
    """Slices: the second layer is the expert's, and an omitted block of it the base's."""
    family = budgets.make(mp.root, experts=1)
    slices = [[recipes.source(family.base, 0, 1)], [recipes.source(family.experts[0], 1, 2)]]
    recipe = recipes.sliced("passthrough", slices, family.base)
    budgets.analyze(mp, family)
    told, got = budgets.merge(mp, recipe, "--budget", "50%", "--policy", "random")
    base, expert = family.load(family.base), family.load(family.experts[0])
    seen = set()
    for name, t in base.items():
        for cut in cuts(t):
            of = [k for k, m in (("base", base), ("expert", expert)) if m[name].bits.ravel()[cut].tobytes() == got[name].bits.ravel()[cut].tobytes()]
            assert of, f"{name} {cut}: neither the base's nor the expert's"
            seen |= {(oracle.layer_of(name) == 1, *of)}
    assert {(True, "base"), (True, "expert")} <= seen
    assert 0 < told["io"]["expert_read_bytes"] <= told["budget_bytes"]


@pytest.mark.parametrize("flags", (["--memory", "least"], ["--threads", "1"], ["--threads", "8"]))
def test_neither_threads_nor_memory_change_what_a_mask_means(flags, mp):
    """One pass or several: the statistics are those of the same masked delta. Compared where the plan is the same."""
    family = budgets.make(mp.root, experts=2)
    recipe = recipe_of("ties", family)
    budgets.analyze(mp, family)
    if "least" in flags:
        flags = ["--memory", f"{budgets.plan(mp, recipe)['least_memory_bytes']}B"]
    told, out = budgets.merge_to(mp, recipe, "--budget", "100KiB", "--policy", "norm", *flags)
    plain, same = budgets.merge_to(mp, recipe, "--budget", "100KiB", "--policy", "norm")
    if told["plan_digest"] == plain["plan_digest"]:
        assert budgets.weights(out) == budgets.weights(same)
    assert told["io"]["expert_read_bytes"] <= 100 << 10
    assert checkpoints.read_checkpoint(out).keys() == checkpoints.read_checkpoint(same).keys()
