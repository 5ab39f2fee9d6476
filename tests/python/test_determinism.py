"""The same request gives the same bytes, however the machine goes about it."""

import os
import shutil
from pathlib import Path

import pytest

import families
import recipes
from checkpoints import digests

VARIANTS = ("ties rescaled", "breadcrumbs rescaled", "model_stock by rows", "nuslerp by rows", "nuslerp by columns", "multislerp of weights")
TARGETS = {"scalar": None, "sse4": "sse4_1", "avx2": "avx2", "avx512": "avx512f"}  # and the CPU flag that each needs


def weights(out):
    """The weight files and the index of an output: name and digest."""
    return {n: d for n, d in digests(out).items() if n.endswith((".safetensors", ".index.json"))}


@pytest.fixture
def wide(mp):
    """Tensors of 0.5 to 3 MB, sizes that no block size divides: blocks, threads and little memory really cut them."""
    return families.make(mp.root, "BF16", "sharded", experts=2, layers=1, hidden=509, inner=1501, vocab=3001)


def can_run(target):
    flag = TARGETS[target]
    return flag is None or flag in Path("/proc/cpuinfo").read_text().split()


@pytest.mark.parametrize("method", recipes.METHODS + VARIANTS)
def test_neither_threads_nor_memory_nor_blocks_nor_instructions_change_a_byte(method, mp, wide):
    recipe = families.smallest(method, wide)
    plan = mp.ok("plan", mp.recipe(recipe), "--json").json
    least = plan["least_memory_bytes"]
    ways = [["--threads", n] for n in (1, 8)]
    ways += [["--memory", f"{least}B"], ["--memory", f"{least + (4 << 20)}B", "--threads", 2], ["--memory", "1GiB"]]
    ways += [["--block-size", "16KiB"], ["--block-size", "4MiB"]]
    ways += [["--block-size", "32KiB", "--memory", f"{least + (2 << 20)}B", "--threads", 3]]
    want = weights(mp.merge(recipe))
    for way in ways:
        assert weights(mp.merge(recipe, *way)) == want, f"other bytes with {way}"
    for target in filter(can_run, TARGETS):
        assert weights(mp.merge(recipe, env={"MERGEPIPE_TARGET": target})) == want, f"other bytes with {target} kernels"


@pytest.mark.parametrize("dtype", ("F32", "F16", "mixed", "F64"))
@pytest.mark.parametrize("method", recipes.METHODS + VARIANTS)
def test_no_dtype_depends_on_instructions_or_blocks(method, dtype, mp):
    family = families.make(mp.root, dtype, experts=2, layers=1, hidden=97, inner=211, vocab=303)
    recipe = families.smallest(method, family)
    want = weights(mp.merge(recipe))
    for target in filter(can_run, TARGETS):
        assert weights(mp.merge(recipe, "--block-size", "16KiB", env={"MERGEPIPE_TARGET": target})) == want, target


def test_a_target_that_is_unknown_or_cannot_run_is_an_error(mp):
    """Forcing works, or fails: it never falls back silently."""
    family = families.make(mp.root)
    recipe = families.smallest("linear", family)
    for target in ["mmx", *(t for t in TARGETS if not can_run(t))]:
        mp.refuse(recipe, target, env={"MERGEPIPE_TARGET": target})


@pytest.mark.parametrize("method", ("ties", "dare_ties"))
def test_the_digests_depend_on_the_content_not_on_paths_threads_or_runs(method, mp):
    """The same folders under another path, other threads, another cache: equal plan and root digests."""
    for place in ("here", "there/deeper"):
        families.make(mp.root / place, layers=1)
    recipe = recipes.models(method, "base", ["e0", "e1"], {"weight": 0.5, "density": 0.5})
    path = mp.recipe(recipe)
    seen = []
    for place, flags in (("here", ["--threads", 1]), ("there/deeper", ["--threads", 8]), ("here", ["--memory", "64MiB"])):
        report = mp.ok("merge", path, mp.fresh("out"), "--json", *flags, cwd=mp.root / place, env={"XDG_CACHE_HOME": str(mp.fresh("cache"))}).json
        seen.append((report["plan_digest"], report["root_digest"]))
    assert seen[0] == seen[1]
    assert seen[0][1] == seen[2][1] or seen[0][0] != seen[2][0], "one plan with two results"


