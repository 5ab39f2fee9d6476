"""A plan under a budget has a name: the same for the same knowledge, another one for other inputs; and it can be kept, run, replayed."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import budgets
import checkpoints
import families
import recipes
from checkpoints import Tensor


def retune(folder, seed):
    """Other values in place: the same header, size, inode and modification time."""
    for path in sorted(folder.glob("*.safetensors")):
        was = path.stat()
        moved = checkpoints.fine_tune(checkpoints.read_file(path), seed)
        data = checkpoints.file_bytes(*checkpoints.header_of(moved, {"format": "pt"}))
        assert len(data) == was.st_size
        with open(path, "r+b") as f:
            f.write(data)
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def digest(mp, recipe, *flags):
    return budgets.plan(mp, recipe, "--budget", "20%", *flags)["plan_digest"]


# --- the digest ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ("task_arithmetic", "ties"))
def test_the_digest_depends_neither_on_the_catalogs_place_nor_on_how_it_was_filled(method, mp):
    family = budgets.make(mp.root, "BF16", "sharded")
    recipe, density = families.smallest(method, family), ("--density", "0.4")
    budgets.analyze(mp, family, *density)
    want = digest(mp, recipe)
    other = mp.root / "elsewhere" / "other.db"
    mp.ok("analyze", family.base, *family.experts[::-1], *budgets.BLOCKS, *density, "--threads", 1, "--catalog", other)
    assert digest(mp, recipe, "--catalog", other) == want, "a rebuilt catalog"
    one = mp.root / "one.db"
    for expert in family.experts:
        mp.ok("analyze", family.base, expert, *budgets.BLOCKS, "--catalog", one)
    mp.ok("analyze", family.base, *family.experts, *budgets.BLOCKS, *density, "--catalog", one)
    assert digest(mp, recipe, "--catalog", one) == want, "filled bit by bit"
    budgets.analyze(mp, family, *density)
    assert digest(mp, recipe) == want, "analysed twice"
    for threads in (1, 3, 8):
        assert digest(mp, recipe, "--threads", threads) == want, f"{threads} threads"


def test_the_digest_depends_neither_on_paths_nor_on_the_instruction_set(mp):
    seen = set()
    for place in ("here", "there/deeper"):
        budgets.make(mp.root / place)
        recipe = mp.recipe(recipes.models("task_arithmetic", "base", ["e0", "e1"], {"weight": 0.5}))
        for target in ("scalar", None):
            env = {"XDG_CACHE_HOME": str(mp.fresh("cache"))} | ({"MERGEPIPE_TARGET": target} if target else {})
            mp.ok("analyze", "base", "e0", "e1", *budgets.BLOCKS, cwd=mp.root / place, env=env)
            told = mp.ok("plan", recipe, "--budget", "20%", "--json", *budgets.BLOCKS, cwd=mp.root / place, env=env).json
            seen.add((told["plan_digest"], told["expert_read_bytes"], told["predicted_deviation"]["relative_to_update"]))
    assert len(seen) == 1, seen


@pytest.mark.parametrize("known", (False, True))
def test_a_merge_teaches_the_catalog_nothing(known, mp):
    """So that the same request gives the same plan, the second time too."""
    family = budgets.make(mp.root)
    if known:
        budgets.analyze(mp, family)
    recipe = families.smallest("ties", family)
    first, out = budgets.merge_to(mp, recipe, "--budget", "30%")
    budgets.merge(mp, recipe)
    second, again = budgets.merge_to(mp, recipe, "--budget", "30%")
    assert (first["plan_digest"], first["root_digest"]) == (second["plan_digest"], second["root_digest"])
    assert budgets.weights(out) == budgets.weights(again)


def test_everything_that_is_planned_by_is_in_the_digest(mp):
    family = budgets.make(mp.root)
    recipe = families.smallest("ties", family)
    budgets.analyze(mp, family)
    # Inner products play no part in sign elections, so that gram and norm choose alike here and make the same plan.
    ways = [("--budget", "20%"), ("--budget", "30%"), ("--budget", "20%", "--policy", "random"), ("--budget", "20%", "--policy", "uniform")]
    told = [budgets.plan(mp, recipe, *w)["plan_digest"] for w in ways]
    told.append(mp.ok("plan", mp.recipe(recipe), "--json", "--budget", "20%", "--block-size", "32KiB").json["plan_digest"])
    budgets.analyze(mp, family, "--density", "0.4")
    told.append(budgets.plan(mp, recipe, *ways[0])["plan_digest"])  # whole thresholds now
    assert len(set(told)) == len(told), told


def test_a_changed_expert_has_another_digest_though_nothing_shows_it(mp):
    """Same header, size, inode, modification time: what was analysed of the old bytes is not used for the new ones."""
    family = budgets.make(mp.root)
    recipe = families.smallest("task_arithmetic", family)
    budgets.analyze(mp, family)
    before = budgets.plan(mp, recipe, "--budget", "0")["plan_digest"], digest(mp, recipe)
    retune(family.experts[1], 77)
    told, _ = budgets.merge(mp, recipe, "--budget", "20%")
    assert told["statistics"] == "sampled", "statistics of other bytes were used"
    budgets.analyze(mp, family)
    after = budgets.plan(mp, recipe, "--budget", "0")["plan_digest"], digest(mp, recipe)
    assert before[0] != after[0], "the mask is the same, the content is not"
    assert before[1] != after[1]


def test_a_copy_is_known_by_its_content_once_it_was_read(mp):
    """Under another path, with other times, in another number of shards: the same plan."""
    family = budgets.make(mp.root, layout="single")
    recipe = families.smallest("task_arithmetic", family)
    budgets.analyze(mp, family)
    want = digest(mp, recipe)
    copy = checkpoints.save(mp.root / "copy", family.load(family.experts[1]))
    os.utime(copy / "model.safetensors", (1, 1))
    moved = families.Family(family.base, [family.experts[0], copy, family.experts[2]])
    budgets.analyze(mp, moved)
    assert digest(mp, families.smallest("task_arithmetic", moved)) == want


def test_a_moved_expert_is_still_known(mp):
    """A rename changes nothing that was looked at, or costs an analysis; it never gives another family's statistics."""
    family = budgets.make(mp.root)
    budgets.analyze(mp, family)
    swap = mp.root / "swap"
    family.experts[0].rename(swap)
    family.experts[1].rename(family.experts[0])
    swap.rename(family.experts[1])
    recipe = families.smallest("task_arithmetic", family)
    told, got = budgets.merge(mp, recipe, "--budget", "20%")
    budgets.analyze(mp, family)
    fresh, want = budgets.merge(mp, recipe, "--budget", "20%")
    if told["statistics"] == "full":
        assert told["plan_digest"] == fresh["plan_digest"]
        assert all(checkpoints.same_bits(got[n], t) for n, t in want.items())


