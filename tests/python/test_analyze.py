"""analyze measures what numpy measures, knows files by their bytes, and survives what happens to a cache."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess

import numpy as np
import pytest

import checkpoints
import families
from checkpoints import Tensor

BLOCK = 16 << 10


def catalog_of(mp):
    return mp.root / "cache/mergepipe/catalog.db"


def analyze(mp, family, *flags, **start):
    return mp.ok("analyze", family.base, *family.experts, "--json", "--block-size", "16KiB", *flags, **start).json


# --- reading the tables as docs/catalog.md describes them


def rows(mp, sql, *values):
    with contextlib.closing(sqlite3.connect(catalog_of(mp))) as db:
        db.row_factory = sqlite3.Row
        return [dict(r) for r in db.execute(sql, values)]


def columns(mp, expert, base, name, block=BLOCK):
    """The row of delta_columns of one tensor, or None; expert and base are content digests."""
    sql = """SELECT d.* FROM delta_columns d, part e, part b, checkpoint ce, checkpoint cb
             WHERE ce.content = ? AND cb.content = ? AND e.checkpoint = ce.id AND b.checkpoint = cb.id AND e.name = ? AND b.name = e.name
             AND d.expert = e.tensor AND d.base = b.tensor AND d.block_bytes = ?"""
    found = rows(mp, sql, expert, base, name, block)
    return found[0] if found else None


def unpack_histogram(blob):
    numbers, value, shift = [], 0, 0
    for byte in blob:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(value)
            value = shift = 0
    out, bucket, count = {}, -1, 0
    for gap, change in zip(numbers[::2], numbers[1::2]):
        bucket += gap + 1
        count += (change >> 1) ^ -(change & 1)
        out[bucket] = count
    return out


def everything(mp):
    """All statistics by content, without the ids that depend on the order of commits."""
    sql = """SELECT e.digest AS expert_digest, b.digest AS base_digest, d.* FROM delta_columns d, tensor e, tensor b
             WHERE e.id = d.expert AND b.id = d.base ORDER BY e.digest, b.digest, d.block_bytes"""
    thresholds = """SELECT e.digest AS expert_digest, b.digest AS base_digest, d.* FROM threshold d, tensor e, tensor b
                    WHERE e.id = d.expert AND b.id = d.base ORDER BY e.digest, b.digest, d.kept"""
    bases = "SELECT t.digest AS tensor_digest, c.* FROM base_columns c, tensor t WHERE t.id = c.tensor ORDER BY t.digest, c.block_bytes"
    found = [rows(mp, s) for s in (sql, thresholds, bases)]
    return [[{k: v for k, v in r.items() if k not in ("expert", "base", "tensor")} for r in part] for part in found]


# --- the oracle


def delta_of(expert, base):
    wide = np.float64 if "F64" in (expert.dtype, base.dtype) else np.float32
    return expert.values(wide).ravel() - base.values(wide).ravel()


def keys_of(delta):
    return np.abs(delta).astype(np.float32).view(np.uint32)


def check_tensor(row, delta, base_bytes):
    size = BLOCK // base_bytes
    blocks = [delta[i : i + size] for i in range(0, len(delta), size)]
    energy = np.array([np.square(b.astype(np.float64)).sum() for b in blocks])
    np.testing.assert_allclose(np.frombuffer(row["energy"], "<f8"), energy, rtol=1e-12)
    assert np.frombuffer(row["nonzeros"], "<u4").tolist() == [int((b != 0).sum()) for b in blocks]
    assert np.frombuffer(row["max_key"], "<u4").tolist() == [int(keys_of(b).max()) for b in blocks]
    np.testing.assert_allclose(row["l1"], np.abs(delta.astype(np.float64)).sum(), rtol=1e-12)
    buckets, counts = np.unique(keys_of(delta) >> 15, return_counts=True)
    assert unpack_histogram(row["histogram"]) == dict(zip(buckets.tolist(), counts.tolist()))
    octaves = np.frombuffer(row["octaves"], "<u4").reshape(-1, 16)
    for got, block in zip(octaves, blocks):
        exponents = keys_of(block[block != 0]) >> 23
        top = int(keys_of(block).max()) >> 23
        want = np.bincount(np.minimum(top - exponents.astype(int), 15), minlength=16) if len(exponents) else np.zeros(16)
        assert got.tolist() == want.tolist()
    # What the sketch estimates: energies, within what 128 buckets can tell.
    scale = np.frombuffer(row["sketch_scale"], "<f4").astype(float)
    sketch = np.frombuffer(row["sketch"], "i1").reshape(-1, 128).astype(float)
    estimate = float(np.square(sketch * scale[:, None]).sum())
    assert abs(estimate - energy.sum()) <= 1.0 * energy.sum() + 1e-30
    assert len(row["digest"]) == 16 * len(blocks)


def check_threshold(found, delta, density):
    n = len(delta)
    kept = max(1, int(density * n))
    keys = keys_of(delta).astype(np.int64)
    order = np.lexsort((np.arange(n), -keys))[:kept]
    key = int(keys[order[-1]])
    (row,) = [r for r in found if r["kept"] == kept]
    assert row["key"] == key and row["equal_total"] == int((keys == key).sum())
    equal_kept = row["equal_total"] if key == 0 else int((keys[order] == key).sum())
    assert row["equal_kept"] == equal_kept
    assert row["cut_index"] == int(np.flatnonzero(keys == key)[equal_kept - 1]) + 1
    np.testing.assert_allclose(row["l1_kept"], np.abs(delta[order].astype(np.float64)).sum(), rtol=1e-6)
    np.testing.assert_allclose(row["l1_whole"], np.abs(delta.astype(np.float64)).sum(), rtol=1e-6)


@pytest.mark.parametrize("dtype,expert_dtype", [("BF16", None), ("F32", None), ("F16", "F32"), ("F32", "BF16"), ("F64", "F16"), ("BF16", "F64")])
def test_statistics_are_those_of_numpy(mp, dtype, expert_dtype):
    family = families.make(mp.root, dtype, experts=1, expert_dtype=expert_dtype, layers=1, hidden=160, vocab=250)
    report = analyze(mp, family, "--density", "0.2,0.01", "--density", "0.7")
    base, expert = family.load(family.base), family.load(family.experts[0])
    contents = report["experts"][0]["content"], report["base"]["content"]
    for name in base:
        delta = delta_of(expert[name], base[name])
        row = columns(mp, *contents, name)
        check_tensor(row, delta, base[name].bits.dtype.itemsize)
        found = rows(mp, "SELECT * FROM threshold WHERE expert = ? AND base = ?", row["expert"], row["base"])
        for density in (0.2, 0.01, 0.7):
            check_threshold(found, delta, density)


def test_ties_are_cut_where_sorting_cuts_them(mp):
    """Few distinct magnitudes, many zeros."""
    random = np.random.default_rng(5)
    shape = (300, 257)
    base = {"w": Tensor.of("F32", np.zeros(shape)), "v": Tensor.of("F32", np.zeros(40))}
    expert = {"w": Tensor.of("F32", random.integers(-3, 4, shape)), "v": Tensor.of("F32", random.integers(-1, 2, 40))}
    family = families.write(mp.root, base, [expert])
    for memory in ("256MiB", "14MiB"):
        report = analyze(mp, family, "--density", "0.05,0.3,0.5,0.8,0.95,0.999", "--memory", memory, "--force")
        for name in base:
            row = columns(mp, report["experts"][0]["content"], report["base"]["content"], name)
            found = rows(mp, "SELECT * FROM threshold WHERE expert = ? AND base = ?", row["expert"], row["base"])
            for density in (0.05, 0.3, 0.5, 0.8, 0.95, 0.999):
                check_threshold(found, delta_of(expert[name], base[name]), density)


def test_neither_threads_nor_memory_nor_kernels_change_a_bit(mp):
    family = families.make(mp.root, "BF16", experts=3, layers=1, hidden=700, vocab=3000)
    seen = []
    for flags, env in (([], {}), (["--threads", "1", "--memory", "10MiB"], {}), (["--threads", "7", "--memory", "40MiB"], {}),
                       ([], {"MERGEPIPE_TARGET": "scalar"}), ([], {"MERGEPIPE_TARGET": "sse4"})):
        shutil.rmtree(mp.root / "cache", ignore_errors=True)
        analyze(mp, family, "--density", "0.1,0.6", *flags, env=env)
        seen.append(everything(mp))
        assert len(seen[-1][0]) >= 30
    assert all(s == seen[0] for s in seen[1:])


# --- identity


def content(mp, base, expert):
    return mp.ok("analyze", base, expert, "--json").json["experts"][0]["content"]


def test_content_is_the_bytes_and_nothing_else(mp):
    family = families.make(mp.root, "mixed", experts=2)
    tensors = family.load(family.experts[0]) | {"steps": Tensor("I64", np.arange(5, dtype="<i8"))}
    first = content(mp, family.base, checkpoints.save(mp.root / "first", tensors))
    assert content(mp, family.base, checkpoints.save(mp.root / "parts", tensors, "sharded")) == first
    assert content(mp, family.base, checkpoints.save(mp.root / "backwards", dict(reversed(tensors.items())))) == first
    shutil.copytree(mp.root / "first", mp.root / "copy")
    assert content(mp, family.base, mp.root / "copy") == first
    os.utime(mp.root / "first/model.safetensors")
    assert content(mp, family.base, mp.root / "first") == first
    counted = tensors | {"steps": Tensor("I64", np.arange(5, dtype="<i8") + 1)}
    assert content(mp, family.base, checkpoints.save(mp.root / "counted", counted)) != first
    renamed = {("stepz" if n == "steps" else n): t for n, t in tensors.items()}
    assert content(mp, family.base, checkpoints.save(mp.root / "renamed", renamed)) != first
    assert content(mp, family.base, family.experts[1]) != first
    listed = mp.ok("catalog", "list", "--json").json["checkpoints"]
    assert sorted(len(c["paths"]) for c in listed) == [1, 1, 1, 1, 4]


def test_an_edit_in_place_is_noticed_whatever_the_times_say(mp):
    family = families.make(mp.root, "F32", experts=1)
    before = analyze(mp, family)
    path = family.experts[0] / "model.safetensors"
    times = os.stat(path)
    with open(path, "r+b") as f:
        f.seek(-3, os.SEEK_END)
        f.write(b"\x01")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = analyze(mp, family)
    assert after["experts"][0]["content"] != before["experts"][0]["content"]
    assert after["experts"][0]["read_bytes"] > 0


def test_what_is_known_is_not_read_again(mp):
    family = families.make(mp.root, "F32", experts=2)
    analyze(mp, family)
    again = analyze(mp, family)
    assert again["io"]["base_read_bytes"] == again["io"]["expert_read_bytes"] == 0
    assert all(e["reused_tensors"] == e["tensors"] for e in again["experts"])
    dense = analyze(mp, family, "--density", "0.5")
    assert dense["io"]["expert_read_bytes"] > 0
    assert analyze(mp, family, "--density", "0.5,1")["io"]["expert_read_bytes"] == 0
    assert analyze(mp, family, "--force")["io"]["expert_read_bytes"] > 0


def test_base_and_experts_are_read_once(mp):
    family = families.make(mp.root, "BF16", experts=3, layers=1, hidden=256, vocab=3000)
    size = sum(len(t.raw) for t in family.load(family.base).values())
    report = analyze(mp, family, "--density", "0.3")
    assert report["io"]["base_read_bytes"] == size and report["io"]["expert_read_bytes"] == 3 * size


@pytest.mark.parametrize("memory", (12, 40))
def test_memory_is_bounded(mp, memory):
    family = families.make(mp.root, "BF16", experts=2, layers=1, hidden=512, vocab=24000)
    report = analyze(mp, family, "--density", "0.3", "--memory", f"{memory}MiB")
    assert report["peak_memory_bytes"] < (memory + 64) << 20
    refusal = mp.run("analyze", family.base, *family.experts, "--memory", "1MiB", "--force")
    assert refusal.status == 2 and "are needed" in refusal.err


def test_tensors_that_can_not_be_compared_are_only_digested(mp):
    base = checkpoints.llama(1)
    odd = base | {"lm_head.weight": Tensor.of("F32", np.ones((3, 3))), "extra": Tensor.of("F32", np.ones(7)), "none": Tensor.of("F32", np.ones((0, 4)))}
    odd["model.norm.weight"] = Tensor("I32", np.ones(16, "<i4"))
    del odd["model.embed_tokens.weight"]
    family = families.write(mp.root, base, [odd])
    report = analyze(mp, family)
    contents = report["experts"][0]["content"], report["base"]["content"]
    assert columns(mp, *contents, "model.layers.0.mlp.up_proj.weight") is not None
    for name in ("lm_head.weight", "extra", "model.norm.weight"):
        assert columns(mp, *contents, name) is None
    assert analyze(mp, family)["io"]["expert_read_bytes"] == 0


def test_values_that_are_not_finite_leave_their_tensor_unknown(mp):
    base = checkpoints.llama(1)
    bad = checkpoints.fine_tune(base, 2)
    values = bad["lm_head.weight"].values().copy()
    values[3, 3] = np.nan
    bad["lm_head.weight"] = Tensor.of("F32", values)
    family = families.write(mp.root, base, [bad])
    run = mp.ok("analyze", family.base, *family.experts, "--json", "--density", "0.5")
    assert "lm_head.weight" in run.err and "NaN" in run.err
    again = mp.ok("analyze", family.base, *family.experts, "--json", "--density", "0.5").json
    assert again["io"]["expert_read_bytes"] == 0


def test_the_base_itself_and_strangers_are_refused(mp):
    family = families.make(mp.root, "F32", experts=1)
    stranger = checkpoints.save(mp.root / "stranger", {"other": Tensor.of("F32", np.ones(4))})
    for expert, word in ((family.base, "base itself"), (stranger, "no tensor of floats in common")):
        run = mp.run("analyze", family.base, expert)
        assert run.status == 2 and word in run.err
    assert not catalog_of(mp).exists()


# --- what happens to a cache


def refused(mp, status, *words, command=None, **start):
    run = mp.run(*(command or ("catalog", "list")), **start)
    assert run.status == status, f"{run.status}: {run.err}{run.out}"
    assert all(str(w) in run.err for w in words), run.err
    return run


def test_a_damaged_catalog_is_named_and_never_believed(mp):
    family = families.make(mp.root, "F32", experts=1, layers=1)
    analyze(mp, family)
    path, sound = catalog_of(mp), catalog_of(mp).read_bytes()
    command = ("analyze", family.base, *family.experts)
    path.write_text("this is no database, but it is long enough to be looked at" * 20)
    refused(mp, 2, path, "the catalog is damaged", "remove it", command=command)
    assert path.read_text().startswith("this")
    path.write_bytes(sound[: len(sound) // 2])
    refused(mp, 2, path, "the catalog is damaged", command=command)
    path.write_bytes(b"")
    mp.ok(*command)
    path.unlink()
    mp.ok(*command)


def test_flipped_bytes_never_give_another_answer(mp):
    """Each list and show either fails or tells what it told before."""
    family = families.make(mp.root, "F32", experts=1, layers=1)
    analyze(mp, family, "--density", "0.5")
    path, sound = catalog_of(mp), catalog_of(mp).read_bytes()
    known = mp.ok("catalog", "show", family.experts[0], "--json").json["content"]
    random = np.random.default_rng(1)
    for at in random.integers(100, len(sound), 40):
        damaged = bytearray(sound)
        damaged[at] ^= 0x55
        path.write_bytes(damaged)
        run = mp.run("catalog", "show", family.experts[0], "--json")
        assert run.status in (0, 1, 2), run.err
        if run.status == 0:
            assert run.json["content"] in (known, None)


def test_a_newer_catalog_is_refused_by_both_versions(mp):
    family = families.make(mp.root, "F32", experts=1, layers=1)
    analyze(mp, family)
    with contextlib.closing(sqlite3.connect(catalog_of(mp))) as db:
        db.execute("PRAGMA user_version = 7")
        db.commit()
    refused(mp, 2, catalog_of(mp), "format 7", "up to 1")
    refused(mp, 2, "format 7", command=("analyze", family.base, *family.experts))


def test_a_file_of_another_program_is_left_alone(mp):
    family = families.make(mp.root, "F32", experts=1, layers=1)
    other = mp.root / "other.db"
    with contextlib.closing(sqlite3.connect(other)) as db:
        db.execute("CREATE TABLE t (x)")
        db.commit()
    before = other.read_bytes()
    refused(mp, 2, other, "another program", command=("analyze", family.base, *family.experts, "--catalog", other))
    assert other.read_bytes() == before


def test_a_locked_catalog_asks_to_try_again(mp):
    family = families.make(mp.root, "F32", experts=1, layers=1)
    analyze(mp, family)
    with contextlib.closing(sqlite3.connect(catalog_of(mp), isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        refused(mp, 75, catalog_of(mp), "locked", command=("analyze", family.base, *family.experts, "--force"))


def test_a_read_only_catalog_can_be_read_and_not_written(mp, tmpfs):
    family = families.make(mp.root, "F32", experts=1, layers=1)
    folder = tmpfs("frozen", "size=64m")
    path = folder / "catalog.db"
    mp.ok("analyze", family.base, *family.experts, "--catalog", path)
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    assert len(mp.ok("catalog", "list", "--catalog", path, "--json").json["checkpoints"]) == 2
    refused(mp, 2, path, "can not be", command=("analyze", family.base, *family.experts, "--force", "--catalog", path))
    assert sorted(p.name for p in folder.iterdir()) == ["catalog.db"]


def test_listing_creates_nothing(mp):
    refused(mp, 2, catalog_of(mp), "there is no catalog yet")
    assert not (mp.root / "cache").exists()


def test_the_catalog_can_be_moved(mp):
    family = families.make(mp.root, "F32", experts=1, layers=1)
    assert mp.ok("analyze", family.base, *family.experts, "--json", env={"MERGEPIPE_CATALOG": str(mp.root / "a/b.db")}).json["catalog"] == str(mp.root / "a/b.db")
    assert (mp.root / "a/b.db").exists() and not catalog_of(mp).exists()


def test_forget_and_gc(mp):
    family = families.make(mp.root, "F32", experts=3, layers=1)
    analyze(mp, family)
    assert mp.ok("catalog", "forget", family.experts[0], "--json").json["removed_checkpoints"] == 1
    assert mp.run("catalog", "show", family.experts[0]).status == 2
    shutil.rmtree(family.experts[1])
    assert mp.ok("catalog", "gc", "--json").json["removed_checkpoints"] == 1
    left = mp.ok("catalog", "list", "--json").json["checkpoints"]
    assert sorted(p for c in left for p in c["paths"]) == sorted(map(str, (family.base, family.experts[2])))
    assert analyze(mp, families.Family(family.base, [family.experts[2]]))["io"]["expert_read_bytes"] == 0


# --- interruptions and company


@pytest.fixture
def large(mp):
    return families.make(mp.root, "BF16", experts=2, layers=5, hidden=512, inner=1400, vocab=6000)


def wait_for_findings(mp, process):
    """Until the catalog has something of an analysis that is still running."""
    while process.poll() is None:
        with contextlib.suppress(sqlite3.Error):
            if catalog_of(mp).exists() and rows(mp, "SELECT count(*) AS n FROM part")[0]["n"] > 0:
                return


@pytest.mark.parametrize("stop", (signal.SIGKILL, signal.SIGINT))
def test_stopped_and_run_again_it_goes_on(stop, mp, large):
    analyze(mp, large, "--density", "0.2")
    whole = everything(mp)
    reused = 0
    for _ in range(3):
        shutil.rmtree(mp.root / "cache")
        command = ("analyze", large.base, *large.experts, "--density", "0.2", "--block-size", "16KiB", "--threads", "1")
        with mp.start(*command, env={"MERGEPIPE_TARGET": "scalar"}) as process:
            wait_for_findings(mp, process)
            process.send_signal(stop)
            _, err = process.communicate()
        if stop == signal.SIGINT and process.returncode != 0:
            assert process.returncode == 130 and "the same command goes on" in err, err
        report = analyze(mp, large, "--density", "0.2")
        if process.returncode != 0:
            reused += sum(m["reused_tensors"] for m in (report["base"], *report["experts"]))
        assert everything(mp) == whole
    assert reused > 0


def test_two_at_once_agree(mp, large):
    alone = analyze(mp, large)
    whole = everything(mp)
    shutil.rmtree(mp.root / "cache")
    runs = [mp.start("analyze", large.base, *large.experts, "--json", "--block-size", "16KiB") for _ in range(3)]
    for process in runs:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert [e["content"] for e in json.loads(out)["experts"]] == [e["content"] for e in alone["experts"]]
    assert everything(mp) == whole


def test_the_catalog_is_small(mp):
    """Under 0.1 % at the size of real tensors; here one of 64 MiB stands for them."""
    random = np.random.default_rng(1)
    values = random.standard_normal((4096, 8192), np.float32) * 0.02
    base = {"w": Tensor.of("BF16", values)}
    tuned = {"w": Tensor.of("BF16", values + random.standard_normal(values.shape, np.float32) * np.float32(0.002))}
    family = families.write(mp.root, base, [tuned])
    report = mp.ok("analyze", family.base, *family.experts, "--json").json
    assert report["catalog_bytes"] < 2 * 64 * 1024 * 1024 // 1000