def test_the_digests_tell_recipes_seeds_and_inputs_apart(mp):
    family = families.make(mp.root)
    plain = recipes.models("dare_linear", family.base, family.experts, {"weight": 0.5, "density": 0.5})
    swapped = recipes.models("dare_linear", family.base, family.experts[::-1], {"weight": 0.5, "density": 0.5})
    reports = [mp.report(plain), mp.report(plain, "--seed", 7), mp.report(swapped)]
    assert len({r["root_digest"] for r in reports}) == 3
    assert reports[0]["plan_digest"] != reports[1]["plan_digest"], "the seed is part of the plan (contents are not: it knows headers only)"
    assert mp.report(plain)["root_digest"] == reports[0]["root_digest"]


def test_plan_and_merge_agree_on_the_digest_and_the_bytes(mp):
    family = families.make(mp.root, "BF16", "sharded")
    recipe = mp.recipe(families.smallest("task_arithmetic", family))
    plan = mp.ok("plan", recipe, "--json").json
    report = mp.ok("merge", recipe, mp.root / "out", "--json").json
    assert plan["plan_digest"] == report["plan_digest"]
    size = sum(p.stat().st_size for p in (mp.root / "out").rglob("*") if p.suffix == ".safetensors")
    assert abs(plan["output_bytes"] - size) <= 65536, "the planned output size is not the written one"


@pytest.mark.parametrize("method", recipes.METHODS + VARIANTS)
def test_replay_gives_the_same_bytes(method, mp):
    family = families.make(mp.root, "BF16", "sharded")
    out = mp.merge(families.smallest(method, family), "--seed", 5)
    report = mp.ok("replay", out, mp.root / "again", "--json").json
    assert weights(mp.root / "again") == weights(out)
    assert report["root_digest"] == mp.report(families.smallest(method, family), "--seed", 5)["root_digest"]
    for name in ("config.json", "mergekit_config.yml"):
        assert (mp.root / "again" / name).read_bytes() == (out / name).read_bytes()


def test_replay_works_from_another_folder_and_on_copied_inputs(mp):
    """An input is known by its content: a copy with another inode and time is the same input."""
    families.make(mp.root)
    out = mp.merge(recipes.models("ties", "base", ["e0", "e1"], {"weight": 0.5, "density": 0.5}), cwd=mp.root)
    shutil.move(mp.root / "e1", mp.root / "moved")
    shutil.copytree(mp.root / "moved", mp.root / "e1", copy_function=shutil.copy)
    (mp.root / "elsewhere").mkdir()
    mp.ok("replay", out, mp.root / "again", cwd=mp.root / "elsewhere")
    assert weights(mp.root / "again") == weights(out)


@pytest.mark.parametrize("name, text", [("tokenizer.json", '{"model": 1}'), ("config.json", "{}"), ("added.json", "{}"), ("vocab.txt", None)])
def test_replay_names_a_side_file_that_changed_and_writes_nothing(name, text, mp):
    family = families.make(mp.root)
    for side in ("tokenizer.json", "vocab.txt"):
        (family.base / side).write_text("{}\n")
    out = mp.merge(families.smallest("task_arithmetic", family))
    if text is None:
        (family.base / name).unlink()
    else:
        (family.base / name).write_text(text)
    run = mp.run("replay", out, mp.root / "again")
    assert run.status == 2 and str(family.base) in run.err and name in run.err
    assert not (mp.root / "again").exists()


@pytest.mark.parametrize("keep_times", (False, True))
def test_replay_names_an_input_that_changed_and_writes_nothing(keep_times, mp):
    """Even where size and modification time are those of the old file."""
    family = families.make(mp.root)
    out = mp.merge(families.smallest("task_arithmetic", family))
    changed = family.experts[1] / "model.safetensors"
    before, data = changed.stat(), bytearray(changed.read_bytes())
    data[-3] ^= 1
    changed.write_bytes(data)
    if keep_times:
        os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    run = mp.run("replay", out, mp.root / "again")
    assert run.status in (2, 3) and str(family.experts[1]) in run.err
    assert not (mp.root / "again").exists()
