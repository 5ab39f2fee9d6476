"""Odd places to work in: other file systems, few file descriptors, no home, no room for mappings."""

import json
import os
import resource
import shutil
import struct

import numpy as np
import pytest

import checkpoints
import families
import oracle
import recipes
from checkpoints import Tensor, read_checkpoint
from test_determinism import weights


def test_a_file_system_without_direct_io_gives_the_same_bytes(mp, tmpfs):
    """A tmpfs for the inputs, for the output, for both."""
    memory = tmpfs("memory", "size=64m")
    family = families.make(mp.root, "BF16", "sharded", layers=1, hidden=256)
    for path in (family.base, *family.experts):
        shutil.copytree(path, memory / path.name)
    path = mp.recipe(recipes.models("ties", "base", ["e0", "e1"], {"weight": 0.5, "density": 0.5}))
    outs = [mp.root / "one", memory / "two", mp.root / "three", memory / "four"]
    for out, inputs in zip(outs, (mp.root, mp.root, memory, memory)):
        mp.ok("merge", path, out, cwd=inputs)
        mp.ok("verify", out)
    assert all(weights(out) == weights(outs[0]) for out in outs)


def test_parents_of_the_output_are_made_and_not_left_behind_by_a_refusal(mp):
    family = families.make(mp.root)
    recipe = mp.recipe(families.smallest("ties", family))
    mp.ok("merge", recipe, mp.root / "a" / "b" / "out")
    mp.ok("verify", "a/b/out/")
    bad = mp.recipe(recipes.models("ties", family.base, ["nowhere"], {"weight": 1}))
    assert mp.run("merge", bad, mp.root / "c" / "d" / "out").status == 2
    values = family.load(family.experts[0])["model.norm.weight"].values().copy()
    values[0] = np.nan
    checkpoints.save(family.experts[0], family.load(family.experts[0]) | {"model.norm.weight": Tensor.of("F32", values)})
    assert mp.run("merge", recipe, mp.root / "e" / "f" / "out").status == 2
    assert not (mp.root / "c").exists() and not (mp.root / "e").exists()


@pytest.mark.parametrize("spelling", ("out/", "./out", "x/../out", "out/."))
def test_an_output_may_be_spelled_in_any_way(spelling, mp):
    family = families.make(mp.root)
    mp.ok("merge", mp.recipe(families.smallest("linear", family)), spelling)
    mp.ok("verify", mp.root / "out")


def test_neither_home_nor_cache_is_needed(mp):
    family = families.make(mp.root)
    recipe = mp.recipe(families.smallest("ties", family))
    for env in ({"HOME": "/nowhere", "XDG_CACHE_HOME": "/proc/none"}, {"HOME": "", "XDG_CACHE_HOME": ""}):
        mp.ok("merge", recipe, mp.fresh("out"), env=env)


def test_more_shards_than_file_descriptors(mp):
    """20 experts in 60 shards each are 1,260 files; a process may usually open 1,024 unless it asks for more."""
    def usual():
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    base = {f"model.layers.{i}.w": Tensor.of("BF16", np.random.default_rng(i).standard_normal(30)) for i in range(60)}
    models = [base] + [checkpoints.fine_tune(base, i) for i in range(20)]
    for i, tensors in enumerate(models):
        (mp.root / f"m{i}").mkdir()
        checkpoints.write_sharded(mp.root / f"m{i}", tensors, 60)
    family = families.Family(mp.root / "m0", [mp.root / f"m{i}" for i in range(1, 21)])
    recipe = recipes.models("task_arithmetic", family.base, family.experts, {"weight": 0.1})
    assert oracle.faults(mp.merged(recipe, preexec_fn=usual), family.want(recipe)) == []


@pytest.mark.parametrize("method", ("linear", "task_arithmetic", "ties", "dare_ties"))
def test_many_experts(method, mp):
    """Forty of them, within 128 MiB."""
    family = families.make(mp.root, "BF16", experts=40, layers=1)
    each = [{"weight": round(0.01 + 0.005 * i, 3)} | ({"density": 0.6} if method != "linear" else {}) for i in range(40)]
    recipe = recipes.models(method, None if method == "linear" else family.base, family.experts, each)
    if method == "dare_ties":  # forty probes would take long: only that it runs
        mp.ok("verify", mp.merge(recipe, "--memory", "128MiB"))
    else:
        assert oracle.faults(mp.merged(recipe, "--memory", "128MiB"), family.want(recipe)) == []


def sparse(path, gigabytes):
    """A file with a small tensor at each end and a large one of zeros between that takes no disk."""
    middle = gigabytes << 30
    header = {
        "first": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        "middle": {"dtype": "BF16", "shape": [middle // 2], "data_offsets": [16, 16 + middle]},
        "last": {"dtype": "F32", "shape": [4], "data_offsets": [16 + middle, 32 + middle]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.mkdir()
    with open(path / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + 32 + middle)
        for at in (8 + len(text), 8 + len(text) + 16 + middle):
            f.seek(at)
            f.write(np.arange(4, dtype="<f4").tobytes())
    return path


def test_files_larger_than_the_address_space_are_read(mp):
    """8 GB files in a process that may map 1 GB; more than 2^32 bytes and 2^31 elements in a tensor."""
    base, expert = sparse(mp.root / "base", 8), sparse(mp.root / "e0", 8)
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    told = mp.ok("inspect", base, "--json", preexec_fn=limit).json
    assert {t["name"]: t["shape"] for t in told["tensors"]}["middle"] == [1 << 32]
    recipe = mp.recipe(recipes.models("ties", base, [expert], {"weight": 1, "density": 0.5}))
    plan = mp.ok("plan", recipe, "--json", "--memory", "128MiB", preexec_fn=limit).json
    assert plan["output_bytes"] >= 8 << 30


def test_the_order_of_tensors_in_the_files_does_not_change_a_tensor(mp):
    """Random methods too: names decide, not positions."""
    family = families.make(mp.root, "BF16")
    recipe = families.smallest("dare_ties", family)
    want = mp.merged(recipe)
    for path in (family.base, *family.experts):
        names = sorted(family.load(path), key=lambda n: n[::-1])
        checkpoints.save(path, {n: family.load(path)[n] for n in names}, "sharded")
        (path / "model.safetensors").unlink()
    got = mp.merged(recipe)
    assert {n: t.raw for n, t in got.items()} == {n: t.raw for n, t in want.items()}


def test_integers_keep_their_type_whatever_the_output_dtype(mp):
    base = {"w": Tensor.of("F32", np.ones(4)), "ids": Tensor.of("I64", np.arange(4)), "mask": Tensor.of("BOOL", [True, False])}
    family = families.write(mp.root, base, [base])
    got = read_checkpoint(mp.merge(recipes.models("task_arithmetic", family.base, family.experts, {"weight": 1}, out_dtype="float16")))
    assert {n: t.dtype for n, t in got.items()} == {"w": "F16", "ids": "I64", "mask": "BOOL"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_an_input_without_read_permission_is_refused_by_name(mp):
    family = families.make(mp.root)
    (family.base / "model.safetensors").chmod(0)
    run = mp.run("merge", mp.recipe(families.smallest("linear", family)), mp.root / "out")
    assert run.status == 2 and "base/model.safetensors" in run.err
