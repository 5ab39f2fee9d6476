"""Peak resident memory stays under --memory plus 64 MiB for the program itself, whatever the size of a tensor."""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import budgets
import checkpoints
import families
import program
import recipes
import vocabularies

MIB = 1 << 20
PROGRAM_ITSELF = 64 * MIB
MEASURE = Path(__file__).with_name("measure.py")


def peak_of(mp, *arguments):
    """Runs a command and yields its peak resident bytes and its report."""
    report = mp.fresh("peak")
    command = [sys.executable, "-S", "-E", MEASURE, report, program.BINARY, *arguments, "--json"]
    told = subprocess.run(list(map(str, command)), env=mp.env, cwd=mp.root, capture_output=True, text=True, timeout=600)
    status, peak = map(int, report.read_text().split())
    assert status == 0, told.stderr
    return peak, json.loads(told.stdout)


def peak_of_merge(mp, recipe, *flags):
    """Merges and yields the peak resident bytes, the report, and the output."""
    out = mp.fresh("out")
    return *peak_of(mp, "merge", mp.recipe(recipe), out, *flags), out


def write_big(folder, chunk, repeats, dtype, shape):
    """One tensor made of random bits over and over, without ever being in memory as a whole."""
    entry = {"dtype": dtype, "shape": shape, "data_offsets": [0, repeats * chunk.nbytes]}
    text = json.dumps({"__metadata__": {"format": "pt"}, "model.embed_tokens.weight": entry}).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _ in range(repeats):
            f.write(chunk.data)
    return folder


