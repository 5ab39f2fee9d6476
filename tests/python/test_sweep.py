"""sweep: the deviation at each budget is that of what `merge --budget` writes, as diff and numpy measure it."""

import numpy as np
import pytest

import budgets
import checkpoints
import families
import recipes
from budgets import BLOCKS
from checkpoints import Tensor

DEVIATIONS = ("relative_to_weights", "relative_to_update")
EXACT = 1e-9


def sweep(mp, recipe, listed, *flags):
    told = mp.ok("sweep", mp.recipe(recipe), "--budgets", listed, "--json", *BLOCKS, *flags).json
    assert [p["budget"] for p in told["points"]] == listed.split(",")
    return told


def diff(mp, full, other, base):
    told = mp.ok("diff", full, other, "--base", base, "--json").json
    return {key: told[key] for key in DEVIATIONS}


def agree(told, measured):
    for key in DEVIATIONS:
        if measured[key] is None or told[key] is None:
            assert told[key] is None or (told[key] == 0 and measured[key] is None), (key, told, measured)
        else:
            assert told[key] == pytest.approx(measured[key], rel=EXACT, abs=1e-15), key


def check_against_merges(mp, recipe, base, told, *flags):
    """Merges at every budget, by the policy and with random blocks, and compares."""
    _, full = budgets.merge_to(mp, recipe, *flags)
    for point in told["points"]:
        merged, out = budgets.merge_to(mp, recipe, "--budget", point["budget"], *flags)
        assert point["read_bytes"] == merged["io"]["expert_read_bytes"]
        for key in ("budget_bytes", "policy", "statistics", "predicted_deviation", "certificate"):
            assert point[key] == merged[key], key
        agree(point["deviation"], diff(mp, full, out, base))
        merged, out = budgets.merge_to(mp, recipe, "--budget", point["budget"], *flags, "--policy", "random")
        assert point["random"]["read_bytes"] == merged["io"]["expert_read_bytes"]
        agree(point["random"]["deviation"], diff(mp, full, out, base))
    agree(told["do_nothing"]["deviation"], diff(mp, full, base, base))


def reference(method, family):
    """The model that stands in for what is not read."""
    return family.experts[0] if method in ("passthrough", "nuslerp of weights") else family.base


@pytest.mark.parametrize("known", (False, True))
@pytest.mark.parametrize("method, dtype", recipes.rotate(recipes.METHODS + ("model_stock by rows", "nuslerp of weights"), ("F32", "BF16", "mixed")))
def test_a_sweep_measures_what_merges_store(method, dtype, known, mp):
    family = budgets.make(mp.root, dtype, layers=1, expert_dtype="F32" if dtype == "mixed" else None)
    recipe = families.smallest(method, family)
    if known:
        budgets.analyze(mp, family, "--density", "0.4")
    told = sweep(mp, recipe, "0%,7%,40%,100%")
    check_against_merges(mp, recipe, reference(method, family), told)


@pytest.mark.parametrize("policy", budgets.POLICIES)
def test_the_policy_is_that_of_the_flag(policy, mp):
    family = budgets.make(mp.root, layers=1)
    recipe = families.smallest("task_arithmetic", family)
    told = sweep(mp, recipe, "25%", "--policy", policy)
    assert told["points"][0]["policy"] == policy
    check_against_merges(mp, recipe, family.base, told, "--policy", policy)


@pytest.mark.parametrize("known", (False, True))
def test_tensors_that_do_not_fit_into_the_memory(known, mp):
    """Second passes are part of the budget, variants take turns, and both say what a merge in this memory does."""
    family = budgets.make(mp.root, hidden=256, inner=512, vocab=4096, layers=1)
    recipe = families.smallest("ties", family)
    if known:
        budgets.analyze(mp, family)
    told = sweep(mp, recipe, "3%,20%,60%", "--memory", "5MiB")
    check_against_merges(mp, recipe, family.base, told, "--memory", "5MiB")
    roomy = sweep(mp, recipe, "20%", "--memory", "200MiB")
    assert told["io"]["expert_read_bytes"] > 2 * roomy["io"]["expert_read_bytes"]


def test_other_output_types_and_integers(mp):
    """Integers are copied and in no norm; what rounding to the output's type does to the base is no error of an omission."""
    base = checkpoints.llama(1, "F32", **budgets.SIZE)
    tuned = [budgets.uneven_tune(base, 10 + i) for i in range(2)]
    for model in (base, *tuned):
        model["model.ids"] = Tensor("I64", np.arange(40_000, dtype="<i8") << 40)
    family = families.write(mp.root, base, tuned)
    recipe = families.smallest("ties", family, out_dtype="bfloat16")
    told = sweep(mp, recipe, "10%,50%,100%")
    check_against_merges(mp, recipe, family.base, told)
    assert told["points"][-1]["deviation"]["relative_to_update"] == 0
    got, full = budgets.merge(mp, recipe, "--budget", "50%")[1], budgets.merge(mp, recipe)[1]
    for tensors in (got, full):
        del tensors["model.ids"]
    want = budgets.distance(got, full) / np.linalg.norm(budgets.flat(full))
    assert told["points"][1]["deviation"]["relative_to_weights"] == pytest.approx(want, rel=EXACT)


