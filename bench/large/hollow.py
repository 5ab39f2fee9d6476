"""usage: hollow.py FOLDER [EXPERTS]: a base and experts of the size of Llama 3.1 405B, headers and no data (sparse files).

126 layers, hidden 16384, MLP 53248, vocabulary 128256, bfloat16, 191 shards each; prints the recipe's path.
"""

import json
import struct
import sys
from pathlib import Path

LAYERS, HIDDEN, KEYS, MLP, VOCABULARY, SHARDS = 126, 16384, 1024, 53248, 128256, 191


def shapes():
    yield "model.embed_tokens.weight", [VOCABULARY, HIDDEN]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", [HIDDEN]
        yield prefix + "mlp.down_proj.weight", [HIDDEN, MLP]
        yield prefix + "mlp.gate_proj.weight", [MLP, HIDDEN]
        yield prefix + "mlp.up_proj.weight", [MLP, HIDDEN]
        yield prefix + "post_attention_layernorm.weight", [HIDDEN]
        yield prefix + "self_attn.k_proj.weight", [KEYS, HIDDEN]
        yield prefix + "self_attn.o_proj.weight", [HIDDEN, HIDDEN]
        yield prefix + "self_attn.q_proj.weight", [HIDDEN, HIDDEN]
        yield prefix + "self_attn.v_proj.weight", [KEYS, HIDDEN]
    yield "model.norm.weight", [HIDDEN]
    yield "lm_head.weight", [VOCABULARY, HIDDEN]


def shards():
    """Tensors in file order, in SHARDS parts of about the same size."""
    tensors = [(name, shape, 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)) for name, shape in shapes()]
    limit = sum(size for *_, size in tensors) / SHARDS
    shard, filled = [], 0
    for tensor in tensors:
        if shard and filled + tensor[2] > limit:
            yield shard
            shard, filled = [], 0
        shard.append(tensor)
        filled += tensor[2]
    yield shard


def write_shard(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, size in tensors:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)


def write_model(folder):
    folder.mkdir(parents=True, exist_ok=True)
    parts, weight_map = list(shards()), {}
    for i, tensors in enumerate(parts):
        name = f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors"
        write_shard(folder / name, tensors)
        weight_map |= {tensor[0]: name for tensor in tensors}
    total = sum(size for tensors in parts for *_, size in tensors)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": MLP,
              "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))


def main(folder, experts=8):
    folder = Path(folder)
    names = [f"expert{i}" for i in range(experts)]
    for name in ["base", *names]:
        write_model(folder / name)
    models = "".join(f"  - {{model: {name}, parameters: {{weight: 0.3, density: 0.4}}}}\n" for name in names)
    (folder / "recipe.yml").write_text(f"merge_method: ties\nbase_model: base\nmodels:\n{models}")
    print(folder / "recipe.yml")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
