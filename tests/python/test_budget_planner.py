"""What a plan chooses to read: more for more, the dear blocks first, and no more than a target needs."""

import numpy as np
import pytest

import budgets
import checkpoints
import families
import recipes
from checkpoints import Tensor


@pytest.fixture
def real(mp):
    """The trained family, analysed, and its task arithmetic."""
    family = budgets.real()
    budgets.analyze(mp, family)
    return family, recipes.models("task_arithmetic", family.base, family.experts, {"weight": 0.3})


def predicted(told):
    return told["predicted_deviation"]["relative_to_update"]


def test_more_budget_never_predicts_a_larger_error(mp, real):
    _, recipe = real
    told = [budgets.plan(mp, recipe, "--budget", f"{s}%") for s in (0, 0.5, 1, 2, 5, 10, 20, 35, 50, 65, 80, 90, 95, 99, 100)]
    assert [predicted(t) for t in told] == sorted(map(predicted, told), reverse=True)
    assert [t["expert_read_bytes"] for t in told] == sorted(t["expert_read_bytes"] for t in told)
    assert predicted(told[0]) == pytest.approx(1, rel=1e-6) and predicted(told[-1]) == 0


def test_more_budget_never_predicts_a_larger_error_of_random_families(mp):
    """Weights of both signs, so that experts cancel in places."""
    family = budgets.make(mp.root, experts=4)
    budgets.analyze(mp, family)
    recipe = recipes.models("task_arithmetic", family.base, family.experts, [{"weight": w} for w in (0.9, -0.5, 0.4, -0.8)])
    told = [predicted(budgets.plan(mp, recipe, "--budget", f"{s}%")) for s in range(0, 101, 10)]
    assert told == sorted(told, reverse=True)


def read_blocks(got, base):
    """Blocks of an output that are not the base's: where one expert is merged, those that were read."""
    return {
        (n, i)
        for n, t in base.items()
        for i, c in enumerate(budgets.cuts(t))
        if got[n].bits.ravel()[c].tobytes() != t.bits.ravel()[c].tobytes()
    }


@pytest.mark.parametrize("policy", ("gram", "norm", "random"))
def test_more_budget_reads_more_of_the_same(policy, mp):
    """Masks are nested."""
    family = budgets.make(mp.root, experts=1)
    budgets.analyze(mp, family)
    recipe = recipes.models("task_arithmetic", family.base, family.experts, {"weight": 1.0})
    before = set()
    for share in (0, 5, 15, 30, 50, 70, 90, 100):
        got = budgets.merge(mp, recipe, "--budget", f"{share}%", "--policy", policy)[1]
        now = read_blocks(got, family.load(family.base))
        assert before <= now, f"{share}% leaves out {before - now}"
        before = now
    assert before == read_blocks(family.load(family.experts[0]), family.load(family.base))


@pytest.mark.parametrize("policy", ("gram", "norm"))
def test_the_block_that_matters_is_read_first(policy, mp):
    """One block of one expert has nearly all of the update; room for two blocks."""
    base = checkpoints.llama(4, "F32", **budgets.SIZE)
    tuned = [budgets.uneven_tune(base, i, 1e-5) for i in range(3)]
    name = "model.layers.1.mlp.down_proj.weight"
    values = tuned[1][name].values().ravel().copy()
    values[budgets.cuts(base[name])[1]] += 0.05
    tuned[1][name] = Tensor.of("F32", values.reshape(base[name].shape))
    family = families.write(mp.root, base, tuned)
    budgets.analyze(mp, family)
    recipe = families.smallest("task_arithmetic", family)
    _, full = budgets.merge(mp, recipe)
    told, got = budgets.merge(mp, recipe, "--budget", "32KiB", "--policy", policy)
    assert budgets.deviation(got, full, base) < 0.2
    assert [e["read_bytes"] > 0 for e in told["experts"]][1]