# --- saved plans -----------------------------------------------------------------------------------------------------


def save_plan(mp, recipe, *flags):
    path = mp.fresh("plan", ".json")
    mp.ok("plan", mp.recipe(recipe), "-o", path, *budgets.BLOCKS, *flags)
    return path


@pytest.mark.parametrize("known", (False, True))
@pytest.mark.parametrize("method", recipes.METHODS)
def test_a_saved_plan_gives_what_a_merge_gives(method, known, mp):
    family = budgets.make(mp.root, "BF16", "sharded")
    recipe = families.smallest(method, family)
    if known:
        budgets.analyze(mp, family, "--density", "0.4")
    for flags in (("--budget", "25%"), ()):
        path, out = save_plan(mp, recipe, *flags), mp.fresh("out")
        ran = mp.ok("run", path, out, "--json").json
        merged, direct = budgets.merge_to(mp, recipe, *flags)
        assert budgets.weights(out) == budgets.weights(direct)
        assert (ran["plan_digest"], ran["root_digest"]) == (merged["plan_digest"], merged["root_digest"])
        assert ran["io"]["expert_read_bytes"] <= (merged["budget_bytes"] or ran["io"]["expert_read_bytes"])
        mp.ok("verify", out)


def test_a_saved_plan_needs_no_catalog(mp):
    family = budgets.make(mp.root)
    recipe = families.smallest("ties", family)
    budgets.analyze(mp, family, "--density", "0.4")
    path, (_, direct) = save_plan(mp, recipe, "--budget", "25%"), budgets.merge_to(mp, recipe, "--budget", "25%")
    shutil.rmtree(mp.root / "cache")
    mp.ok("run", path, mp.root / "out")
    assert budgets.weights(mp.root / "out") == budgets.weights(direct)


