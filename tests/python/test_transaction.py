"""All or nothing: the output path shows the old state or the new complete checkpoint, through errors, signals and full disks."""

import json
import os
import resource
import shutil
import signal
import stat
import time
from pathlib import Path

import numpy as np
import pytest

import checkpoints
import families
import recipes
from checkpoints import Tensor, digests

SIZE = dict(layers=3, hidden=512, inner=1536, vocab=4096)  # 14 M elements, 28 MB


def quickly_made(seed):
    """A large model of random bits: both signs, magnitudes from 1/32 to 1/16."""
    random = np.random.default_rng(seed)
    bits = lambda shape: random.integers(0, 1 << 16, shape, np.uint16) & np.uint16(0x807F) | np.uint16(0x3D00)
    return {name: Tensor("BF16", bits(shape)) for name, shape in checkpoints.llama_shapes(**SIZE).items()}


@pytest.fixture
def slow(mp):
    """A recipe and flags; start() runs it slowly enough to be met midway, quickly() does not."""
    family = families.write(mp.root, quickly_made(0), [quickly_made(1), quickly_made(2)], "sharded")
    recipe = recipes.models("dare_ties", family.base, family.experts, {"weight": 0.5, "density": 0.5})
    return mp.recipe(recipe), ["--block-size", "16KiB"]


def start(mp, slow, out, *flags):
    recipe, same = slow
    return mp.start("merge", recipe, out, *same, "--threads", "1", *flags, env={"MERGEPIPE_TARGET": "scalar"})


def quickly(mp, slow, out, *flags):
    """The same bytes, from all cores and the best kernels; yields the report."""
    recipe, same = slow
    return mp.ok("merge", recipe, out, *same, "--json", *flags).json


def staging_of(out):
    return out.parent / f".{out.name}.mergepipe-staging"


def wait_until(process, condition):
    """Looks again and again until the condition holds; the program must still run then."""
    end = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, f"the merge ended before it was met midway: {process.communicate()}"
        assert time.monotonic() < end, "nothing happened for a minute"


def written(process):
    """Bytes that a process has written so far."""
    counts = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
    return max(int(counts["wchar"]), int(counts["write_bytes"]))


def a_third_is_written(process):
    return lambda: process.poll() is None and written(process) > 10 << 20


def interrupt_midway(mp, slow, out, number, *flags):
    """Sends a signal once a third of the output is written; yields the finished process."""
    process = start(mp, slow, out, *flags)
    wait_until(process, a_third_is_written(process))
    process.send_signal(number)
    process.communicate(timeout=60)
    return process


def weights(out):
    return {n: d for n, d in digests(out).items() if n.endswith((".safetensors", ".index.json", "config.json"))}


# --- interruption ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_midway_ends_cleanly_and_a_resume_gives_the_same_bytes(number, status, mp, slow):
    out = mp.root / "out"
    process = interrupt_midway(mp, slow, out, number)
    assert process.returncode == status
    assert not out.exists()
    left = set(os.listdir(mp.root))
    assert {n for n in left if n.startswith(".")} <= {staging_of(out).name}
    resumed, whole = quickly(mp, slow, out, "--resume"), quickly(mp, slow, mp.root / "whole")
    assert resumed["root_digest"] == whole["root_digest"]
    assert resumed["io"]["expert_read_bytes"] >= whole["io"]["expert_read_bytes"], "the ledger is carried on"
    assert not staging_of(out).exists()
    assert digests(out).keys() == digests(mp.root / "whole").keys()
    assert weights(out) == weights(mp.root / "whole")
    mp.ok("verify", out)


