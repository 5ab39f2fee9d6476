"""The budget: never more expert bytes than it allows, and all of them change nothing. What is read is chosen by the planner; see
test_budget_planner."""

import shutil
from fractions import Fraction

import pytest

import budgets
import checkpoints
import families
import oracle
import recipes
from budgets import BLOCKS, POLICIES
from checkpoints import same_bits
from dice import LAYERS, Dice, any_recipe

SHARES = (0, 0.1, 1, 2, 5, 10, 25, 50, 75, 90, 99, 99.9, 100)


def spelled(dice, whole, share):
    """A budget as people write it, and the bytes that it allows."""
    limit = int(whole * Fraction(str(share)) / 100)
    way = dice.pick("share", "bytes", "KiB")
    if way == "KiB":
        return f"{limit >> 10}KiB", limit >> 10 << 10
    return (f"{share}%", limit) if way == "share" else (str(limit), limit)


@pytest.mark.parametrize("seed", range(40))
def test_any_merge_stays_within_any_budget(seed, mp):
    """Recipes, budgets, policies, stored types, layouts at random; experts that the catalog knows, knows in part, or does not know."""
    dice = Dice(3000 + seed)
    method = recipes.METHODS[seed % len(recipes.METHODS)]
    family = budgets.make(mp.root, dice.pick("F32", "BF16", "F16", "mixed"), dice.pick("single", "sharded"), seed=seed + 1, layers=LAYERS)
    recipe = any_recipe(dice, family, method)
    whole = budgets.whole(mp, recipe)
    known = dice.pick(0, 1, 3, 3)
    if known:
        mp.ok("analyze", family.base, *family.experts[:known], *BLOCKS)
    for share in dice.random.choice(SHARES, 3, replace=False):
        budget, limit = spelled(dice, whole, share)
        flags = ("--budget", budget, "--policy", dice.pick(*POLICIES), "--threads", dice.pick(1, 2, 3))
        told, out = budgets.merge_to(mp, recipe, *flags)
        assert budgets.ledger_faults(told, limit) == [], flags
        mp.ok("verify", out)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("known", (False, True))
def test_a_share_is_taken_of_the_full_read_and_used(known, policy, mp):
    """Rounded down to a byte; and where a half is allowed, no policy leaves most of it."""
    family = budgets.make(mp.root)
    recipe = families.smallest("task_arithmetic", family)
    whole = budgets.whole(mp, recipe)
    if known:
        budgets.analyze(mp, family)
    for share in (0, 3.7, 50, 100):
        told, _ = budgets.merge(mp, recipe, "--budget", f"{share}%", "--policy", policy)
        assert abs(told["budget_bytes"] - whole * share / 100) < 1
        if share >= 50:
            assert told["io"]["expert_read_bytes"] > 0.8 * told["budget_bytes"], "little of what was allowed"


@pytest.mark.parametrize("dtype", ("F32", "BF16", "mixed"))
@pytest.mark.parametrize("method", recipes.DELTA_METHODS)
def test_nothing_read_gives_the_bits_of_the_base(method, dtype, mp):
    family = budgets.make(mp.root, dtype, experts=2, layers=1)
    recipe, base = families.smallest(method, family), family.load(family.base)
    for step, policy in ((None, "gram"), ("analyze", "gram"), (None, "random")):
        if step:
            budgets.analyze(mp, family)
        for budget in ("0%", "0"):
            told, got = budgets.merge(mp, recipe, "--budget", budget, "--policy", policy)
            assert told["io"]["expert_read_bytes"] == 0
            assert all(same_bits(got[n], t) for n, t in base.items())


@pytest.mark.parametrize("method", ("linear", "slerp", "karcher"))
def test_nothing_read_gives_the_base_by_methods_that_know_no_delta(method, mp):
    family = budgets.make(mp.root, layers=1)
    recipe = families.smallest(method, family)
    want = {n: oracle.Merged(t.dtype, t.values()) for n, t in family.load(family.base).items()}
    for known in (False, True):
        if known:
            budgets.analyze(mp, family)
        told, got = budgets.merge(mp, recipe, "--budget", "0")
        assert told["io"]["expert_read_bytes"] == 0 and oracle.faults(got, want) == []