def test_experts_that_cancel_are_not_read_by_gram(mp):
    """Two experts with large opposite deltas and a third with a smaller one: the update is the third's, and gram knows."""
    base = checkpoints.llama(3, "F32", **budgets.SIZE)
    tuned = budgets.uneven_tune(base, 1, 4e-3)
    other = {n: Tensor.of("F32", 2 * t.values(np.float64) - tuned[n].values(np.float64)) for n, t in base.items()}
    family = families.write(mp.root, base, [tuned, other, budgets.uneven_tune(base, 2, 1e-3)])
    budgets.analyze(mp, family)
    recipe = recipes.models("task_arithmetic", family.base, family.experts, {"weight": 0.5})
    _, full = budgets.merge(mp, recipe)
    far = {p: budgets.deviation(budgets.merge(mp, recipe, "--budget", "34%", "--policy", p)[1], full, base) for p in ("gram", "norm")}
    assert far["gram"] < 0.3 < far["norm"], far


def test_experts_that_agree_are_read_together_by_gram(mp):
    """Where two deltas are one, half of them is half of the error, and both blocks are worth more than norms say."""
    base = checkpoints.llama(3, "F32", **budgets.SIZE)
    tuned = budgets.uneven_tune(base, 1, 2e-3)
    family = families.write(mp.root, base, [tuned, dict(tuned), budgets.uneven_tune(base, 2, 2e-3)])
    budgets.analyze(mp, family)
    recipe = recipes.models("task_arithmetic", family.base, family.experts, {"weight": 0.5})
    _, full = budgets.merge(mp, recipe)
    far = {p: budgets.deviation(budgets.merge(mp, recipe, "--budget", "25%", "--policy", p)[1], full, base) for p in ("gram", "norm")}
    assert far["gram"] <= far["norm"] * 1.01


def test_fair_gives_every_expert_the_same(mp):
    """Even where one of them has nearly all of the update."""
    base = checkpoints.llama(3, "F32", **budgets.SIZE)
    family = families.write(mp.root, base, [budgets.uneven_tune(base, i, size) for i, size in enumerate((1e-2, 1e-4, 1e-4))])
    budgets.analyze(mp, family)
    recipe = families.smallest("task_arithmetic", family)
    spread = {}
    for policy in ("fair", "norm"):
        read = [e["read_bytes"] for e in budgets.merge(mp, recipe, "--budget", "30%", "--policy", policy)[0]["experts"]]
        spread[policy] = max(read) - min(read)
    assert spread["fair"] <= 2 * budgets.BLOCK < spread["norm"], spread


def test_random_follows_the_seed(mp):
    family = budgets.make(mp.root, experts=1)
    budgets.analyze(mp, family)
    recipe = recipes.models("task_arithmetic", family.base, family.experts, {"weight": 1.0})
    merged = [budgets.merge(mp, recipe, "--budget", "40%", "--policy", "random", *f) for f in ([], ["--seed", 0], ["--seed", 1])]
    read = [read_blocks(got, family.load(family.base)) for _, got in merged]
    assert read[0] == read[1] != read[2]
    assert merged[0][0]["plan_digest"] != merged[2][0]["plan_digest"]


def test_on_the_trained_family_gram_is_no_worse_than_norm_and_norm_than_random(mp, real):
    """Median of the measured deviation over budgets."""
    family, recipe = real
    base, (_, full) = family.load(family.base), budgets.merge(mp, recipe)
    far = {}
    for policy in ("gram", "norm", "random"):
        merged = [budgets.merge(mp, recipe, "--budget", b, "--policy", policy)[1] for b in ("2%", "5%", "10%", "25%", "50%")]
        far[policy] = float(np.median([budgets.deviation(got, full, base) for got in merged]))
    assert far["gram"] <= far["norm"] * 1.005 and far["norm"] <= far["random"] * 1.005, far
    assert far["gram"] < far["random"], far


# --- the inverse: a target instead of a budget -----------------------------------------------------------------------


