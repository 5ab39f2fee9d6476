"""Checkpoints of one family that name their tensors otherwise, and modules by name."""

import json

import numpy as np
import pytest

import checkpoints
import recipes
from checkpoints import Tensor
from recipes import models, source

W = {"weight": 0.5}


def tensors(names, seed=1, shape=(4, 3)):
    random = np.random.default_rng(seed)
    return {n: Tensor.of("F32", random.standard_normal(shape, np.float32)) for n in names}


def renamed(ts, change):
    return {change(n): t for n, t in ts.items()}


BERT = ["bert.embeddings.word_embeddings.weight", "bert.embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.bias"] + [
    f"bert.encoder.layer.{i}.{n}" for i in (0, 1) for n in ("attention.self.query.weight", "output.LayerNorm.weight", "output.LayerNorm.bias")]
GPT2 = ["transformer.wte.weight", "transformer.ln_f.weight"] + [f"transformer.h.{i}.mlp.c_fc.weight" for i in range(3)]
MIXTRAL = ["model.embed_tokens.weight", "model.norm.weight"] + [
    f"model.layers.{i}.{n}" for i in (0, 1) for n in (
        "block_sparse_moe.gate.weight", "block_sparse_moe.experts.0.w1.weight", "block_sparse_moe.experts.1.w1.weight")]