@pytest.mark.parametrize("known", (False, True))
@pytest.mark.parametrize("method", recipes.DELTA_METHODS)
def test_the_ends_of_the_frontier(method, known, mp):
    family = budgets.make(mp.root, layers=1)
    if known:
        budgets.analyze(mp, family, "--density", "0.4")
    none, all_read = sweep(mp, families.smallest(method, family), "0%,100%")["points"]
    for deviation in (none["deviation"], none["random"]["deviation"]):
        assert deviation["relative_to_update"] == 1.0
    for deviation in (all_read["deviation"], all_read["random"]["deviation"], all_read["predicted_deviation"]):
        assert deviation == {"relative_to_weights": 0, "relative_to_update": 0}
    assert none["read_bytes"] == 0


def test_threads_and_memory_change_no_number(mp):
    family = budgets.make(mp.root, "BF16")
    recipe = families.smallest("dare_ties", family)
    first = sweep(mp, recipe, "5%,30%", "--threads", "1")
    for flags in (("--threads", "3"), ("--threads", "2", "--memory", "64MiB")):
        told = sweep(mp, recipe, "5%,30%", *flags)
        assert told["points"] == first["points"] and told["do_nothing"] == first["do_nothing"]


def test_many_equal_magnitudes_are_cut_as_a_merge_cuts_them(mp):
    """Deltas of a few magnitudes only: which of the equal ones stay depends on the mask."""
    base = {n: Tensor.of("F32", np.zeros(t.shape)) for n, t in checkpoints.llama(1, **budgets.SIZE).items()}
    random = np.random.default_rng(5)
    tuned = [{n: Tensor.of("F32", random.integers(-2, 3, t.shape) / 4) for n, t in base.items()} for _ in range(3)]
    family = families.write(mp.root, base, tuned)
    recipe = families.smallest("ties", family)
    told = sweep(mp, recipe, "10%,50%", "--threads", "3")
    check_against_merges(mp, recipe, family.base, told)


def test_equal_models_have_no_update(mp):
    base = checkpoints.llama(1)
    family = families.write(mp.root, base, [base, base])
    told = sweep(mp, families.smallest("ties", family), "50%")
    assert told["do_nothing"]["deviation"] == {"relative_to_weights": 0, "relative_to_update": None}
    assert told["points"][0]["deviation"]["relative_to_weights"] == 0


def test_one_pass_serves_all_budgets_and_memory_holds(mp):
    family = budgets.make(mp.root, "BF16", hidden=256, inner=512, vocab=8192, layers=1)
    recipe = families.smallest("ties", family)
    told = sweep(mp, recipe, "1%,2%,5%,10%,25%,50%,100%")
    whole = budgets.whole(mp, recipe)
    assert told["io"]["expert_read_bytes"] - told["io"]["sample_read_bytes"] == whole
    assert told["io"]["write_bytes"] == 0
    tight = sweep(mp, recipe, "1%,2%,5%,10%,25%,50%,100%", "--memory", "6MiB")
    assert tight["peak_memory_bytes"] <= (6 + 64) << 20


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--budgets", "10%,lots"], ["lots"]),
        (["--budgets", "10%,,20%"], ["budget ''"]),
        (["--budgets=-5%"], ["-5%"]),
        (["--memory", "20KiB"], ["--memory", "needs at least"]),
        (["--policy", "gramm"], ["gramm", "gram"]),
    ],
)
def test_what_is_refused(flags, words, mp):
    run = mp.run("sweep", mp.recipe(families.smallest("ties", families.make(mp.root))), *flags)
    assert run.status == 2 and all(w in run.err for w in words), run.err


def test_the_least_memory(mp):
    """A sweep needs little more than a merge."""
    family = families.make(mp.root)
    recipe = mp.recipe(families.smallest("task_arithmetic", family))
    least = mp.ok("plan", recipe, "--json").json["least_memory_bytes"]
    assert mp.run("sweep", recipe, "--memory", least - 1).status == 2
    mp.ok("sweep", recipe, "--memory", least + (256 << 10))


def test_a_value_that_is_not_finite_is_named(mp):
    base = checkpoints.llama(1)
    tuned = checkpoints.fine_tune(base, 2)
    broken = tuned["model.norm.weight"].bits.copy()
    broken[3] = np.nan
    tuned["model.norm.weight"] = Tensor("F32", broken)
    run = mp.run("sweep", mp.recipe(families.smallest("task_arithmetic", families.write(mp.root, base, [tuned]))))
    assert run.status == 2 and "model.norm.weight" in run.err and "not finite at element 3" in run.err


def test_the_budget_of_a_recipe_is_not_looked_at(mp):
    family = budgets.make(mp.root, layers=1)
    recipe = families.smallest("ties", family)
    told = sweep(mp, recipe | {"budget": "10%"}, "20%")
    assert any("the recipe's budget" in w for w in told["warnings"])
    assert told["points"] == sweep(mp, recipe, "20%")["points"]


def test_flags_stand_for_a_recipe_and_text_has_a_line_for_each_budget(mp):
    family = budgets.make(mp.root, layers=1, experts=1)
    flags = ("--base", family.base, "--method", "task_arithmetic", "--expert", f"{family.experts[0]}:0.5")
    text = mp.ok("sweep", *flags, *BLOCKS, "--budgets", "10%,100KiB").out
    assert "task_arithmetic of 2 models" in text and "100KiB" in text and "do nothing" in text
    assert len({line.count("|") and line.index("|") for line in text.splitlines() if "|" in line}) == 1
    run = mp.run("sweep", mp.recipe("merge_method: ties"), *flags)
    assert run.status == 2 and "exclude each other" in run.err