@pytest.mark.parametrize("target", (0.1, 0.3, 0.6))
def test_a_target_is_met_as_measured_and_costs_no_more_than_it_must(target, mp, real):
    family, recipe = real
    base, (_, full) = family.load(family.base), budgets.merge(mp, recipe)
    told, got = budgets.merge(mp, recipe, "--max-deviation", target)
    assert predicted(told) <= target
    assert budgets.deviation(got, full, base) <= 1.1 * target
    less, short = budgets.merge(mp, recipe, "--budget", f"{int(told['io']['expert_read_bytes'] * 0.95)}")
    assert predicted(less) > target, "5 % fewer bytes would have done"
    assert budgets.deviation(short, full, base) > 0.9 * target


def test_a_target_relative_to_the_weights(mp, real):
    family, recipe = real
    _, full = budgets.merge(mp, recipe)
    nothing = budgets.plan(mp, recipe, "--budget", "0")["predicted_deviation"]["relative_to_weights"]
    target = nothing / 3
    told, got = budgets.merge(mp, recipe, "--max-deviation-weights", target)
    assert told["predicted_deviation"]["relative_to_weights"] <= target
    assert budgets.distance(got, full) / np.linalg.norm(budgets.flat(full)) <= 1.1 * target
    assert told["io"]["expert_read_bytes"] < budgets.plan(mp, recipe)["expert_read_bytes"]


def test_a_target_of_everything_reads_nothing_and_of_nothing_everything(mp, real):
    _, recipe = real
    assert budgets.plan(mp, recipe, "--max-deviation", "1.001")["expert_read_bytes"] == 0
    exact, out = budgets.merge_to(mp, recipe, "--max-deviation", "0")
    assert budgets.weights(out) == budgets.weights(budgets.merge_to(mp, recipe)[1])


@pytest.mark.parametrize("flag", ("--max-deviation", "--max-deviation-weights"))
@pytest.mark.parametrize("analysed", (0, 1))
def test_a_target_for_experts_that_were_not_analysed_names_the_command(analysed, flag, mp):
    family = budgets.make(mp.root, experts=2)
    if analysed:
        mp.ok("analyze", family.base, *family.experts[:analysed], *budgets.BLOCKS)
    mp.refuse(families.smallest("task_arithmetic", family), "mergepipe analyze", family.experts[1], flags=[flag, "0.3", *budgets.BLOCKS])


@pytest.mark.parametrize("target", ("-0.1", "much", "nan", "30%%"))
def test_a_target_that_cannot_be_meant_is_refused(target, mp):
    family = families.make(mp.root)
    mp.refuse(families.smallest("task_arithmetic", family), "deviation", flags=[f"--max-deviation={target}"])


def test_a_catalog_of_another_block_size_does_not_count(mp):
    family = budgets.make(mp.root, experts=2)
    mp.ok("analyze", family.base, *family.experts, "--block-size", "64KiB")
    mp.refuse(families.smallest("task_arithmetic", family), "mergepipe analyze", flags=["--max-deviation", "0.3", *budgets.BLOCKS])


def test_weights_that_scale_the_reference_are_not_predicted(mp):
    """linear without normalize: no sum of the reference and an update."""
    family = budgets.make(mp.root, experts=2)
    budgets.analyze(mp, family)
    recipe = families.smallest("linear", family)
    recipe["parameters"] = {"normalize": False}
    told, _ = budgets.merge(mp, recipe, "--budget", "30%")
    assert told["predicted_deviation"] == {"relative_to_weights": None, "relative_to_update": None}
    mp.refuse(recipe, "add up to 1", flags=["--max-deviation", "0.3", *budgets.BLOCKS])


def test_samples_of_shared_infinities_upset_nothing(mp):
    """A mask in a buffer: minus infinity in all models alike."""
    family = budgets.make(mp.root, experts=2)
    mask = np.full(8192, -np.inf)
    for model in (family.base, *family.experts):
        tensors = family.load(model) | {"mask.bias": checkpoints.Tensor.of("F32", mask)}
        checkpoints.write_file(model / "model.safetensors", tensors)
    told, got = budgets.merge(mp, families.smallest("task_arithmetic", family), "--budget", "30%")
    assert told["statistics"] == "sampled" and told["io"]["expert_read_bytes"] <= told["budget_bytes"]
    assert np.isneginf(got["mask.bias"].values()).all()