@pytest.mark.parametrize("layout, dtype", [("single", "F32"), ("sharded", "BF16")])
@pytest.mark.parametrize("method", recipes.METHODS)
def test_all_that_a_full_read_takes_gives_the_bytes_of_a_full_read(method, layout, dtype, mp):
    family = budgets.make(mp.root, dtype, layout, layers=1)
    recipe = families.smallest(method, family)
    whole, (_, out) = budgets.whole(mp, recipe), budgets.merge_to(mp, recipe)
    want = budgets.weights(out)
    for known in (False, True):
        if known:
            budgets.analyze(mp, family, "--density", "0.4")
        for budget in ("100%", str(whole), f"{2 * whole}B") if known else ("100%", "1TiB"):
            told, out = budgets.merge_to(mp, recipe, "--budget", budget, "--policy", "random" if budget == "100%" else "gram")
            assert budgets.weights(out) == want, f"other bytes at {budget}, known: {known}"
            assert told["io"]["expert_read_bytes"] <= whole and told["io"]["sample_read_bytes"] == 0


def test_without_a_budget_none_is_told(mp):
    family = budgets.make(mp.root, layers=1)
    told, _ = budgets.merge(mp, families.smallest("ties", family))
    assert told["budget_bytes"] is None and told["io"]["sample_read_bytes"] == 0


@pytest.mark.parametrize("method", ("task_arithmetic", "ties"))
def test_samples_are_few_and_are_paid_for(method, mp):
    """One page from some blocks of an unknown expert, under 1 % of its bytes; none of a known one."""
    family = budgets.make(mp.root, "BF16", experts=2, hidden=256, inner=512, vocab=2048)
    recipe = families.smallest(method, family)
    whole = budgets.whole(mp, recipe)
    told, _ = budgets.merge(mp, recipe, "--budget", "20%")
    assert 0 < told["io"]["sample_read_bytes"] <= whole / 100 and told["statistics"] == "sampled"
    assert told["certificate"] is None, "a sample proves nothing"
    budgets.analyze(mp, family)
    told, _ = budgets.merge(mp, recipe, "--budget", "20%")
    assert told["io"]["sample_read_bytes"] == 0 and told["statistics"] == "full"


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize(
    "method, known, block",
    [("task_arithmetic", True, "16KiB"), ("task_arithmetic", False, "1MiB"), ("ties", True, "1MiB"), ("dare_ties", False, "16KiB")],
)
def test_what_is_asked_of_the_system_is_what_the_ledger_says(method, known, block, mp):
    """Every read of expert data, byte by byte; and what came into the page cache is no more than the pages of that: read-ahead is no
    excuse. Headers are not expert data, and alignment is told beside."""
    family = budgets.make(mp.root, "BF16", experts=2, hidden=512, inner=1024, vocab=4096)
    recipe = families.smallest(method, family)
    if known:
        mp.ok("analyze", family.base, *family.experts, "--block-size", block)
    for budget in ("0", "5%", "30%"):
        files = [e / "model.safetensors" for e in family.experts]
        for path in files:
            budgets.forget_pages(path)
        kept = sum(map(budgets.resident_bytes, files))
        told, asked = budgets.merge_watched(mp, recipe, "--budget", budget, "--block-size", block, "--policy", "random")
        cached = sum(map(budgets.resident_bytes, files)) - kept
        data = [n for path in files for offset, n in asked[path] if offset >= checkpoints.read_header(path)[1]]
        read, around = told["io"]["expert_read_bytes"], told["io"]["alignment_bytes"]
        assert read <= sum(data) <= read + around, f"{budget}: {sum(data)} bytes were asked for, {read} and {around} are in the ledger"
        headers = len(files) * 2 * 4096
        assert cached <= sum(data) + len(data) * 4096 + headers, f"{budget}: {cached} bytes of the experts in the page cache after {sum(data)}"


