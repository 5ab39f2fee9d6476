"""Checkpoints made, written and read by hand: numpy and the safetensors layout, nothing else.

A checkpoint is a dict from tensor name to Tensor. A Tensor holds exactly the bits that are stored, so that tests can speak of bits
(-0.0, subnormals, NaN payloads) as well as of values.
"""

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

STORED_AS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?",
}
FLOATS = ("F64", "F32", "F16", "BF16")


def bfloat16_bits(values):
    """float32 values rounded to bfloat16, nearest even; NaN stays NaN."""
    wide = np.ascontiguousarray(values, "<f4").view("<u4").astype(np.uint64)
    nearest = (wide + 0x7FFF + ((wide >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return np.where(np.isnan(values), 0x7FC0, nearest).astype("<u2")


@dataclass(frozen=True, eq=False)
class Tensor:
    dtype: str
    bits: np.ndarray  # of the numpy type in STORED_AS

    @classmethod
    def of(cls, dtype, values):
        """Values rounded once to dtype."""
        values = np.asarray(values)
        if dtype == "BF16":
            return cls(dtype, bfloat16_bits(values.astype("<f4")))
        with np.errstate(over="ignore"):
            return cls(dtype, values.astype(STORED_AS[dtype]))

    @property
    def shape(self):
        return self.bits.shape

    @property
    def raw(self):
        return np.ascontiguousarray(self.bits).tobytes()

    def values(self, kind=np.float32):
        """The values that a reader of the stored tensor sees."""
        if self.dtype == "BF16":
            return (self.bits.astype("<u4") << np.uint32(16)).view("<f4").astype(kind)
        return self.bits.astype(kind)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.raw == b.raw


# --- files -----------------------------------------------------------------------------------------------------------


def header_of(tensors, metadata=None):
    """The header object of a file that stores the tensors in dict order, and its data."""
    header, body = ({} if metadata is None else {"__metadata__": metadata}), b""
    for name, t in tensors.items():
        header[name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [len(body), len(body) + len(t.raw)]}
        body += t.raw
    return header, body


def file_bytes(header, body, align=8, before=b""):
    """A safetensors file of a header (an object, or its text) and data."""
    text = before + (header if isinstance(header, bytes) else json.dumps(header).encode())
    text += b" " * (-len(text) % align)
    return struct.pack("<Q", len(text)) + text + body


def write_file(path, tensors, metadata={"format": "pt"}, **layout):
    Path(path).write_bytes(file_bytes(*header_of(tensors, metadata), **layout))


def read_header(path):
    with open(path, "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        return json.loads(f.read(size)), 8 + size


def read_file(path):
    header, start = read_header(path)
    data = Path(path).read_bytes()[start:]
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            bits = np.frombuffer(data[begin:end], STORED_AS[entry["dtype"]]).reshape(entry["shape"])
            out[name] = Tensor(entry["dtype"], bits)
    return out


def write_sharded(folder, tensors, shards, metadata={"format": "pt"}, stem="model"):
    """Tensors dealt over the shards in turn, with their index."""
    names, weight_map = list(tensors), {}
    for i in range(shards):
        file = f"{stem}-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: tensors[n] for n in names[i::shards]}
        write_file(folder / file, part, metadata)
        weight_map |= dict.fromkeys(part, file)
    total = sum(len(t.raw) for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=2))


def read_checkpoint(path):
    """Everything that a checkpoint path stores: a file, or a folder with or without an index."""
    path = Path(path)
    if path.is_file():
        return read_file(path)
    index = path / "model.safetensors.index.json"
    if index.exists():
        where = json.loads(index.read_text())["weight_map"]
        files = {file: read_file(path / file) for file in set(where.values())}
        assert {n for f in files.values() for n in f} == set(where), "the index and the headers disagree"
        return {name: files[file][name] for name, file in where.items()}
    return read_file(path / "model.safetensors")


def save(path, tensors, layout="single", config=None, metadata={"format": "pt"}):
    """Writes a checkpoint in one of the layouts; yields the path to name in a recipe."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config or llama_config(tensors), indent=2) + "\n")
    if layout == "sharded":
        write_sharded(path, tensors, 3, metadata)
    else:
        write_file(path / "model.safetensors", tensors, metadata)
    return path / "model.safetensors" if layout == "file" else path


def digests(root, ignore=()):
    """Path and digest of each file below root (and each link's target, and each empty folder)."""
    out = {}
    for p in sorted(Path(root).rglob("*")):
        name = str(p.relative_to(root))
        if p.is_symlink():
            out[name] = f"-> {p.readlink()}"
        elif p.is_file():
            out[name] = hashlib.sha256(p.read_bytes()).hexdigest()
        else:
            out[name] = "folder"
    return {n: d for n, d in out.items() if not any(n == i or n.startswith(f"{i}/") for i in ignore)}


# --- models ----------------------------------------------------------------------------------------------------------


def llama_shapes(layers=2, hidden=16, inner=24, vocab=40, tied=False):
    """Tensor names and shapes of a Llama, in the order that its files usually have."""
    shapes = {"model.embed_tokens.weight": (vocab, hidden)}
    for i in range(layers):
        p = f"model.layers.{i}"
        shapes |= {f"{p}.self_attn.{x}_proj.weight": (hidden, hidden) for x in "qkvo"}
        shapes |= {f"{p}.mlp.{x}_proj.weight": (inner, hidden) for x in ("gate", "up")}
        shapes |= {f"{p}.mlp.down_proj.weight": (hidden, inner)}
        shapes |= {f"{p}.{x}_layernorm.weight": (hidden,) for x in ("input", "post_attention")}
    shapes["model.norm.weight"] = (hidden,)
    if not tied:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def dtype_of(name, dtype):
    """One dtype for all, or 'mixed': norms F32, attention BF16, MLP F16, the rest BF16."""
    if dtype != "mixed":
        return dtype
    return "F32" if "norm" in name else "F16" if "mlp" in name else "BF16"


def llama(seed, dtype="F32", scale=0.05, **size):
    """A Llama-shaped checkpoint of random values."""
    random = np.random.default_rng(seed)
    return {
        name: Tensor.of(dtype_of(name, dtype), random.standard_normal(shape, np.float32) * np.float32(scale))
        for name, shape in llama_shapes(**size).items()
    }


def fine_tune(base, seed, share=0.1, dtype=None):
    """The base plus a random delta, about share of the weights' size; in the base's dtypes, or all in dtype."""
    random = np.random.default_rng(seed)
    out = {}
    for name, t in base.items():
        if t.dtype not in FLOATS:
            out[name] = t
            continue
        values = t.values(np.float64)
        size = share * float(np.abs(values).mean()) if values.size else 0.0
        moved = values + random.standard_normal(t.shape) * size
        out[name] = Tensor.of(dtype_of(name, dtype) if dtype else t.dtype, moved)
    return out


def llama_config(tensors):
    layers = {name.split(".")[2] for name in tensors if name.startswith("model.layers.")}
    hidden = tensors["model.norm.weight"].shape[0] if "model.norm.weight" in tensors else 16
    embedding = tensors.get("model.embed_tokens.weight")
    up = tensors.get("model.layers.0.mlp.up_proj.weight")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": up.shape[0] if up else 24,
        "num_hidden_layers": len(layers),
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": embedding.shape[0] if embedding else 40,
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "torch_dtype": "float32",
    }