def test_planning_twice_saves_the_same_plan(mp):
    family = budgets.make(mp.root)
    budgets.analyze(mp, family)
    recipe = mp.recipe(families.smallest("ties", family))
    saved = []
    for name in ("a.json", "b.json"):
        mp.ok("plan", recipe, "-o", mp.root / name, "--budget", "25%", *budgets.BLOCKS)
        saved.append((mp.root / name).read_bytes())
    assert saved[0] == saved[1]


@pytest.mark.parametrize("known", (False, True))
@pytest.mark.parametrize("changed", ("base", "e1"))
def test_run_names_an_input_that_changed_and_publishes_nothing(changed, known, mp):
    """Same header, size and times; the whole model has other values, so every block that is read has."""
    family = budgets.make(mp.root)
    if known:
        budgets.analyze(mp, family)
    path = save_plan(mp, families.smallest("task_arithmetic", family), "--budget", "40%")
    retune(mp.root / changed, 55)
    before = checkpoints.digests(mp.root, ignore=("cache",))
    run = mp.run("run", path, mp.root / "out")
    assert run.status == 2 and changed in run.err, f"exit {run.status}\n{run.err}"
    assert checkpoints.digests(mp.root, ignore=("cache",)) == before


def test_run_finds_a_change_behind_an_unchanged_stamp(mp):
    """A block device's trick: the old bytes' stamp cannot be faked, so a plan of a copy stands for it. One element of what is read differs."""
    family = budgets.make(mp.root, experts=1)
    budgets.analyze(mp, family)
    path = save_plan(mp, families.smallest("task_arithmetic", family), "--budget", "40%")
    (expert,) = family.experts
    tensors = dict(family.load(expert))
    name = max(tensors, key=lambda n: np.abs(tensors[n].values() - family.load(family.base)[n].values()).max())
    bits = tensors[name].bits.copy()
    bits.ravel()[:] = bits.ravel()[::-1]
    checkpoints.write_file(expert / "model.safetensors", tensors | {name: Tensor("F32", bits)})
    run = mp.run("run", path, mp.root / "out")
    assert run.status == 2 and expert.name in run.err and not (mp.root / "out").exists()