def copy_of(model, folder):
    """The same data under another path, for no room on the disk."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").hardlink_to(model / "model.safetensors")
    return folder


def big_family(root, experts, megabytes=512, dtype="BF16", shape=(-1, 4096)):
    """A base and experts with one tensor of so many MiB; deltas of random size, so that a trim has a real threshold to find. From the third
    on the experts are links to the first two."""
    random = np.random.default_rng(1)
    base = random.standard_normal(min(megabytes, 8) * MIB // budgets.BYTES[dtype], np.float32) * np.float32(0.02)
    elements = megabytes * MIB // budgets.BYTES[dtype]
    shape = [elements // -int(np.prod(shape)) if n == -1 else n for n in shape]
    paths = []
    for i in range(min(experts, 2) + 1):
        delta = random.standard_normal(base.size, np.float32) * np.float32(1e-3 * bool(i))
        paths.append(write_big(root / f"m{i}", checkpoints.Tensor.of(dtype, base + delta).bits, elements // base.size, dtype, shape))
    paths += [copy_of(paths[1 + i % 2], root / f"m{i + 1}") for i in range(2, experts)]
    return families.Family(paths[0], paths[1:])


@pytest.fixture(scope="module")
def half_gigabyte(tmp_path_factory):
    """Eight experts with a tensor of 512 MiB, for all methods: 1.5 GB."""
    root = tmp_path_factory.mktemp("half-gigabyte")
    yield big_family(root / "family", experts=8)
    shutil.rmtree(root)


ONE_OF_EACH_KIND = (
    "linear", "slerp", "ties", "dare_ties", "breadcrumbs rescaled", "della", "karcher", "model_stock by rows", "nuslerp by columns", "sce",
    "ramplus_tl", "arcee_fusion",
)
EVERY_METHOD = recipes.METHODS + tuple(recipes.VARIANTS)
# One for each set of statistics; every method there is, with MERGEPIPE_TEST_ALL=1 in the environment: that takes some minutes.
MEASURED = EVERY_METHOD if os.environ.get("MERGEPIPE_TEST_ALL") else ONE_OF_EACH_KIND


@pytest.mark.big
@pytest.mark.parametrize("method", MEASURED)
def test_eight_experts_with_a_tensor_of_512_mib_stay_under_256_mib(method, mp, half_gigabyte):
    peak, report, out = peak_of_merge(mp, families.smallest(method, half_gigabyte), "--memory", "256MiB")
    shutil.rmtree(out)
    print(f"{method}: {peak / MIB:.0f} MiB, {report['seconds']:.1f} s")
    assert peak <= 256 * MIB + PROGRAM_ITSELF
    assert abs(report["peak_memory_bytes"] - peak) <= 8 * MIB, "the program's own figure"


def give_tokenizers(family, rows):
    """The base's tokens stand in order, the experts' at random places; every model has rows for a few tokens more or less."""
    tokens = [f"t{i}" for i in range(rows - 64)]
    for seed, folder in enumerate((family.base, *family.experts)):
        own = tokens if seed == 0 else [f"new{seed}-{i}" for i in range(16)] + tokens[100:]
        if seed:
            np.random.default_rng(seed).shuffle(own)
        vocabularies.write_tokenizer(folder, own)
        (folder / "config.json").write_text(json.dumps({"vocab_size": rows}))


@pytest.mark.big
@pytest.mark.parametrize("method", ("linear", "ties"))
def test_an_embedding_of_512_mib_in_another_order_stays_under_256_mib(method, mp):
    family = big_family(mp.root, experts=2)
    give_tokenizers(family, 65536)
    recipe = families.smallest(method, family) | {"tokenizer": {"source": "union", "pad_to_multiple_of": 64}}
    peak, report, _ = peak_of_merge(mp, recipe, "--memory", "256MiB")
    assert peak <= 256 * MIB + PROGRAM_ITSELF, f"{peak / MIB:.0f} MiB"
    assert report["io"]["expert_read_bytes"] > 0


def test_rows_in_another_order_take_the_least_memory_that_a_plan_tells(mp):
    family = big_family(mp.root, experts=2, megabytes=48)
    give_tokenizers(family, 6144)
    recipe = families.smallest("ties", family) | {"tokenizer": {"source": "union", "pad_to_multiple_of": 64}}
    least = mp.ok("plan", mp.recipe(recipe), "--json").json["least_memory_bytes"]
    assert least < 48 * MIB
    peak, _, _ = peak_of_merge(mp, recipe, "--memory", f"{least}B")
    assert peak <= least + PROGRAM_ITSELF, f"{peak / MIB:.0f} MiB for a limit of {least / MIB:.0f}"


@pytest.mark.big
def test_verify_and_diff_of_a_tensor_of_512_mib_take_little_memory(mp, half_gigabyte):
    base, expert = half_gigabyte.base, half_gigabyte.experts[0]
    out = mp.merge(recipes.models("passthrough", None, [expert]))
    for command in (("verify", out), ("diff", out, base)):
        assert peak_of(mp, *command)[0] <= 256 * MIB + PROGRAM_ITSELF, command[0]
    shutil.rmtree(out)


BY_VECTORS = ("model_stock by rows", "nuslerp by rows", "nuslerp by columns", "breadcrumbs rescaled", "sce of all")


@pytest.mark.parametrize("method", recipes.METHODS + BY_VECTORS)
def test_the_least_memory_that_a_plan_tells_is_enough(method, mp):
    """And is small: 48 MiB tensors, and the least is what the plan says, not the tensor."""
    family = big_family(mp.root, experts=2, megabytes=48)
    recipe = families.smallest(method, family)
    least = mp.ok("plan", mp.recipe(recipe), "--json").json["least_memory_bytes"]
    assert least < 48 * MIB
    check_the_least(mp, recipe, least)


def check_the_least(mp, recipe, least):
    """A byte less is refused with the memory that is needed; so much is enough."""
    mp.refuse(recipe, "--memory", "at least", flags=["--memory", f"{least - 1}B"])
    peak, report, _ = peak_of_merge(mp, recipe, "--memory", f"{least}B")
    assert peak <= least + PROGRAM_ITSELF, f"{peak / MIB:.0f} MiB for a limit of {least / MIB:.0f}"
    assert report["peak_memory_bytes"] <= least + PROGRAM_ITSELF


SHAPES = {"one axis": (-1,), "three axes": (6, 512, -1), "columns": (-1, 4), "one row": (1, -1), "one column": (-1, 1)}
SHAPED = tuple(
    (shape, method) for shape in SHAPES for method in ("della", "model_stock by rows", "nuslerp by rows", "nuslerp by columns", "arcee_fusion")
)


@pytest.mark.parametrize("shape, method", SHAPED)
def test_memory_holds_or_is_asked_for_whatever_the_shape(shape, method, mp):
    """F32 tensors of 24 MiB. Rows that are ranked are held whole, and vectors cost a few numbers each: a plan for 32 MiB keeps to it, or
    says what it would take."""
    family = big_family(mp.root, experts=2, megabytes=24, dtype="F32", shape=SHAPES[shape])
    recipe = families.smallest(method, family)
    least = mp.ok("plan", mp.recipe(recipe), "--json", "--memory", "8GiB").json["least_memory_bytes"]
    if least > 32 * MIB:
        return check_the_least(mp, recipe, least)
    peak, _, _ = peak_of_merge(mp, recipe, "--memory", "32MiB")
    assert peak <= 32 * MIB + PROGRAM_ITSELF, f"{peak / MIB:.0f} MiB"


@pytest.mark.parametrize("threads", (1, 8))
def test_memory_does_not_grow_with_threads_or_experts(threads, mp):
    """Twelve experts under 64 MiB."""
    family = big_family(mp.root, experts=12, megabytes=16)
    peak, _, _ = peak_of_merge(mp, families.smallest("ties", family), "--memory", "64MiB", "--threads", threads)
    assert peak <= 64 * MIB + PROGRAM_ITSELF


def test_many_tiny_tensors_take_little_memory_and_time(mp):
    """8 layers of 256 experts with three small matrices each: 6,144 tensors."""
    random = np.random.default_rng(2)
    names = [f"model.layers.{i}.mlp.experts.{j}.{x}_proj.weight" for i in range(8) for j in range(256) for x in ("gate", "up", "down")]
    base = {n: checkpoints.Tensor.of("BF16", random.standard_normal((4, 4))) for n in names}
    family = families.write(mp.root, base, [checkpoints.fine_tune(base, i) for i in range(2)])
    peak, report, _ = peak_of_merge(mp, families.smallest("ties", family), "--memory", "64MiB")
    assert peak <= 64 * MIB + PROGRAM_ITSELF
    assert report["tensors"]["merged"] == len(names) and report["seconds"] < 20


def test_the_reported_peak_is_the_programs_own_not_its_parents(mp):
    """The kernel hands a parent's peak on to its children; a merge of some KiB took no 256 MiB."""
    ballast = np.ones(256 * MIB, np.uint8)
    family = families.make(mp.root)
    assert mp.report(families.smallest("ties", family), "--memory", "64MiB")["peak_memory_bytes"] < ballast.nbytes


def test_a_limit_that_is_too_small_is_refused_with_the_least(mp):
    family = families.make(mp.root)
    mp.refuse(families.smallest("ties", family), "--memory", flags=["--memory", "64KiB"])
