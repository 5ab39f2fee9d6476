"""Merges of files alone, as mergekit-pytorch makes them: no config, any names, its own results as the reference."""

import json

import numpy as np
import pytest
import yaml

import checkpoints
import oracle
import recipes
from checkpoints import Tensor

W = {"weight": 0.5}
FLAGS = {None: (), "intersection": ("-i",), "union": ("-u",)}


def unet(seed, **without):
    """A checkpoint of names that no language model has."""
    random = np.random.default_rng(seed)
    shapes = {"down.0.conv.weight": (8, 4, 3, 3), "down.1.conv.weight": (8, 8, 3, 3), "mid.attn.to_q.weight": (8, 8),
              "out.bias": (8,), "logit_scale": ()}
    made = {n: Tensor.of("F32", 0.1 * random.standard_normal(s, np.float32)) for n, s in shapes.items()}
    return made | {"steps": Tensor.of("I64", np.arange(4))}


def but(tensors, *names, **more):
    return {n: t for n, t in tensors.items() if n not in names} | more


@pytest.fixture
def files(tmp_path):
    """base, a, b and c; of the last three each lacks something. x is b without anything missing."""
    base = unet(0)
    only = {"only_in_a": Tensor.of("F32", np.ones((3, 2), np.float32)), "only_in_base": Tensor.of("F32", np.full((2,), 3, np.float32))}
    made = {
        "base": but(base, **{"only_in_base": only["only_in_base"]}),
        "plain": base,
        "a": but(checkpoints.fine_tune(base, 1), **{"only_in_a": only["only_in_a"]}),
        "b": but(checkpoints.fine_tune(base, 2), "out.bias"),
        "x": checkpoints.fine_tune(base, 2),
        "y": checkpoints.fine_tune(base, 3),
        "bare": but(base, "out.bias", "mid.attn.to_q.weight"),
    }
    for name, tensors in made.items():
        checkpoints.write_file(tmp_path / f"{name}.safetensors", tensors)
    return tmp_path


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """A function that merges files with mergekit-pytorch in this process."""
    from mergekit.graph import Executor
    from mergekit.options import MergeOptions
    from mergekit.scripts import merge_raw_pytorch as theirs

    def run(recipe, missing, cwd, monkeypatch):
        out = tmp_path_factory.mktemp("theirs")
        theirs.SimpleLoaderCache().loaders.clear()
        config = theirs.RawPyTorchMergeConfig.model_validate(yaml.safe_load(recipes.text(recipe)))
        with monkeypatch.context() as m:
            m.chdir(cwd)
            tasks = theirs.plan_flat_merge(config, str(out), missing == "union", missing == "intersection", MergeOptions(quiet=True))
            Executor(tasks, math_device="cpu", storage_device="cpu").execute(desc=None)
        return checkpoints.read_checkpoint(out)

    return run


def of(method, base, models, each=None, **top):
    return recipes.models(method, base and f"{base}.safetensors", [f"{m}.safetensors" for m in models], each, **top)


COMPLETE = {
    "linear": of("linear", None, ["x", "y"], [{"weight": 0.3}, {"weight": 0.9}]),
    "linear with a base that joins": of("linear", "plain", ["x", "y"], parameters=W),
    "a gradient counts with its first value": of("linear", None, ["x", "y"], [{"weight": [0.2, 5, 9]}, W]),
    "filters go by names": of("task_arithmetic", "plain", ["x", "y"], [{"weight": [{"filter": "conv", "value": 0.7}, {"value": 0.1}]}, W]),
    "ties": of("ties", "plain", ["x", "y"], {"weight": 0.5, "density": 0.4}),
    "slerp": of("slerp", "plain", ["x"], parameters={"t": 0.3}),
    "passthrough": of("passthrough", None, ["x"], {"scale": [{"filter": "out", "value": 0.5}, {"value": 2}]}),
    "nuslerp": of("nuslerp", None, ["x", "y"], [{"weight": 0.3}, {"weight": 0.7}]),
    "nuslerp around a base": of("nuslerp", "plain", ["x", "y"], [{"weight": 0.3}, {"weight": 0.7}]),
    "multislerp": of("multislerp", None, ["x", "y"], W),
    "karcher": of("karcher", None, ["x", "y", "plain"]),
    "model stock": of("model_stock", "plain", ["x", "y"]),
    "sce": of("sce", "plain", ["x", "y"], parameters={"select_topk": 0.5}),
    "breadcrumbs": of("breadcrumbs", "plain", ["x", "y"], {"weight": 0.5, "density": 0.7}),
    "nearswap": of("nearswap", "plain", ["x"], parameters={"t": 0.001}),
    "an output type": of("linear", None, ["x", "y"], W, dtype="float32", out_dtype="float16"),
}