def test_a_plan_replaces_plans_alone(mp):
    family = budgets.make(mp.root, experts=2)
    recipe = mp.recipe(families.smallest("task_arithmetic", family))
    text = recipe.read_text()
    run = mp.run("plan", recipe, "-o", recipe)
    assert run.status == 2 and "is no plan" in run.err and recipe.read_text() == text
    for _ in range(2):
        mp.ok("plan", recipe, "-o", mp.root / "plan.json")


# --- sweep, explain --------------------------------------------------------------------------------------------------


def test_sweep_measures_what_merges_measure(mp, real):
    family, recipe = real
    base, (_, full) = family.load(family.base), budgets.merge(mp, recipe)
    told = mp.ok("sweep", mp.recipe(recipe), "--budgets", "2%,10%,50%", "--json", *budgets.BLOCKS).json
    assert [p["budget"] for p in told["points"]] == ["2%", "10%", "50%"]
    for point in told["points"]:
        merged, got = budgets.merge(mp, recipe, "--budget", point["budget"])
        assert point["budget_bytes"] == merged["budget_bytes"] and point["read_bytes"] == merged["io"]["expert_read_bytes"]
        assert point["predicted_deviation"] == merged["predicted_deviation"]
        measured = point["deviation"]
        assert measured["relative_to_update"] == pytest.approx(budgets.deviation(got, full, base), rel=1e-3)
        assert measured["relative_to_weights"] == pytest.approx(budgets.distance(got, full) / np.linalg.norm(budgets.flat(full)), rel=1e-3)
        _, chance = budgets.merge(mp, recipe, "--budget", point["budget"], "--policy", "random")
        assert point["random"]["deviation"]["relative_to_update"] == pytest.approx(budgets.deviation(chance, full, base), rel=1e-3)
    nothing = told["do_nothing"]["deviation"]
    assert nothing["relative_to_update"] == pytest.approx(1, rel=1e-6)
    assert nothing["relative_to_weights"] == pytest.approx(budgets.distance(base, full) / np.linalg.norm(budgets.flat(full)), rel=1e-3)


def test_sweep_leaves_nothing_behind(mp):
    family = budgets.make(mp.root, experts=2)
    budgets.analyze(mp, family)
    recipe = mp.recipe(families.smallest("ties", family))
    before = checkpoints.digests(mp.root, ignore=("cache",))
    mp.ok("sweep", recipe, "--budgets", "10%,100%", "--json", *budgets.BLOCKS)
    assert checkpoints.digests(mp.root, ignore=("cache",)) == before


def test_explain_tells_of_a_plan_and_of_an_output_alike(mp):
    family = budgets.make(mp.root, experts=2)
    budgets.analyze(mp, family)
    recipe = families.smallest("task_arithmetic", family)
    saved = mp.root / "plan.json"
    mp.ok("plan", mp.recipe(recipe), "--budget", "30%", "-o", saved, *budgets.BLOCKS)
    _, out = budgets.merge_to(mp, recipe, "--budget", "30%")
    told = {p: mp.ok("explain", p, "--json").json for p in (saved, out)}
    assert told[saved].keys() & told[out].keys()
    for path in (saved, out):
        text = mp.ok("explain", path).out
        assert all(e.name in text for e in family.experts) and "?" not in text


def test_explain_tells_why_of_one_tensor_and_knows_its_names(mp):
    family = budgets.make(mp.root, experts=2)
    budgets.analyze(mp, family)
    _, out = budgets.merge_to(mp, families.smallest("task_arithmetic", family), "--budget", "30%")
    name = "model.layers.1.mlp.down_proj.weight"
    assert name in mp.ok("explain", out, "--why", name).out
    assert isinstance(mp.ok("explain", out, "--why", name, "--json").json, dict)
    run = mp.run("explain", out, "--why", "model.layers.1.mlp.down_prjo.weight")
    assert run.status == 2 and "down_prjo" in run.err