OTHERWISE = {
    "gamma and beta": (BERT, lambda n: n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")),
    "without bert": (BERT, lambda n: n.removeprefix("bert.")),
    "without bert, with gamma": (BERT, lambda n: n.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma")),
    "without transformer": (GPT2, lambda n: n.removeprefix("transformer.")),
    "the other name of a mixture": (MIXTRAL, lambda n: n.replace("block_sparse_moe", "mlp")),
}


@pytest.mark.parametrize("way", ("the base as usual", "the base otherwise"))
@pytest.mark.parametrize("name", OTHERWISE)
def test_other_names_of_one_family_are_told_and_taken_as_the_same(name, way, mp):
    usual, change = OTHERWISE[name]
    base, expert = tensors(usual, 1), tensors(usual, 2)
    both = models("task_arithmetic", "base", ["expert"], {"weight": [0.2, 0.7]})
    checkpoints.save(mp.root / "base", base, config={"model_type": "x"})
    checkpoints.save(mp.root / "expert", expert, config={"model_type": "x"})
    want = mp.merged(both, cwd=mp.root)
    if way == "the base as usual":
        checkpoints.save(mp.root / "expert", renamed(expert, change), config={"model_type": "x"})
    else:
        checkpoints.save(mp.root / "base", renamed(base, change), config={"model_type": "x"})
        want = renamed(want, change)
    report = mp.report(both, cwd=mp.root)
    got = checkpoints.read_checkpoint(mp.root / f"out{mp.made}")
    assert set(got) == set(want) and all(checkpoints.same_bits(got[n], want[n]) for n in got)
    assert "taken as the same" in json.dumps(report["warnings"]) and report["tensors"]["dropped"] == 0
    out = mp.root / f"out{mp.made}"
    mp.ok("verify", out)
    mp.ok("replay", out, mp.fresh("again"), cwd="/")


def test_names_are_left_alone_where_both_spellings_are_there(mp):
    ts = tensors(["a.x.weight", "x.weight"])
    checkpoints.save(mp.root / "base", ts, config={"model_type": "x"})
    checkpoints.save(mp.root / "expert", ts | tensors(["b.x.weight"]), config={"model_type": "x"})
    mp.refuse(models("task_arithmetic", "base", ["expert"], W), "'b.x.weight' is in expert but not in base", cwd=mp.root)


def test_fused_and_single_experts_are_told_apart_by_name(mp):
    single = tensors(["model.norm.weight"] + [f"model.layers.0.mlp.experts.{e}.gate_proj.weight" for e in range(3)])
    fused = tensors(["model.norm.weight", "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"])
    checkpoints.save(mp.root / "single", single, config={"model_type": "x"})
    checkpoints.save(mp.root / "fused", fused, config={"model_type": "x"})
    for base, expert in (("single", "fused"), ("fused", "single")):
        run = mp.refuse(models("task_arithmetic", base, [expert], W), "fused: stores the experts", "single stores them one by one", "save it again", cwd=mp.root)
        assert run.err.count("\n") == 1


# --- modules ---------------------------------------------------------------------------------------------------------


LLAVA = {
    "text_decoder": ["language_model.model.embed_tokens.weight", "language_model.model.layers.0.mlp.w", "language_model.model.layers.1.mlp.w",
                     "language_model.model.norm.weight", "language_model.lm_head.weight"],
    "multi_modal_projector": ["multi_modal_projector.linear_1.weight", "multi_modal_projector.linear_1.bias"],
    "vision_tower": ["vision_tower.vision_model.embeddings.position_embedding.weight", *(f"vision_tower.vision_model.encoder.layers.{i}.w" for i in range(3))],
}
QWEN_VL = {
    "text_decoder": ["model.embed_tokens.weight", "model.layers.0.mlp.w", "model.layers.1.mlp.w", "model.norm.weight", "lm_head.weight"],
    "multi_modal_projector": ["visual.merger.ln_q.weight", "visual.merger.mlp.0.weight", "visual.merger.mlp.2.weight"],
    "vision_tower": ["visual.patch_embed.proj.weight", *(f"visual.blocks.{i}.w" for i in range(3))],
}
T5 = {
    "encoder": ["encoder.embed_tokens.weight", *(f"encoder.block.{i}.layer.0.w" for i in range(2)), "encoder.final_layer_norm.weight"],
    "decoder": ["decoder.embed_tokens.weight", *(f"decoder.block.{i}.layer.0.w" for i in range(3)), "decoder.final_layer_norm.weight"],
    "shared": ["shared.weight", "lm_head.weight"],
}
FAMILIES = {"LLaVA": LLAVA, "Qwen-VL": QWEN_VL, "T5": T5}


def pair(mp, family, config=None):
    names = [n for part in family.values() for n in part]
    for i, model in enumerate("ab"):
        checkpoints.save(mp.root / model, tensors(names, i), config=config or {"model_type": "x"})
    return [checkpoints.read_checkpoint(mp.root / m) for m in "ab"]


@pytest.mark.parametrize("module", ("text_decoder", "multi_modal_projector", "vision_tower", "encoder", "decoder", "shared"))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_module_has_mergekits_name_and_tensors(family, module, mp):
    """Exactly these are merged; all others are the donor's."""
    if module not in FAMILIES[family]:
        pytest.skip("no such module")
    a, b = pair(mp, FAMILIES[family])
    got = mp.merged({"merge_method": "passthrough", "base_model": "a", "modules": {module: {"models": [{"model": "b"}]}}} | {"base_model": None}, cwd=mp.root)
    assert all(checkpoints.same_bits(got[n], b[n]) for n in got)
    got = mp.merged({"merge_method": "linear", "base_model": "a", "modules": {module: {"models": [{"model": "a", "parameters": {"weight": 0}}, {"model": "b", "parameters": {"weight": 1}}]}}}, cwd=mp.root)
    for part, names in FAMILIES[family].items():
        assert all(checkpoints.same_bits(got[n], (b if part == module else a)[n]) for n in names), part


@pytest.mark.parametrize("family", FAMILIES)
def test_all_modules_make_the_whole(family, mp):
    pair(mp, FAMILIES[family])
    both = [{"model": m, "parameters": {"weight": 0.5}} for m in "ab"]
    whole = mp.merged({"merge_method": "linear", "models": both}, cwd=mp.root)
    parts = mp.merged({"merge_method": "linear", "modules": {m: {"models": both} for m in FAMILIES[family]}}, cwd=mp.root)
    assert all(checkpoints.same_bits(whole[n], parts[n]) for n in whole)


def test_a_module_and_the_rest(mp):
    a, b = pair(mp, LLAVA)
    def one(model):
        return {"models": [{"model": model, "parameters": {"weight": 1}}]}
    got = mp.merged({"merge_method": "linear", "modules": {"default": one("a"), "vision_tower": one("b")}}, cwd=mp.root)
    for part, names in LLAVA.items():
        assert all(checkpoints.same_bits(got[n], (b if part == "vision_tower" else a)[n]) for n in names)


def slices(*layers):
    return {"slices": [{"sources": [source("a", i, i + 1)]} for i in layers]}


def sliced(mp, family, config, **modules):
    pair(mp, family, config)
    out = mp.merge({"merge_method": "passthrough", "base_model": "a", "modules": {m: slices(*s) for m, s in modules.items()}}, cwd=mp.root)
    return json.loads((out / "config.json").read_text()), checkpoints.read_checkpoint(out)


def test_a_sliced_part_is_counted_in_its_own_part_of_the_config(mp):
    config = {"model_type": "x", "text_config": {"num_hidden_layers": 2, "layer_types": ["t0", "t1"]},
              "vision_config": {"num_hidden_layers": 3, "layer_types": ["v0", "v1", "v2"]}}
    got, stored = sliced(mp, LLAVA, config, vision_tower=(2, 2, 0, 1, 0))
    assert got["text_config"] == config["text_config"]
    assert got["vision_config"] == {"num_hidden_layers": 5, "layer_types": ["v2", "v2", "v0", "v1", "v0"]}
    assert "vision_tower.vision_model.embeddings.position_embedding.weight" in stored and len(stored) == 13
    got, stored = sliced(mp, LLAVA, config, text_decoder=(1, 0, 1), vision_tower=(0,))
    assert got["text_config"] == {"num_hidden_layers": 3, "layer_types": ["t1", "t0", "t1"]}
    assert got["vision_config"] == {"num_hidden_layers": 1, "layer_types": ["v0"]}


def test_depth_and_decoder_keys(mp):
    got, _ = sliced(mp, QWEN_VL, {"model_type": "x", "num_hidden_layers": 2, "vision_config": {"depth": 3}}, vision_tower=(0, 1))
    assert (got["num_hidden_layers"], got["vision_config"]) == (2, {"depth": 2})
    got, _ = sliced(mp, T5, {"model_type": "t5", "num_layers": 2, "num_hidden_layers": 2, "num_decoder_layers": 3}, decoder=(0, 2))
    assert (got["num_layers"], got["num_hidden_layers"], got["num_decoder_layers"]) == (2, 2, 2)
    got, _ = sliced(mp, T5, {"model_type": "t5", "num_layers": 2, "num_hidden_layers": 2, "num_decoder_layers": 3}, encoder=(0, 1, 1))
    assert (got["num_layers"], got["num_hidden_layers"], got["num_decoder_layers"]) == (3, 3, 3)
    got, _ = sliced(mp, T5, {"model_type": "bart", "num_hidden_layers": 2, "encoder_layers": 2, "decoder_layers": 3}, encoder=(0,))
    assert (got["num_hidden_layers"], got["encoder_layers"], got["decoder_layers"]) == (1, 1, 3)


def test_unknown_and_ambiguous_modules_are_refused(mp):
    pair(mp, LLAVA)
    for name in ("audio_tower", "model.layer", "layers"):
        mp.refuse({"merge_method": "passthrough", "modules": {name: {"models": [{"model": "a"}]}}}, f"'{name}'", "language_model.model.layers", cwd=mp.root)
    mp.refuse({"merge_method": "passthrough", "modules": {n: {"models": [{"model": "a"}]} for n in ("vision_tower", "vision_model")}}, "two", cwd=mp.root)


# --- config.json -----------------------------------------------------------------------------------------------------


def test_override_architecture_is_what_the_output_says(mp):
    base = checkpoints.llama(1)
    for m in "ab":
        checkpoints.save(mp.root / m, base)
    other = {"model": {"model": "a", "override_architecture": "MistralForCausalLM"}, "parameters": W}
    out = mp.merge({"merge_method": "linear", "models": [other, {"model": "b", "parameters": W}]}, cwd=mp.root)
    assert json.loads((out / "config.json").read_text())["architectures"] == ["MistralForCausalLM"]
    report = mp.report({"merge_method": "linear", "models": [{"model": "b", "parameters": W}, other]}, cwd=mp.root)
    assert "override_architecture of 'a' is ignored" in json.dumps(report["warnings"])


def test_the_last_slice_may_not_have_more_sources_than_the_first(mp):
    """mergekit makes the tensors behind the layers from some of them only."""
    for i, m in enumerate("ab"):
        checkpoints.save(mp.root / m, checkpoints.llama(i))
    one, two = [source("a", 0, 1, weight=1)], [source("a", 1, 2, weight=1), source("b", 1, 2, weight=1)]
    mp.refuse(recipes.sliced("linear", [one, two]), "recipe", "lm_head.weight", "2 sources", "first slice", cwd=mp.root)
    mp.merge(recipes.sliced("linear", [two, one]), cwd=mp.root)
    mp.merge(recipes.sliced("linear", [[source("a", 0, 1, weight=1), source("b", 0, 1, weight=0)], two]), cwd=mp.root)


def test_whole_numbers_are_no_type_of_weights(mp):
    checkpoints.save(mp.root / "a", checkpoints.llama(1))
    for key in ("dtype", "out_dtype"):
        for name in ("int64", "torch.int64"):
            mp.refuse(models("linear", None, ["a"], W, **{key: name}), key, name, "whole numbers", cwd=mp.root)
    mp.merge(models("linear", None, ["a"], W, dtype="torch.bfloat16", out_dtype=""), cwd=mp.root)