@pytest.mark.parametrize("missing", FLAGS)
@pytest.mark.parametrize("name", COMPLETE)
def test_a_raw_merge_gives_what_mergekit_pytorch_gives(name, missing, mp, files, raw, monkeypatch):
    recipe = COMPLETE[name]
    want = raw(recipe, missing, files, monkeypatch)
    got = checkpoints.read_checkpoint(mp.merge(recipe, *FLAGS[missing], cwd=files))
    assert same(got, want) == []


def same(got, want):
    """Faults of what the merge made; integers are stored as they are, mergekit's out_dtype casts them too."""
    whole = {n: t for n, t in want.items() if got[n].dtype != "I64"} if set(got) == set(want) else want
    return oracle.faults({n: t for n, t in got.items() if n in whole or set(got) != set(want)}, {n: oracle.Merged(t.dtype, t.values()) for n, t in whole.items()})


PARTIAL = {
    "linear": of("linear", None, ["a", "b"], [{"weight": 0.3}, {"weight": 0.9}]),
    "linear with a base that joins": of("linear", "base", ["a", "b"], parameters=W),
    "linear that is not normalized": of("linear", None, ["a", "b", "y"], W, parameters={"normalize": False}),
    "slerp": of("slerp", "bare", ["x"], parameters={"t": 0.3}),
    "slerp with a listed base": of("slerp", "base", ["base", "x"], parameters={"t": 0.3}),
    "slerp into another type": of("slerp", "bare", ["x"], parameters={"t": 0.3}, out_dtype="float16"),
    "task arithmetic": of("task_arithmetic", "base", ["b", "y"], W),
    "ties": of("ties", "base", ["b", "y"], {"weight": 0.5, "density": 0.4}),
    "ties with a listed base": of("ties", "base", ["base", "b", "y"], {"weight": 0.5, "density": 0.4}),
    "passthrough": of("passthrough", None, ["a"]),
    "multislerp": of("multislerp", None, ["a", "b", "y"], W),
    "karcher": of("karcher", None, ["a", "b"]),
    "sce": of("sce", "base", ["b", "y"], parameters={"select_topk": 0.5}),
    "model stock": of("model_stock", "base", ["x", "b", "y"]),
    "nuslerp": of("nuslerp", None, ["b", "y"], W),
    "nearswap": of("nearswap", "plain", ["b"], parameters={"t": 0.001}),
    "arcee fusion": of("arcee_fusion", "plain", ["b"]),
}


# mergekit-pytorch refuses these too.
TOO_FEW = ("nuslerp", "slerp", "slerp with a listed base", "slerp into another type")


@pytest.mark.parametrize("name, missing", [(n, m) for n in PARTIAL for m in ("intersection", "union") if m != "union" or n not in TOO_FEW])
def test_tensors_that_only_some_files_have(name, missing, mp, files, raw, monkeypatch):
    recipe = PARTIAL[name]
    want = raw(recipe, missing, files, monkeypatch)
    out = mp.merge(recipe, *FLAGS[missing], cwd=files)
    assert same(checkpoints.read_checkpoint(out), want) == []
    mp.ok("verify", out)
    mp.ok("replay", out, mp.fresh("again"))


