"""Small checkpoints of several model families, as transformers builds them: a base, fine-tunes of it, and one unlike model.

Weights are float32 (one family is bfloat16), deltas are random and about a tenth of the weights, so that no two magnitudes are equal
and nothing is ill-conditioned.
"""

import json

import numpy as np
import torch
import transformers

import checkpoints

TUNED = "abcd"
LLAMA = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, vocab_size=64, max_position_embeddings=64,
)


def llama(**options):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA | options))


def llama_tied():
    return llama(tie_word_embeddings=True)


def qwen2():
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**LLAMA, tie_word_embeddings=True))


def qwen3():
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**LLAMA, head_dim=8))


def gemma2():
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**LLAMA, head_dim=8))


def neox():
    config = transformers.GPTNeoXConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, vocab_size=64, max_position_embeddings=16, tie_word_embeddings=False)
    return transformers.GPTNeoXForCausalLM(config)


def mixtral():
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**LLAMA | {"num_hidden_layers": 2}, num_local_experts=4))


def qwen3_moe():
    moe = dict(head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, tie_word_embeddings=False)
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**LLAMA | {"num_hidden_layers": 2}, **moe))


def t5():
    config = transformers.T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=3, num_decoder_layers=2, num_heads=4, vocab_size=64, feed_forward_proj="gated-gelu", decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config)


def bert():
    config = transformers.BertConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, vocab_size=64, max_position_embeddings=32, num_labels=3)
    return transformers.BertForSequenceClassification(config)


ARCHITECTURES = {f.__name__: f for f in (llama, llama_tied, qwen2, qwen3, gemma2, neox, mixtral, qwen3_moe, t5, bert)}


# Where transformers 5 renames while saving. (Fused experts stay fused here, as mergekit writes them; transformers would split them.)
FILE_NAMES = {("gpt_neox", "lm_head.weight"): "embed_out.weight"}


def legacy_buffers(layers, positions=16, rotary=4):
    """What older GPT-NeoX files hold for each layer, and what mergekit's table of this architecture wants."""
    mask = np.tril(np.ones((1, 1, positions, positions), bool))
    frequencies = 10000.0 ** -(np.arange(0, rotary, 2, np.float32) / rotary)
    for layer in range(layers):
        prefix = f"gpt_neox.layers.{layer}.attention"
        yield f"{prefix}.bias", checkpoints.Tensor.of("BOOL", mask)
        yield f"{prefix}.masked_bias", checkpoints.Tensor.of("F32", np.float32(-1e9))
        yield f"{prefix}.rotary_emb.inv_freq", checkpoints.Tensor.of("F32", frequencies.astype(np.float32))


def stored(model, seed, dtype="F32"):
    """The model's tensors under the names that its files have, with random values in the place of ones and zeros too."""
    random = np.random.default_rng(seed)
    tied = set(getattr(model, "_tied_weights_keys", None) or ()) if getattr(model.config, "tie_word_embeddings", False) else set()
    out = {}
    for name, tensor in model.state_dict().items():
        if name in tied:
            continue
        noise = random.standard_normal(tuple(tensor.shape)).astype(np.float32) * np.float32(0.02)
        out[FILE_NAMES.get((model.config.model_type, name), name)] = checkpoints.Tensor.of(dtype, tensor.detach().float().numpy() + noise)
    if model.config.model_type == "gpt_neox":
        out |= dict(legacy_buffers(model.config.num_hidden_layers))
    return out


def config_of(model, dtype):
    model.config.architectures = [type(model).__name__]
    return json.loads(model.config.to_json_string(use_diff=False)) | {"dtype": dtype}


def save(root, name, build, dtype="F32"):
    """base, a, b, c, d and far under root / name."""
    torch.manual_seed(7)
    model = build()
    config = config_of(model, {"F32": "float32", "BF16": "bfloat16"}[dtype])
    base = stored(model, 1, dtype)
    checkpoints.save(root / name / "base", base, config=config)
    for i, tuned in enumerate(TUNED):
        checkpoints.save(root / name / tuned, checkpoints.fine_tune(base, 10 + i), "sharded" if tuned == "b" else "single", config=config)
    torch.manual_seed(8)
    checkpoints.save(root / name / "far", stored(build(), 2, dtype), config=config)
    return root / name
