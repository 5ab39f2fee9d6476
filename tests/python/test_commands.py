"""plan, inspect and diff: what they tell, in both forms."""

import json

import numpy as np
import pytest

import checkpoints
import families
import recipes
from checkpoints import Tensor, digests, read_checkpoint


def payload(tensors):
    return sum(len(t.raw) for t in tensors.values())


# --- plan ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", recipes.METHODS)
def test_plan_tells_what_a_merge_will_do_and_does_nothing(method, mp):
    family = families.make(mp.root, "BF16", "sharded")
    recipe = mp.recipe(families.smallest(method, family))
    before = digests(mp.root, ignore=("cache",))
    plan = mp.ok("plan", recipe, "--json").json
    assert digests(mp.root, ignore=("cache",)) == before
    assert plan["method"] == method and plan["warnings"] == []
    assert 0 < plan["least_memory_bytes"] <= plan["peak_memory_bytes"]
    assert plan["output_bytes"] >= payload(family.load(family.base))
    assert len(str(plan["plan_digest"])) >= 16 and plan["tensors"] and plan["reads"]
    plain = mp.ok("plan", recipe)
    assert method in plain.out


def test_plan_and_merge_tell_the_same_warnings(mp):
    family = families.make(mp.root)
    recipe = mp.recipe(recipes.models("task_arithmetic", family.base, family.experts, {"weight": 0.5, "density": 0.1}))
    assert mp.ok("plan", recipe, "--json").json["warnings"] == mp.ok("merge", recipe, mp.root / "out", "--json").json["warnings"] != []


def test_plan_finds_every_fault_that_headers_can_show(mp):
    family = families.make(mp.root)
    data = (family.experts[0] / "model.safetensors").read_bytes()
    (family.experts[0] / "model.safetensors").write_bytes(data[:-1])
    run = mp.run("plan", mp.recipe(families.smallest("ties", family)), "--json")
    assert run.status == 2 and "e0/model.safetensors" in json.dumps(run.json["error"])


def test_the_planned_peak_is_within_the_memory_that_is_given(mp):
    """Plus 64 MiB for the program itself."""
    family = families.make(mp.root, "BF16", layers=1, hidden=256, vocab=3000)
    recipe = mp.recipe(families.smallest("ties", family))
    least = mp.ok("plan", recipe, "--json").json["least_memory_bytes"]
    for memory in (least, least * 2, 2**30):
        assert mp.ok("plan", recipe, "--json", "--memory", f"{memory}B").json["peak_memory_bytes"] <= memory + (64 << 20)
    run = mp.run("plan", recipe, "--json", "--memory", f"{least - 1}B")
    assert run.status == 2 and run.json["error"]["message"]


# --- inspect ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ("single", "sharded", "file"))
def test_inspect_lists_every_tensor(layout, mp):
    tensors = checkpoints.llama(1, "mixed") | {"ids": Tensor.of("I64", np.arange(3)), "none": Tensor.of("F32", np.zeros((0, 4)))}
    path = checkpoints.save(mp.root / "m", tensors, layout)
    told = mp.ok("inspect", path, "--json").json
    listed = {t["name"]: (t["dtype"], tuple(t["shape"])) for t in told["tensors"]}
    assert listed == {n: (t.dtype, t.shape) for n, t in tensors.items()}
    plain = mp.ok("inspect", path).out
    assert all(n in plain for n in tensors) or f"{len(tensors)}" in plain


def test_inspect_knows_dtypes_that_are_not_merged(mp):
    """Known by size: float8, complex and unsigned ones."""
    dtypes = {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "U32": 4, "U64": 8, "C64": 8}
    header, at = {}, 0
    for dtype, size in dtypes.items():
        header[dtype.lower()] = {"dtype": dtype, "shape": [2, 3], "data_offsets": [at, at + 6 * size]}
        at += 6 * size
    (mp.root / "odd.safetensors").write_bytes(checkpoints.file_bytes(header, bytes(at)))
    told = mp.ok("inspect", mp.root / "odd.safetensors", "--json").json
    assert {t["dtype"] for t in told["tensors"]} == set(dtypes)


def test_inspect_accepts_a_file_without_tensors(mp):
    (mp.root / "none.safetensors").write_bytes(checkpoints.file_bytes({"__metadata__": {"format": "pt"}}, b""))
    assert mp.ok("inspect", mp.root / "none.safetensors", "--json").json["tensors"] == []


# --- diff ------------------------------------------------------------------------------------------------------------


def norm(tensors):
    return np.sqrt(sum((t.values(np.float64) ** 2).sum() for t in tensors.values()))


def apart(a, b):
    return np.sqrt(sum(((a[n].values(np.float64) - b[n].values(np.float64)) ** 2).sum() for n in a))


