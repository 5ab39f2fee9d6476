"""The files of a merge: transformers opens them, shards are cut as asked, and config.json says what mergekit's says."""

import json

import pytest
import transformers

import checkpoints
import referee
from cases import ABC, AB, FAMILIES, each, task_vectors
from recipes import models, sliced, source

LINEAR = models("linear", "base", ["base", "a"], each(0.6, 0.4))


def loaded(folder):
    """The model that transformers makes of a folder, which must hold exactly the tensors that it wants."""
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model, told = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert {k: list(v) for k, v in told.items() if v} == {}
    return model


@pytest.mark.parametrize("family", ["llama", *FAMILIES])
def test_transformers_opens_what_is_merged(family, mp, zoo):
    folder = zoo(family)
    merged, base = loaded(mp.merge(LINEAR, cwd=folder)), loaded(folder / "base")
    assert merged.config.to_dict() | {"_name_or_path": ""} == base.config.to_dict() | {"_name_or_path": ""}


@pytest.mark.parametrize("family", ["llama", *FAMILIES])
def test_config_says_what_mergekits_says(family, mp, zoo, tmp_path):
    """As transformers reads them: mergekit leaves out what has its default."""
    folder = zoo(family)
    _, theirs = referee.merge(folder, LINEAR, tmp_path / "theirs")
    ours = json.loads((mp.merge(LINEAR, cwd=folder) / "config.json").read_text())
    assert {k: ours.get(k) for k in theirs} == theirs


@pytest.mark.parametrize("family", [f for f in ("llama", *FAMILIES) if FAMILIES.get(f, 4)])
def test_a_model_with_other_layers_opens(family, mp, zoo):
    """mergekit gives up on it where config.json has a list of layers (layer_types)."""
    folder = zoo(family)
    stack = sliced("passthrough", [[source("a", 0, 2)], [source("b", 1, 2)], [source("a", 0, 2)]], "base")
    assert loaded(mp.merge(stack, cwd=folder)).config.num_hidden_layers == 5


SHARDED = {
    "linear": LINEAR,
    "ties": task_vectors("ties", density=0.5),
    "a stack": sliced("passthrough", [[source("a", 0, 3)], [source("b", 1, 4)]], "base"),
    "slerp": models("slerp", "base", ["a"], parameters={"t": 0.3}),
    "sce": models("sce", "base", ABC, parameters={"select_topk": 0.3}),
    "nuslerp": models("nuslerp", None, AB, each(1, 2)),
}
SIZES = {"1": 1, "7K": 7_000, "20K": 20_000, "1M": 1_000_000, "5B": 5_000_000_000}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SHARDED)
def test_shards(name, size, mp, zoo, tmp_path):
    folder, recipe = zoo("llama"), SHARDED[name] | {"dtype": "float32"}
    want, _ = referee.merge(folder, recipe, tmp_path / "theirs", out_shard_size=SIZES[size])
    out = mp.merge(recipe, "--out-shard-size", size, cwd=folder)
    assert sorted(checkpoints.read_checkpoint(out)) == sorted(want)
    ours, theirs = (files_of(f) for f in (out, tmp_path / "theirs"))
    assert ("model.safetensors" in ours) == ("model.safetensors" in theirs)
    if "model.safetensors" in ours:
        assert not (out / "model.safetensors.index.json").exists()
        return
    assert sorted(ours) == [f"model-{i + 1:05d}-of-{len(ours):05d}.safetensors" for i in range(len(ours))]
    assert all(len(sizes) == 1 or sum(sizes.values()) <= SIZES[size] for sizes in ours.values())
    assert abs(len(ours) - len(theirs)) <= 0.25 * len(theirs)  # the order of tensors differs, and so where they are cut
    index, other = (json.loads((f / "model.safetensors.index.json").read_text()) for f in (out, tmp_path / "theirs"))
    assert index["metadata"]["total_size"] == other["metadata"]["total_size"]
    assert index["weight_map"] == {n: file for file, sizes in ours.items() for n in sizes}


def files_of(folder):
    """By file of tensors: its tensors' bytes."""
    return {p.name: {n: len(t.raw) for n, t in checkpoints.read_file(p).items()} for p in sorted(folder.glob("*.safetensors"))}