@pytest.mark.parametrize("flags", ([], ["--resume"]))
def test_a_kill_midway_leaves_no_output_and_the_next_run_works(flags, mp, slow):
    out = mp.root / "out"
    process = interrupt_midway(mp, slow, out, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not out.exists()
    quickly(mp, slow, out, *flags)
    quickly(mp, slow, mp.root / "whole")
    assert weights(out) == weights(mp.root / "whole")
    assert not staging_of(out).exists()
    mp.ok("verify", out)


def test_an_interruption_is_told_on_both_streams(mp, slow):
    """One object on stdout with --json, and on stderr what was kept and how to go on."""
    process = start(mp, slow, mp.root / "out", "--json")
    wait_until(process, a_third_is_written(process))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(out)["error"]["kind"]
    assert staging_of(mp.root / "out").exists() and "--resume" in err


def test_a_resume_never_mixes_two_merges(mp, slow):
    """An expert changes between the kill and the resume: the result is the new merge, or a refusal."""
    out = mp.root / "out"
    interrupt_midway(mp, slow, out, signal.SIGKILL)
    checkpoints.save(mp.root / "e0", quickly_made(77), "sharded")
    recipe, same = slow
    run = mp.run("merge", recipe, out, *same, "--resume")
    if run.status == 0:
        quickly(mp, slow, mp.root / "whole")
        assert weights(out) == weights(mp.root / "whole")
    else:
        assert run.status == 2 and not out.exists()


def test_a_resume_of_another_recipe_is_not_a_continuation(mp, slow):
    out = mp.root / "out"
    interrupt_midway(mp, slow, out, signal.SIGKILL)
    other = mp.recipe(recipes.models("linear", None, [mp.root / "e1"], {"weight": 1}))
    run = mp.run("merge", other, out, "--resume")
    if run.status == 0:
        want = checkpoints.read_checkpoint(mp.root / "e1")
        assert all(checkpoints.same_bits(t, want[n]) for n, t in checkpoints.read_checkpoint(out).items())
    else:
        assert run.status == 2 and not out.exists()
        assert staging_of(out).exists(), "work that the refused run was not made for is left alone"


def has_read(process, size):
    """True once a process has read so many bytes."""
    counts = lambda: dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
    return lambda: process.poll() is None and int(counts()["rchar"]) > size


@pytest.mark.parametrize("method", ("arcee_fusion", "model_stock by rows", "nuslerp by columns", "sce", "breadcrumbs rescaled", "della", "karcher"))
def test_threads_that_wait_for_each_other_end_when_they_are_told(method, mp, slow):
    """Rounds that take a tensor in order, or twice: a signal finds them at any place, and the resumed merge has the same bytes."""
    family = families.Family(mp.root / "base", [mp.root / "e0", mp.root / "e1"])
    recipe, out = mp.recipe(families.smallest(method, family)), mp.root / "out"
    least = mp.ok("plan", recipe, "--json").json["least_memory_bytes"]
    flags = ["--block-size", "16KiB", "--threads", "4", "--memory", f"{least + (4 << 20)}B"]
    for read in (1, 20, 60):
        process = mp.start("merge", recipe, out, *flags, "--resume", env={"MERGEPIPE_TARGET": "scalar"})
        wait_until(process, has_read(process, read << 20))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130 and not out.exists()
    mp.ok("merge", recipe, out, *flags, "--resume")
    mp.ok("merge", recipe, mp.root / "whole", *flags)
    assert weights(out) == weights(mp.root / "whole")


def test_resume_with_nothing_to_resume_is_a_merge(mp):
    family = families.make(mp.root)
    recipe = families.smallest("ties", family)
    assert weights(mp.merge(recipe, "--resume")) == weights(mp.merge(recipe))


def test_a_kill_while_replacing_leaves_the_old_output_whole(mp, slow):
    out = mp.merge(recipes.models("linear", None, [mp.root / "base"], {"weight": 1}))
    before = digests(out)
    interrupt_midway(mp, slow, out, signal.SIGKILL, "--force")
    assert digests(out) == before
    quickly(mp, slow, out, "--force")
    assert digests(out) != before and not staging_of(out).exists()
    mp.ok("verify", out)


def test_a_watcher_sees_nothing_or_everything(mp, slow):
    """While a merge runs the output path is absent; the first moment it is there it is complete."""
    out = mp.root / "out"
    process = start(mp, slow, out)
    while process.poll() is None and not out.exists():
        pass
    seen = set(os.listdir(out))
    assert process.wait(60) == 0
    assert seen == set(os.listdir(out)) and "mergepipe_manifest.json" in seen
    mp.ok("verify", out)


def test_a_watcher_of_a_replaced_output_never_misses_it(mp, slow):
    """--force exchanges: at every moment the path holds one complete checkpoint."""
    out = mp.merge(recipes.models("linear", None, [mp.root / "base"], {"weight": 1}))
    process = start(mp, slow, out, "--force")
    looks = 0
    while process.poll() is None:
        assert (out / "mergepipe_manifest.json").exists()
        looks += 1
    assert process.returncode == 0 and looks > 100


def test_two_merges_into_one_output_do_not_mix(mp, slow):
    out = mp.root / "out"
    first, second = (start(mp, slow, out, "--seed", s) for s in ("1", "2"))
    statuses = [p.wait(120) for p in (first, second)]
    assert 0 in statuses and set(statuses) <= {0, 1, 2, 75}
    mp.ok("verify", out)
    assert not [n for n in os.listdir(mp.root) if n.startswith(".")]


# --- existing and dangerous outputs ----------------------------------------------------------------------------------


def test_an_existing_output_is_refused_without_force_and_replaced_as_a_whole_with_it(mp):
    family = families.make(mp.root)
    out = mp.merge(families.smallest("linear", family))
    (out / "notes.txt").write_text("of the old one\n")
    before, recipe = digests(out), mp.recipe(families.smallest("ties", family))
    run = mp.run("merge", recipe, out)
    assert run.status == 2 and str(out) in run.err and "--force" in run.err
    assert digests(out) == before
    mp.ok("merge", recipe, out, "--force")
    assert not (out / "notes.txt").exists()
    mp.ok("verify", out)


@pytest.mark.parametrize("kind", ("file", "empty folder", "dangling link", "link"))
def test_whatever_is_at_the_output_path_is_not_overwritten_unasked(kind, mp):
    family, out = families.make(mp.root), mp.root / "there"
    other = mp.root / "other"
    other.mkdir()
    if kind == "file":
        out.write_text("mine\n")
    elif kind == "empty folder":
        out.mkdir()
    else:
        (other / "notes.txt").write_text("mine\n")
        out.symlink_to("other" if kind == "link" else "gone")
    before = digests(mp.root)
    run = mp.run("merge", mp.recipe(families.smallest("linear", family)), out)
    if kind == "empty folder" and run.status == 0:
        return  # an empty folder may be filled
    assert run.status == 2 and str(out.resolve() if kind == "link" else out) in run.err
    after = digests(mp.root, ignore=("cache",))
    assert {n: d for n, d in after.items() if not n.startswith("recipe")} == before


def dangerous(mp, family):
    """Outputs that are, hold, or lie inside an input, by every spelling."""
    (mp.root / "alias").symlink_to("base")
    (mp.root / "up").mkdir()
    (mp.root / "up" / "alias").symlink_to("../e0")
    return [
        "base", "./base/", "base/.", "alias", "e0", "base/inside", "base/deep/inside", "alias/inside", "up/alias", "up/alias/x", "up/../base",
        "base//", family.base, mp.root, ".", mp.root / "e1" / "model.safetensors",
    ]


def test_an_output_that_is_holds_or_lies_inside_an_input_is_refused_even_with_force(mp):
    family = families.make(mp.root)
    recipe = mp.recipe(families.smallest("task_arithmetic", family))
    outputs = dangerous(mp, family)
    before = digests(mp.root, ignore=("cache",))
    for out in outputs:
        run = mp.run("merge", recipe, out, "--force")
        assert run.status == 2, f"{out}: exit {run.status}"
        assert digests(mp.root, ignore=("cache",)) == before, out


def test_the_folder_of_a_single_file_input_is_not_an_output(mp):
    family = families.make(mp.root, layout="file")
    recipe = mp.recipe(families.smallest("task_arithmetic", family))
    before = digests(mp.root, ignore=("cache",))
    for out in ("e0", "base", "base/model.safetensors"):
        assert mp.run("merge", recipe, out, "--force").status == 2
    assert digests(mp.root, ignore=("cache",)) == before


def test_the_target_of_a_linked_input_is_not_an_output(mp):
    """Inputs that are links into a cache: the blobs' folder is an input too."""
    family = families.make(mp.root, experts=1)
    (mp.root / "hub").mkdir()
    shutil.move(family.experts[0], mp.root / "hub" / "real")
    family.experts[0].symlink_to("hub/real")
    recipe = mp.recipe(families.smallest("task_arithmetic", family))
    before = digests(mp.root, ignore=("cache",))
    for out in ("hub/real", "hub", "hub/real/x"):
        assert mp.run("merge", recipe, out, "--force").status == 2, out
    assert digests(mp.root, ignore=("cache",)) == before


# --- places that cannot be written -----------------------------------------------------------------------------------


def test_a_disk_that_is_too_small_is_told_beforehand(mp, tmpfs):
    """With what is needed and what is there; nothing is written to it."""
    small = tmpfs("small", "size=1m")
    family = families.make(mp.root, "F32", hidden=128, vocab=2000)
    run = mp.run("merge", mp.recipe(families.smallest("linear", family)), small / "out")
    assert run.status == 2 and "small" in run.err and "MiB" in run.err
    assert os.listdir(small) == []


def test_a_disk_that_fills_up_midway_fails_for_now_and_leaves_nothing(mp, slow, tmpfs):
    """Something else takes the space while the merge runs: exit status 75 (or 0 where the space was reserved in time)."""
    small = tmpfs("small", "size=80m")
    out = small / "out"
    process = start(mp, slow, out)
    wait_until(process, lambda: staging_of(out).exists())
    with open(small / "hog", "wb", buffering=0) as hog:
        try:
            while process.poll() is None:
                hog.write(b"x" * 65536)
        except OSError:
            pass
    _, err = process.communicate(timeout=60)
    assert process.returncode in (0, 75), err
    if process.returncode == 75:
        assert os.listdir(small) == ["hog"] and "space" in err.lower()
    else:
        mp.ok("verify", out)


def test_a_write_error_midway_leaves_nothing(mp):
    """A limit on file sizes that the shard exceeds: not a crash, and the output path stays empty."""
    family = families.make(mp.root, "F32", hidden=256, inner=1024, vocab=2000)

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    before = set(os.listdir(mp.root))
    recipe = mp.recipe(families.smallest("linear", family))
    run = mp.run("merge", recipe, mp.root / "out", preexec_fn=limit, restore_signals=False)
    assert run.status in (1, 2, 75) and run.err
    assert set(os.listdir(mp.root)) - before <= {recipe.name, "cache"}


def test_a_read_only_file_system_is_told_beforehand(mp, tmpfs):
    place = tmpfs("place", "size=1m,ro")
    family = families.make(mp.root)
    mp.refuse_to(place / "out", families.smallest("linear", family))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission_is_told_beforehand(mp):
    place = mp.root / "place"
    place.mkdir()
    family = families.make(mp.root)
    place.chmod(0o555)
    mp.refuse_to(place / "out", families.smallest("linear", family))


def test_a_parent_that_is_a_file_is_told_beforehand(mp):
    family = families.make(mp.root)
    (mp.root / "file").write_text("x")
    mp.refuse_to(mp.root / "file" / "out", families.smallest("linear", family))


@pytest.mark.parametrize("umask, file, folder", [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700), (0o002, 0o664, 0o775)])
def test_modes_follow_the_umask(umask, file, folder, mp):
    """Whatever the inputs' modes are: they may be read-only."""
    family = families.make(mp.root, layout="sharded")
    (family.base / "deep").mkdir()
    (family.base / "deep" / "note.txt").write_text("x")
    for path in family.base.rglob("*"):
        path.chmod(0o500 if path.is_dir() else 0o400)
    before = digests(family.base)
    out = mp.merge(families.smallest("ties", family), umask=umask)
    modes = {stat.S_IMODE(p.stat().st_mode) for p in (out, *out.rglob("*")) if p.is_dir()}
    assert modes == {folder}
    assert {stat.S_IMODE(p.stat().st_mode) for p in out.rglob("*") if p.is_file()} == {file}
    assert digests(family.base) == before


def test_inputs_are_opened_for_reading_only(mp):
    """Neither times nor modes of an input change."""
    family = families.make(mp.root, layout="sharded")
    files = [p for m in (family.base, *family.experts) for p in m.rglob("*")]
    before = [(p.stat().st_mtime_ns, p.stat().st_ctime_ns, p.stat().st_mode) for p in files]
    mp.ok("verify", mp.merge(families.smallest("ties", family)))
    assert [(p.stat().st_mtime_ns, p.stat().st_ctime_ns, p.stat().st_mode) for p in files] == before