@pytest.mark.parametrize("name", [n for n in PARTIAL if n != "passthrough"])
def test_they_are_an_error_by_default_all_named(name, mp, files):
    run = mp.refuse(PARTIAL[name], "only_in_base" if "listed base" in name and "slerp" in name else "out.bias", cwd=files)
    assert "-u merges" in run.err and "-i leaves" in run.err


@pytest.mark.parametrize("name", TOO_FEW)
def test_a_method_of_two_models_needs_both_for_each_tensor(name, mp, files, raw, monkeypatch):
    mp.refuse(PARTIAL[name], "only_in_base" if "listed" in name else "out.bias", flags=("-u",), cwd=files)
    with pytest.raises(ValueError):
        raw(PARTIAL[name], "union", files, monkeypatch)


def test_a_method_that_needs_the_base_needs_it_for_each_tensor(mp, files):
    for method in ("ties", "task_arithmetic"):
        mp.refuse(of(method, "bare", ["x", "y"], W), "out.bias", "mid.attn.to_q.weight", "bare", flags=("-u",), cwd=files)


def test_what_is_left_out_is_in_the_manifest(mp, files):
    out = mp.merge(PARTIAL["linear"], "-i", cwd=files)
    core = json.loads((out / "mergepipe_manifest.json").read_text())["core"]
    rules = {(d["tensor"], d["rule"]) for d in core["dropped"]}
    assert rules == {("out.bias", "not in every model (--tensor-intersection)"), ("only_in_a", "not in every model (--tensor-intersection)")}


def test_the_output_is_weights_manifest_and_recipe(mp, files):
    out = mp.merge(COMPLETE["linear"], cwd=files)
    assert {p.name for p in out.iterdir()} == {"model.safetensors", "mergekit_config.yml", "mergepipe_manifest.json"}


def test_the_rules_exclude_each_other(mp, files):
    for flags in (("-i", "-u"), ("-i", "--missing", "base"), ("-u", "--missing", "union")):
        mp.refuse(COMPLETE["linear"], "one of", flags=flags, cwd=files)
    mp.refuse(COMPLETE["linear"], "--missing", "union", flags=("--missing", "unin"), cwd=files)


def test_a_budget_of_everything_gives_the_same_bytes(mp, files):
    for name in ("linear", "ties", "task arithmetic"):
        whole, all_of_it = mp.merge(PARTIAL[name], "-u", cwd=files), mp.merge(PARTIAL[name], "-u", "--budget", "100%", cwd=files)
        weights = [checkpoints.digests(out, ignore=("mergepipe_manifest.json",)) for out in (whole, all_of_it)]
        assert weights[0] == weights[1]


def test_a_plan_keeps_the_rule(mp, files):
    plan = mp.fresh("plan", ".json")
    mp.ok("plan", mp.recipe(PARTIAL["linear"]), "-u", "-o", plan, cwd=files)
    mp.ok("run", plan, mp.root / "ran", cwd=files)
    merged = mp.merge(PARTIAL["linear"], "-u", cwd=files)
    assert checkpoints.digests(mp.root / "ran", ignore=("mergepipe_manifest.json",)) == checkpoints.digests(merged, ignore=("mergepipe_manifest.json",))


def test_an_expert_that_lacks_a_tensor_does_not_move_the_others_random_numbers(mp, files):
    """dare drops by the expert's place in the recipe, whoever takes part."""
    def of_two(first):
        return mp.merged(of("dare_linear", "plain", [first, "y"], [{"weight": 0.0, "density": 0.5}, {"weight": 1, "density": 0.5}]), "-u", cwd=files)

    assert of_two("b")["out.bias"].raw == of_two("x")["out.bias"].raw


@pytest.mark.parametrize("name, start", (("old.bin", b"PK\x03\x04"), ("old.pt", b"\x80\x02}q\x00" + b"\x00" * 20)))
def test_a_pickle_is_refused_by_name(name, start, mp, files):
    (files / name).write_bytes(start + b"\x00" * 64)
    mp.refuse(recipes.models("linear", None, [name, "x.safetensors"], W), name, "pickle", "convert", cwd=files)