@pytest.mark.parametrize("dtype", ("F32", "F16", "BF16", "mixed", "F64"))
def test_diff_measures_how_far_b_is_from_a(dtype, mp):
    """max_abs, and the L2 norm of b - a relative to a and to the update a - base; in total and for each tensor."""
    family = families.make(mp.root, dtype, "sharded", experts=2)
    a, b, base = (family.load(p) for p in (*family.experts, family.base))
    told = mp.ok("diff", *family.experts, "--base", family.base, "--json").json
    largest = max(np.abs(a[n].values(np.float64) - b[n].values(np.float64)).max() for n in a)
    assert told["max_abs"] == pytest.approx(largest, rel=1e-6)
    assert told["relative_to_weights"] == pytest.approx(apart(a, b) / norm(a), rel=1e-5)
    assert told["relative_to_update"] == pytest.approx(apart(a, b) / apart(a, base), rel=1e-5)
    assert told["only_in_a"] == told["only_in_b"] == []
    by_name = {t["name"]: t for t in told["tensors"]}
    for n in a:
        x, y = a[n].values(np.float64), b[n].values(np.float64)
        assert by_name[n]["max_abs"] == pytest.approx(np.abs(x - y).max(), rel=1e-6)
        assert by_name[n]["differing_elements"] == int((a[n].bits != b[n].bits).sum())
        assert by_name[n]["elements"] == x.size


def test_diff_of_equal_checkpoints_is_zero_and_without_base_has_no_update(mp):
    family = families.make(mp.root, "BF16", experts=1)
    checkpoints.save(mp.root / "same", family.load(family.base), "sharded")
    told = mp.ok("diff", family.base, mp.root / "same", "--json").json
    assert told["max_abs"] == told["relative_to_weights"] == 0 and told["relative_to_update"] is None
    assert sum(t["differing_elements"] for t in told["tensors"]) == 0
    told = mp.ok("diff", family.base, family.experts[0], "--base", family.base, "--json").json
    assert told["relative_to_update"] is None, "the reference is the base: there is no update"


def test_the_base_is_one_update_away_from_a_merge(mp):
    family = families.make(mp.root, "BF16")
    out = mp.merge(families.smallest("ties", family))
    told = mp.ok("diff", out, family.base, "--base", family.base, "--json").json
    assert told["relative_to_update"] == pytest.approx(1, abs=1e-9)
    assert 0 < told["relative_to_weights"] < 0.5
    plain = mp.ok("diff", out, family.base, "--base", family.base)
    assert plain.out.strip()


def test_diff_names_tensors_that_only_one_side_has(mp):
    a, b = checkpoints.llama(1), checkpoints.llama(1)
    a["only.a"], b["only.b"] = Tensor.of("F32", [1]), Tensor.of("F32", [2])
    told = mp.ok("diff", checkpoints.save(mp.root / "a", a), checkpoints.save(mp.root / "b", b), "--json").json
    assert (told["only_in_a"], told["only_in_b"]) == (["only.a"], ["only.b"])


def test_diff_compares_across_dtypes_and_finds_one_element(mp):
    a = {"w": Tensor.of("F32", np.linspace(-1, 1, 5000)), "ids": Tensor.of("I64", np.arange(10))}
    b = {"w": Tensor.of("F64", a["w"].values(np.float64)), "ids": Tensor.of("I64", np.arange(10))}
    b["w"].bits[3210] += 0.25
    b["ids"].bits[3] = 99
    told = mp.ok("diff", checkpoints.save(mp.root / "a", a), checkpoints.save(mp.root / "b", b), "--json").json
    by_name = {t["name"]: t for t in told["tensors"]}
    assert by_name["w"]["differing_elements"] == 1 and by_name["ids"]["differing_elements"] == 1
    assert by_name["w"]["max_abs"] == pytest.approx(0.25)


def test_diff_refuses_shapes_that_differ_and_damaged_files(mp):
    one = checkpoints.save(mp.root / "a", {"w": Tensor.of("F32", np.ones((2, 3)))})
    two = checkpoints.save(mp.root / "b", {"w": Tensor.of("F32", np.ones((3, 2)))})
    run = mp.run("diff", one, two, "--json")
    assert run.status in (0, 2) and "w" in run.out
    (two / "model.safetensors").write_bytes(b"version https://git-lfs")
    run = mp.run("diff", one, two)
    assert run.status == 2 and "b/model.safetensors" in run.err


def test_diff_of_nan_is_told_as_a_difference(mp):
    a = checkpoints.save(mp.root / "a", {"w": Tensor.of("F32", [1.0, 2.0])})
    b = checkpoints.save(mp.root / "b", {"w": Tensor.of("F32", [1.0, np.nan])})
    run = mp.run("diff", a, b, "--json")
    assert run.status == 0
    assert run.json["tensors"][0]["differing_elements"] == 1
    assert run.json["max_abs"] != 0


def test_the_form_without_yaml_gives_the_bytes_of_the_recipe(mp):
    family = families.make(mp.root, "BF16")
    recipe = recipes.models("ties", family.base, family.experts, [{"weight": w} for w in (0.5, 0.25, -0.75)], {"density": 0.3, "normalize": False})
    experts = [x for e, w in zip(family.experts, ("0.5", ".25", "-0.75")) for x in ("--expert", f"{e}:{w}")]
    mp.ok("merge", "--base", family.base, "--method", "ties", *experts, "--set", "density=0.3", "--set", "normalize=false", mp.root / "flags")
    want = read_checkpoint(mp.merge(recipe))
    assert {n: t.raw for n, t in read_checkpoint(mp.root / "flags").items()} == {n: t.raw for n, t in want.items()}
    mp.ok("verify", mp.root / "flags")
    mp.ok("replay", mp.root / "flags", mp.root / "again")
    mp.ok("merge", mp.root / "flags/mergekit_config.yml", mp.root / "third")
    assert (mp.root / "third/model.safetensors").read_bytes() == (mp.root / "flags/model.safetensors").read_bytes()
