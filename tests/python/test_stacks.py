"""Stacks of layers of families whose config lists the kinds of their layers, loaded by transformers."""

import json

import pytest

import recipes
from recipes import source
from test_loaders import load, torch, transformers  # noqa: F401  (fixtures)

SMALL = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
             head_dim=8, max_position_embeddings=64, pad_token_id=0)
FAMILIES = {
    "Gemma2": dict(sliding_window=8),
    "Gemma3Text": dict(sliding_window=8, sliding_window_pattern=3),
    "Qwen2": {},
    "Qwen3": {},
    "SmolLM3": dict(no_rope_layer_interval=2, no_rope_layers=None),
    "Cohere2": dict(sliding_window=8),
    "Llama": {},
    "Olmo3": dict(sliding_window=8),
}
SOURCES = [0, 1, 2, 1, 2, 3]  # layers 1 and 2 twice, so that the rhythm of the kinds changes


def saved(path, family, transformers):  # noqa: F811
    more = {k: v for k, v in (SMALL | FAMILIES[family]).items() if v is not None}
    config = getattr(transformers, f"{family}Config")(**more)
    name = {"Gemma3Text": "Gemma3"}.get(family, family)
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(path)
    return json.loads((path / "config.json").read_text())


def stack(mp):
    m = mp.root / "m"
    return mp.merge(recipes.sliced("passthrough", [[source(m, 0, 3)], [source(m, 1, 4)]]))


@pytest.mark.parametrize("family", FAMILIES)
def test_each_layer_keeps_its_kind(family, mp, torch, transformers):  # noqa: F811
    """Lists of one entry for each layer follow the layers; transformers loads the stack and runs it."""
    torch.manual_seed(0)
    before = saved(mp.root / "m", family, transformers)
    out = stack(mp)
    after = json.loads((out / "config.json").read_text())
    assert after["num_hidden_layers"] == 6
    for key in (k for k, v in before.items() if isinstance(v, list) and len(v) == 4 and "layer" in k):
        assert after[key] == [before[key][s] for s in SOURCES], key
    model = load(transformers, out)
    assert len(model(torch.tensor([[1, 2, 3]])).logits[0]) == 3


@pytest.mark.parametrize("family, period", (("Gemma2", 2), ("Gemma3Text", 3), ("Cohere2", 4)))
def test_a_config_that_leaves_the_kinds_to_a_rule_gets_them_listed(family, period, mp, torch, transformers):  # noqa: F811
    """As older versions wrote it: the rule goes by numbers, which the stack changes."""
    before = saved(mp.root / "m", family, transformers)
    kinds = before.pop("layer_types")
    if family != "Gemma2":
        before["sliding_window_pattern"] = period
    (mp.root / "m/config.json").write_text(json.dumps(before))
    assert kinds == ["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(4)]
    out = stack(mp)
    assert load(transformers, out).config.layer_types == [kinds[s] for s in SOURCES]


def test_a_stack_inside_a_model_of_two_parts(mp, torch, transformers):  # noqa: F811
    """The text part of Gemma 3 with its vision tower: counts and kinds in text_config."""
    text = SMALL | dict(sliding_window=8, num_hidden_layers=4)
    vision = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=4, num_attention_heads=2, image_size=28, patch_size=14)
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=63)
    transformers.Gemma3ForConditionalGeneration(config).save_pretrained(mp.root / "m")
    before = json.loads((mp.root / "m/config.json").read_text())
    m = mp.root / "m"
    out = mp.merge({"merge_method": "passthrough", "modules": {"text_decoder": {"slices": [{"sources": [source(m, 0, 3)]}, {"sources": [source(m, 1, 4)]}]}}})
    after = json.loads((out / "config.json").read_text())
    assert after["vision_config"] == before["vision_config"]
    assert after["text_config"]["num_hidden_layers"] == 6
    assert after["text_config"]["layer_types"] == [before["text_config"]["layer_types"][s] for s in SOURCES]
    model, told = transformers.Gemma3ForConditionalGeneration.from_pretrained(out, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"] and not told["mismatched_keys"]


def test_lists_of_layer_numbers_follow_the_layers(mp, torch, transformers):  # noqa: F811
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(**SMALL, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2, mlp_only_layers=[1])
    transformers.Qwen3MoeForCausalLM(config).save_pretrained(mp.root / "m")
    out = stack(mp)
    assert json.loads((out / "config.json").read_text())["mlp_only_layers"] == [1, 3]
    load(transformers, out)


def test_a_whole_model_changes_nothing(mp, transformers):  # noqa: F811
    saved(mp.root / "m", "Gemma2", transformers)
    out = mp.merge(recipes.sliced("passthrough", [[source(mp.root / "m", 0, 4)]]))
    assert (out / "config.json").read_bytes() == (mp.root / "m/config.json").read_bytes()
