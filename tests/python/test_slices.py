"""Merges by layer ranges: which layers, under which numbers, and what config.json says of them."""

import json

import numpy as np
import pytest

import checkpoints
import families
import oracle
from checkpoints import Tensor, read_checkpoint
from recipes import sliced, source


def config_of(out):
    return json.loads((out / "config.json").read_text())


def test_a_stack_has_its_layers_renumbered(mp):
    """Layers 0-2 of one model and 1-3 of the other: 6 layers, each the bits of its source."""
    family = families.make(mp.root, "BF16", experts=2, layers=4)
    a, b = (family.load(e) for e in family.experts)
    out = mp.merge(sliced("passthrough", [[source(family.experts[0], 0, 3)], [source(family.experts[1], 1, 4)]]))
    got = read_checkpoint(out)
    for k, (model, layer) in enumerate([(a, 0), (a, 1), (a, 2), (b, 1), (b, 2), (b, 3)]):
        for name, t in model.items():
            if name.startswith(f"model.layers.{layer}."):
                assert checkpoints.same_bits(got[name.replace(f".{layer}.", f".{k}.", 1)], t)
    assert config_of(out)["num_hidden_layers"] == 6
    assert not any(".6." in n for n in got)
    assert checkpoints.same_bits(got["model.embed_tokens.weight"], a["model.embed_tokens.weight"])
    assert checkpoints.same_bits(got["model.norm.weight"], b["model.norm.weight"])
    assert checkpoints.same_bits(got["lm_head.weight"], b["lm_head.weight"])
    mp.ok("verify", out)


@pytest.mark.parametrize("layout", ("single", "sharded"))
@pytest.mark.parametrize("slices", ([(0, 4), (0, 4)], [(3, 4), (2, 3), (0, 1)], [(1, 2)]))
def test_stacks_equal_the_oracle_in_every_layout(slices, layout, mp):
    family = families.make(mp.root, "mixed", layout, experts=1, layers=4)
    recipe = sliced("passthrough", [[source(family.experts[0], *s)] for s in slices])
    out = mp.merge(recipe)
    assert oracle.faults(read_checkpoint(out), family.want(recipe)) == []
    assert config_of(out)["num_hidden_layers"] == sum(e - b for b, e in slices)
    mp.ok("verify", out)
    mp.ok("replay", out, mp.root / "again")


@pytest.mark.parametrize("method", ("dare_linear", "dare_ties"))
def test_random_methods_run_on_slices(method, mp):
    """At density 1 they drop nothing, so the oracle knows the result."""
    family = families.make(mp.root, layers=4)
    recipe = sliced(method, [
        [source(family.base, 0, 2), source(family.experts[0], 1, 3, weight=0.5)],
        [source(family.base, 0, 2), source(family.experts[1], 2, 4, weight=0.4)],
    ], family.base)
    assert oracle.faults(mp.merged(recipe), family.want(recipe)) == []


def test_twin_output_layers_drop_independently(mp):
    """The mask belongs to the output tensor: the same input layer used twice is dropped in two ways."""
    base = {"model.layers.0.w": Tensor.of("F32", np.zeros(1000)), "model.norm.weight": Tensor.of("F32", np.zeros(4))}
    family = families.write(mp.root, base, [{n: Tensor.of("F32", np.ones(t.shape)) for n, t in base.items()}])
    twice = [[source(family.base, 0, 1), source(family.experts[0], 0, 1, weight=1.0, density=0.5)]] * 2
    got = mp.merged(sliced("dare_linear", twice, family.base))
    assert not np.array_equal(got["model.layers.0.w"].bits, got["model.layers.1.w"].bits)


def test_a_gradient_runs_over_its_slice_and_stands_at_its_start_elsewhere(mp):
    """t = 0 outside the layers, 0 to 1 over the layers of a slice, 1 in a slice of one layer."""
    names = [f"model.layers.{i}.w" for i in range(4)] + ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    base = {n: Tensor.of("F32", np.zeros(2)) for n in names}
    family = families.write(mp.root, base, [{n: Tensor.of("F32", np.ones(2)) for n in names}])
    pieces = [[source(family.base, *s), source(family.experts[0], *s, weight=[0, 1])] for s in ((0, 3), (3, 4))]
    got = mp.merged(sliced("task_arithmetic", pieces, family.base))
    assert [float(got[n].values()[0]) for n in names] == [0, 0.5, 1, 1, 0, 0, 0]


def test_tensors_outside_the_layers_take_the_context_of_the_first_or_last_slice(mp):
    """Embeddings the first slice's, norm and head the last one's: its models and its parameters."""
    family = families.make(mp.root, layers=2, experts=2)
    recipe = sliced("task_arithmetic", [
        {"sources": [source(family.base, 0, 1), source(family.experts[0], 0, 1)], "parameters": {"weight": 0.25}},
        {"sources": [source(family.base, 1, 2), source(family.experts[1], 1, 2)], "parameters": {"weight": 0.75}},
    ], family.base)
    got = mp.merged(recipe)
    assert oracle.faults(got, family.want(recipe)) == []


@pytest.mark.parametrize("names", ("model.embed_tokens.weight", "transformer.wte.weight", "transformer.wpe.weight", "embeddings.word_embeddings.weight"))
def test_embeddings_are_known_by_their_name(names, mp):
    base = {names: Tensor.of("F32", np.zeros(2))} | {f"model.layers.{i}.w": Tensor.of("F32", np.zeros(2)) for i in range(2)}
    models = [checkpoints.save(mp.root / f"m{i}", {n: Tensor.of("F32", np.full(2, i)) for n in base}) for i in range(2)]
    got = mp.merged(sliced("passthrough", [[source(models[0], 0, 1)], [source(models[1], 1, 2)]]))
    assert got[names].values().tolist() == [0, 0]


@pytest.mark.parametrize("key", ("num_hidden_layers", "n_layer", "num_layers", "n_layers"))
def test_the_layer_count_of_the_config_follows_under_its_own_key(key, mp):
    base = {f"h.{i}.w": Tensor.of("F32", np.full(2, i)) for i in range(4)}
    model = checkpoints.save(mp.root / "m", base, config={"model_type": "x", key: 4, "other": [1, 2]})
    out = mp.merge(sliced("passthrough", [[source(model, 0, 4)], [source(model, 2, 4)]]))
    assert config_of(out) == {"model_type": "x", key: 6, "other": [1, 2]}


def test_layer_types_and_nested_text_configs_follow(mp):
    base = {f"model.layers.{i}.w": Tensor.of("F32", np.full(2, i)) for i in range(4)}
    kinds = ["full_attention", "sliding_attention"] * 2
    for where, config in enumerate(({"num_hidden_layers": 4, "layer_types": kinds}, {"text_config": {"num_hidden_layers": 4, "layer_types": kinds}})):
        model = checkpoints.save(mp.root / f"m{where}", base, config={"model_type": "x"} | config)
        out = mp.merge(sliced("passthrough", [[source(model, 0, 1)], [source(model, 2, 4)], [source(model, 0, 1)]]))
        told = config_of(out).get("text_config", config_of(out))
        assert told["num_hidden_layers"] == 4
        assert told["layer_types"] == [kinds[i] for i in (0, 2, 3, 0)]


def test_whole_models_leave_the_config_alone(mp):
    family = families.make(mp.root, layers=3)
    text = '{ "num_hidden_layers":3,   "odd spacing" : [ 1,2 ], "zz": 1, "aa": 1.50 }'
    (family.base / "config.json").write_text(text)
    assert (mp.merge(families.smallest("ties", family)) / "config.json").read_text() == text