@pytest.mark.parametrize("damage", ("cut", "digit", "empty", "other"))
def test_a_damaged_plan_is_refused(damage, mp):
    family = budgets.make(mp.root)
    budgets.analyze(mp, family)
    path = save_plan(mp, families.smallest("task_arithmetic", family), "--budget", "40%")
    text = path.read_text()
    at = text.index('"', len(text) // 2)
    path.write_text({"cut": text[: len(text) // 2], "digit": text[:at] + "0" + text[at:], "empty": "", "other": "{}"}[damage])
    run = mp.run("run", path, mp.root / "out")
    assert run.status in (2, 3) and path.name in run.err and not (mp.root / "out").exists()


def test_every_flipped_digit_of_a_plan_is_noticed(mp):
    """A plan whose mask was altered is not run as if it were the one that was planned."""
    family = budgets.make(mp.root, experts=1, layers=1)
    budgets.analyze(mp, family)
    path = save_plan(mp, families.smallest("task_arithmetic", family), "--budget", "40%")
    text = path.read_text()
    want = mp.ok("run", path, mp.root / "want", "--json").json["root_digest"]
    digits = [i for i, c in enumerate(text) if c in "0123456789abcdef" and text[i - 1] not in "\\"]
    for at in np.random.default_rng(1).choice(digits, 40, replace=False):
        flipped = "1" if text[at] == "0" else "0"
        path.write_text(text[:at] + flipped + text[at + 1 :])
        out = mp.fresh("out")
        run = mp.run("run", path, out, "--json")
        if run.status == 0:
            assert run.json["root_digest"] == want, f"byte {at}: {text[at - 40 : at + 40]!r}"
        else:
            assert run.status in (2, 3) and not out.exists(), f"byte {at}: exit {run.status}\n{run.err}"


# --- replay, verify, resume ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", (False, True))
@pytest.mark.parametrize("method", recipes.METHODS)
def test_replay_needs_no_catalog(method, known, mp):
    """The manifest has the mask, the thresholds, and the digests of all that was read."""
    family = budgets.make(mp.root, "BF16", "sharded")
    if known:
        budgets.analyze(mp, family, "--density", "0.4")
    told, out = budgets.merge_to(mp, families.smallest(method, family), "--budget", "30%", "--seed", 3)
    shutil.rmtree(mp.root / "cache", ignore_errors=True)
    again = mp.ok("replay", out, mp.root / "again", "--json").json
    assert budgets.weights(mp.root / "again") == budgets.weights(out)
    assert again["root_digest"] == told["root_digest"]
    assert again["io"]["expert_read_bytes"] <= told["budget_bytes"]
    mp.ok("verify", mp.root / "again")
    mp.ok("verify", out)


def test_replay_under_a_budget_names_an_input_that_changed(mp):
    family = budgets.make(mp.root)
    budgets.analyze(mp, family)
    _, out = budgets.merge_to(mp, families.smallest("task_arithmetic", family), "--budget", "40%")
    retune(family.experts[2], 5)
    run = mp.run("replay", out, mp.root / "again")
    assert run.status == 2 and family.experts[2].name in run.err and not (mp.root / "again").exists()


def test_replay_does_not_mind_a_change_where_nothing_was_read(mp):
    """Nothing beyond B is read, so nobody can know; the bytes are the same."""
    family = budgets.make(mp.root)
    _, out = budgets.merge_to(mp, families.smallest("task_arithmetic", family), "--budget", "0")
    retune(family.experts[2], 5)
    run = mp.run("replay", out, mp.root / "again", "--json")
    assert run.status == 2 or budgets.weights(mp.root / "again") == budgets.weights(out)
    assert run.status == 2 or run.json["io"]["expert_read_bytes"] == 0


BIG = dict(layers=3, hidden=512, inner=1536, vocab=4096)  # 28 MB


def written(process):
    counts = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
    return max(int(counts["wchar"]), int(counts["write_bytes"]))


def interrupt(mp, recipe, out, number, *flags):
    """Starts a slow merge and sends it a signal when a third is written."""
    process = mp.start("merge", recipe, out, *flags, "--threads", "1", env={"MERGEPIPE_TARGET": "scalar"})
    end = time.monotonic() + 60
    while process.poll() is None and written(process) < 10 << 20:
        assert time.monotonic() < end, "nothing happened for a minute"
    assert process.poll() is None, f"the merge ended before it was met midway: {process.communicate()}"
    process.send_signal(number)
    process.communicate(timeout=60)


@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGKILL))
def test_a_resumed_merge_stays_within_its_budget_slow(number, mp):
    """The ledger is carried on: what was read before the stop counts."""
    random = np.random.default_rng(1)
    bits = lambda shape: random.integers(0, 1 << 16, shape, np.uint16) & np.uint16(0x807F) | np.uint16(0x3D00)
    model = lambda: {n: Tensor("BF16", bits(s)) for n, s in checkpoints.llama_shapes(**BIG).items()}
    family = families.write(mp.root, model(), [model(), model()], "sharded")
    recipe = mp.recipe(recipes.models("dare_ties", family.base, family.experts, {"weight": 0.5, "density": 0.5}))
    flags = ("--budget", "50%", *budgets.BLOCKS)
    mp.ok("analyze", family.base, *family.experts, *budgets.BLOCKS)
    interrupt(mp, recipe, mp.root / "out", number, *flags)
    assert not (mp.root / "out").exists()
    resumed = mp.ok("merge", recipe, mp.root / "out", "--resume", "--json", *flags).json
    whole = mp.ok("merge", recipe, mp.root / "whole", "--json", *flags).json
    assert resumed["root_digest"] == whole["root_digest"]
    assert budgets.weights(mp.root / "out") == budgets.weights(mp.root / "whole")
    assert budgets.ledger_faults(resumed, resumed["budget_bytes"]) == []
    assert resumed["io"]["expert_read_bytes"] >= whole["io"]["expert_read_bytes"] * 0.99, "the ledger is not carried on"


# --- the catalog ----------------------------------------------------------------------------------------------------


def overwrite(at):
    def damage(path):
        with open(path, "r+b") as f:
            f.seek(int(at * path.stat().st_size) // 4096 * 4096)
            f.write(b"\xff" * 4096)

    return damage


DAMAGES = {
    "head": overwrite(0), "middle": overwrite(0.5), "end": overwrite(0.9),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "text": lambda path: path.write_text("not a database\n" * 100),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_catalog_is_told_or_does_no_harm(damage, mp):
    family = budgets.make(mp.root)
    recipe = families.smallest("task_arithmetic", family)
    right = [budgets.weights(budgets.merge_to(mp, recipe, "--budget", "30%")[1])]
    budgets.analyze(mp, family)
    right.append(budgets.weights(budgets.merge_to(mp, recipe, "--budget", "30%")[1]))
    catalog = mp.root / "cache" / "mergepipe" / "catalog.db"
    DAMAGES[damage](catalog)
    for flags in (("--budget", "30%"), ("--max-deviation", "0.5"), ()):
        out = mp.fresh("out")
        run = mp.run("merge", mp.recipe(recipe), out, *flags, *budgets.BLOCKS)
        if run.status == 0 and flags and flags[0] == "--budget":
            assert budgets.weights(out) in right, "a damaged catalog gave another plan"
        elif run.status:
            assert run.status in (1, 2) and not out.exists()
            assert catalog.name in run.err or "analyze" in run.err, run.err
    run = mp.run("analyze", family.base, *family.experts, *budgets.BLOCKS)
    assert run.status == 0 or (run.status in (1, 2) and catalog.name in run.err), run.err


def test_processes_share_a_catalog(mp):
    """Four analyses at once: each is done or told to try again, and afterwards all is known."""
    family = budgets.make(mp.root, experts=4)
    started = [mp.start("analyze", family.base, e, *budgets.BLOCKS) for e in family.experts]
    for process in started:
        _, err = process.communicate(timeout=60)
        assert process.returncode in (0, 75), err
    budgets.analyze(mp, family)
    told, _ = budgets.merge(mp, families.smallest("ties", family), "--budget", "20%")
    assert told["statistics"] == "full"


def test_an_analysis_that_is_killed_is_done_again(mp):
    family = budgets.make(mp.root, "BF16", experts=2, hidden=512, inner=1024, vocab=4096)
    process = mp.start("analyze", family.base, *family.experts, *budgets.BLOCKS, env={"MERGEPIPE_TARGET": "scalar"})
    try:
        process.wait(0.15)
    except subprocess.TimeoutExpired:
        process.kill()
    process.communicate()
    budgets.analyze(mp, family)
    other = mp.root / "other.db"
    budgets.analyze(mp, family, "--catalog", other)
    recipe = families.smallest("task_arithmetic", family)
    assert digest(mp, recipe) == digest(mp, recipe, "--catalog", other)


def test_a_forgotten_expert_is_unknown(mp):
    family = budgets.make(mp.root, "BF16", experts=2, hidden=256, inner=512, vocab=2048)
    budgets.analyze(mp, family)
    recipe = families.smallest("task_arithmetic", family)
    listed = mp.ok("catalog", "list", "--json").out
    assert all(str(e) in listed for e in family.experts)
    mp.ok("catalog", "show", family.experts[0])
    mp.ok("catalog", "forget", family.experts[0])
    assert budgets.plan(mp, recipe, "--budget", "30%")["statistics"] == "sampled"
    assert str(family.experts[0]) not in mp.ok("catalog", "list", "--json").out
    budgets.analyze(mp, family)
    assert budgets.plan(mp, recipe, "--budget", "30%")["statistics"] == "full"


def test_the_catalog_is_found_by_flag_environment_and_default(mp):
    family = budgets.make(mp.root, experts=1)
    mp.ok("analyze", family.base, *family.experts, *budgets.BLOCKS, env={"MERGEPIPE_CATALOG": str(mp.root / "env.db")})
    mp.ok("analyze", family.base, *family.experts, *budgets.BLOCKS, "--catalog", mp.root / "flag.db")
    assert not (mp.root / "cache").exists()
    budgets.analyze(mp, family)
    assert all(p.stat().st_size for p in (mp.root / "env.db", mp.root / "flag.db", mp.root / "cache/mergepipe/catalog.db"))


def test_a_read_only_catalog_serves_plans(mp):
    family = budgets.make(mp.root, experts=2)
    recipe = families.smallest("task_arithmetic", family)
    budgets.analyze(mp, family)
    want, folder = digest(mp, recipe), mp.root / "cache" / "mergepipe"
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert digest(mp, recipe) == want
    finally:
        folder.chmod(0o755)


def test_no_catalog_is_made_by_reading(mp):
    family = budgets.make(mp.root, experts=1)
    budgets.merge(mp, families.smallest("task_arithmetic", family), "--budget", "30%")
    assert not list(mp.root.rglob("catalog.db"))
