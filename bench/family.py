"""Generates a Llama-shaped family of checkpoints: family.py FOLDER large|small|tiny EXPERTS [uneven]

FOLDER/base and FOLDER/expert-1 ... are complete folders (config.json, model.safetensors, bfloat16). An expert is
the base plus normal noise of 5e-4, rounded to bfloat16, beside weights of 0.02; every value follows from
the seed. With `uneven` the noise of each MiB of a tensor has a size of its own: 5e-4 times one log-normal factor for
the tensor and one for the MiB. Nothing is held in memory but a pool of normal numbers and one chunk.
"""
import json
import math
import os
import sys

import torch

SEED = 20260529
WEIGHT_SIZE = 0.02
UPDATE_SIZE = 5e-4
UNEVEN_TENSORS, UNEVEN_BLOCKS = 0.5, 0.8  # standard deviations of the logarithms
CHUNK = 1 << 18
BLOCK = 1 << 19  # elements of a MiB
POOL = 1 << 24

SHAPES = {  # 1.00 GiB, 64 MiB and 7 MiB of bfloat16
    "large": dict(vocab=32768, hidden=2048, mlp=5760, layers=9, heads=32, kv_heads=4),
    "small": dict(vocab=8192, hidden=512, mlp=1408, layers=9, heads=8, kv_heads=2),
    "tiny": dict(vocab=4096, hidden=256, mlp=704, layers=2, heads=8, kv_heads=2),
}


def config(shape):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape["hidden"],
        "intermediate_size": shape["mlp"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"],
        "vocab_size": shape["vocab"],
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def tensors(shape):
    """Names and shapes as transformers gives them."""
    hidden, mlp = shape["hidden"], shape["mlp"]
    kv = hidden // shape["heads"] * shape["kv_heads"]
    yield "model.embed_tokens.weight", [shape["vocab"], hidden]
    for layer in range(shape["layers"]):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", [hidden]
        yield name + "self_attn.q_proj.weight", [hidden, hidden]
        yield name + "self_attn.k_proj.weight", [kv, hidden]
        yield name + "self_attn.v_proj.weight", [kv, hidden]
        yield name + "self_attn.o_proj.weight", [hidden, hidden]
        yield name + "post_attention_layernorm.weight", [hidden]
        yield name + "mlp.gate_proj.weight", [mlp, hidden]
        yield name + "mlp.up_proj.weight", [mlp, hidden]
        yield name + "mlp.down_proj.weight", [hidden, mlp]
    yield "model.norm.weight", [hidden]
    yield "lm_head.weight", [shape["vocab"], hidden]


def header(shape):
    entries, begin = {"__metadata__": {"format": "pt"}}, 0
    for name, dimensions in tensors(shape):
        end = begin + 2 * math.prod(dimensions)
        entries[name] = {"dtype": "BF16", "shape": dimensions, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class Numbers:
    """Normal numbers by stream: slices of one pool at places drawn from the stream's own generator."""

    def __init__(self):
        self.pool = torch.empty(POOL + CHUNK).normal_(generator=torch.Generator().manual_seed(SEED))

    def places(self, stream):
        generator = torch.Generator().manual_seed(SEED + 1 + stream)
        while True:
            yield int(torch.randint(POOL, (1,), generator=generator))


class Sizes:
    """The size of an expert's noise from block to block of one tensor after the other."""

    def __init__(self, uneven, stream):
        self.uneven, self.generator = uneven, torch.Generator().manual_seed(SEED - 1 - stream)

    def factor(self, deviation):
        return math.exp(deviation * float(torch.randn(1, generator=self.generator)))

    def next_tensor(self):
        self.tensor = self.factor(UNEVEN_TENSORS) if self.uneven else 1.0

    def next_block(self):
        return UPDATE_SIZE * self.tensor * (self.factor(UNEVEN_BLOCKS) if self.uneven else 1.0)


class Writer:
    def __init__(self, folder, shape, number, numbers, uneven):
        self.shape, self.number, self.numbers = shape, number, numbers
        self.sizes = Sizes(uneven, number)
        self.folder = os.path.join(folder, f"expert-{number}" if number else "base")
        self.values = torch.empty(CHUNK)
        self.stored = torch.empty(CHUNK, dtype=torch.bfloat16)

    def write(self):
        os.makedirs(self.folder, exist_ok=True)
        with open(os.path.join(self.folder, "config.json"), "w", encoding="ascii") as file:
            json.dump(config(self.shape), file, indent=2)
        base, noise = self.numbers.places(0), self.numbers.places(self.number)
        with open(os.path.join(self.folder, "model.safetensors"), "wb", buffering=0) as file:
            file.write(header(self.shape))
            for name, dimensions in tensors(self.shape):
                left, written = math.prod(dimensions), 0
                self.sizes.next_tensor()
                while left > 0:
                    count = min(left, CHUNK)
                    if written % BLOCK == 0:
                        self.size = self.sizes.next_block()
                    self.write_chunk(file, count, 1.0 if "norm" in name else 0.0, next(base), next(noise))
                    left, written = left - count, written + count
            os.fsync(file.fileno())

    def write_chunk(self, file, count, mean, base_place, noise_place):
        pool, values, stored = self.numbers.pool, self.values[:count], self.stored[:count]
        torch.mul(pool[base_place : base_place + count], WEIGHT_SIZE, out=values)
        values.add_(mean)
        stored.copy_(values)  # the base as it is stored
        if self.number:
            values.copy_(stored).add_(pool[noise_place : noise_place + count], alpha=self.size)
            stored.copy_(values)
        file.write(memoryview(stored.view(torch.int16).numpy()).cast("B"))


def main():
    folder, size, experts = sys.argv[1], sys.argv[2], int(sys.argv[3])
    uneven = sys.argv[4:] == ["uneven"]
    torch.set_num_threads(1)  # chunks are too small to share
    numbers = Numbers()
    for number in range(experts + 1):
        Writer(folder, SHAPES[size], number, numbers, uneven).write()


main()