# --- saying it -------------------------------------------------------------------------------------------------------


def test_flag_before_environment_before_recipe(mp):
    family = budgets.make(mp.root, layers=1)
    recipe = families.smallest("task_arithmetic", family) | {"budget": "10%"}
    whole = budgets.whole(mp, families.smallest("task_arithmetic", family))
    told = lambda *flags, **env: mp.ok("plan", mp.recipe(recipe), "--json", *flags, env=env).json["budget_bytes"]
    assert told() == whole // 10
    assert told(MERGEPIPE_BUDGET="20%") == whole // 5
    assert told("--budget", "30KiB", MERGEPIPE_BUDGET="20%") == 30 << 10


def test_a_budget_in_a_recipe_is_that_of_the_flag(mp):
    family = budgets.make(mp.root, layers=1)
    recipe = families.smallest("ties", family)
    written, out = budgets.merge_to(mp, recipe | {"budget": "30%"})
    flag, same = budgets.merge_to(mp, recipe, "--budget", "30%")
    assert budgets.weights(out) == budgets.weights(same) and written["plan_digest"] == flag["plan_digest"]


@pytest.mark.parametrize("budget", ("-1%", "-5", "ten", "10%%", "%", "10 potatoes", "nan%", "inf", "1e400%", ""))
def test_a_budget_that_cannot_be_meant_is_refused(budget, mp):
    family = families.make(mp.root)
    mp.refuse(families.smallest("task_arithmetic", family), "budget", flags=[f"--budget={budget}"])


@pytest.mark.parametrize("line", ("budget: [1]", "budget: lots", "budget: -3%", "budget: {share: 1}"))
def test_a_recipe_with_a_budget_that_cannot_be_meant_is_refused(line, mp):
    family = families.make(mp.root)
    mp.refuse(recipes.text(families.smallest("task_arithmetic", family)) + line + "\n", "budget")


def test_an_unknown_policy_is_refused_with_those_there_are(mp):
    family = families.make(mp.root)
    mp.refuse(families.smallest("task_arithmetic", family), "gram", "random", flags=["--budget", "10%", "--policy", "clever"])


@pytest.mark.parametrize("flag", ("--max-deviation", "--max-deviation-weights"))
def test_a_budget_and_a_target_at_once_are_refused(flag, mp):
    """Which of them would count?"""
    family = families.make(mp.root)
    mp.refuse(families.smallest("task_arithmetic", family), "--budget", "--max-deviation", flags=["--budget", "10%", flag, "0.3"])


# --- memory ----------------------------------------------------------------------------------------------------------


SECOND_PASSES = (
    "ties", "dare_ties", "slerp", "breadcrumbs rescaled", "della", "sce", "ramplus_tl", "arcee_fusion", "model_stock by rows", "nuslerp by columns", "karcher",
)


@pytest.mark.parametrize("method", SECOND_PASSES)
@pytest.mark.parametrize("known", (False, True))
def test_a_second_pass_for_lack_of_memory_is_paid_for(known, method, mp):
    """Tensors of 2 MB that are read again for each pass: 100 % is the full read under this limit, and every budget holds."""
    family = budgets.make(mp.root, "BF16", layers=1, hidden=256, inner=1024, vocab=8192)
    recipe = families.smallest(method, family)
    least = budgets.plan(mp, recipe)["least_memory_bytes"]
    little = ("--memory", f"{least + (256 << 10)}B", "--threads", 2)
    whole = budgets.whole(mp, recipe, *little)
    assert whole > budgets.whole(mp, recipe), "no second pass: the test asks nothing"
    full, out = budgets.merge_to(mp, recipe)
    if known:
        budgets.analyze(mp, family)
    for share in (0, 7, 40, 100):
        told, again = budgets.merge_to(mp, recipe, "--budget", f"{share}%", *little)
        assert budgets.ledger_faults(told, whole * share // 100) == [], share
        assert abs(told["budget_bytes"] - whole * share / 100) < 1
    assert budgets.weights(again) == budgets.weights(out), "other bytes than with much memory"
