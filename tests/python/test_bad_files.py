"""Damaged, lying and foreign files: exit status 2, the file named, nothing published, nothing left, inputs untouched."""

import json
import os
import struct

import numpy as np
import pytest

import checkpoints
import families
import recipes
from checkpoints import Tensor, file_bytes, header_of

NAME = "model.layers.0.mlp.up_proj.weight"
OTHER = "model.layers.1.mlp.up_proj.weight"


def merge_of(family):
    return recipes.models("task_arithmetic", family.base, family.experts, {"weight": 0.5})


class File:
    """A sound file taken apart: each fault is a function of it that yields other bytes."""

    def __init__(self, tensors):
        self.header, self.body = header_of(tensors, {"format": "pt"})
        self.text = json.dumps(self.header).encode()
        self.whole = file_bytes(self.header, self.body)
        self.data_at = len(self.whole) - len(self.body)

    def with_entry(self, **change):
        """One tensor's entry changed; None takes a field away."""
        entry = {k: v for k, v in (self.header[NAME] | change).items() if v is not None}
        return file_bytes(self.header | {NAME: entry}, self.body)

    def with_text(self, old, new):
        assert old in self.text
        return file_bytes(self.text.replace(old, new, 1), self.body)

    def moved(self, by_begin, by_end):
        begin, end = self.header[NAME]["data_offsets"]
        return self.with_entry(data_offsets=[begin + by_begin, end + by_end])

    def with_length(self, n):
        return struct.pack("<Q", n) + self.whole[8:]

    def with_hole(self):
        """Four bytes that no tensor owns, before one tensor; all lengths are right."""
        begin, end = self.header[NAME]["data_offsets"]
        out = {n: dict(e) for n, e in self.header.items()}
        for n, e in out.items():
            if n != "__metadata__" and e["data_offsets"][0] >= begin:
                e["data_offsets"] = [x + 4 for x in e["data_offsets"]]
        return file_bytes(out, self.body[:begin] + b"\0\0\0\0" + self.body[begin:])

    def with_overlap(self):
        """Two tensors of one shape on the same bytes, and the freed bytes cut out."""
        out = {n: e for n, e in self.header.items() if n != OTHER}
        return file_bytes(out | {OTHER: self.header[NAME]}, self.body)


def nested(depth):
    return b'{"a":' * depth + b"1" + b"}" * depth


# fault -> (bytes of the file, words that the message needs beside the file's name)
FAULTS = {
    "empty": (lambda f: b"", []),
    "seven bytes": (lambda f: f.whole[:7], []),
    "eight bytes": (lambda f: f.whole[:8], []),
    "cut in the header": (lambda f: f.whole[: f.data_at // 2], []),
    "cut behind the header": (lambda f: f.whole[: f.data_at], []),
    "cut one byte into the data": (lambda f: f.whole[: f.data_at + 1], []),
    "cut at half": (lambda f: f.whole[: len(f.whole) // 2], [lambda f: len(f.body), lambda f: len(f.whole) // 2 - f.data_at]),
    "one byte short": (lambda f: f.whole[:-1], []),
    "one byte long": (lambda f: f.whole + b"\0", []),
    "header length 0": (lambda f: struct.pack("<Q", 0) + f.body, []),
    "header length 2^63": (lambda f: f.with_length(1 << 63), []),
    "header length 2^64 - 1": (lambda f: f.with_length((1 << 64) - 1), []),
    "header length 2^64 - 8": (lambda f: f.with_length((1 << 64) - 8), []),
    "header of more than 100 MB": (lambda f: f.with_length(100_000_001), []),
    "header is not UTF-8": (lambda f: f.with_text(b"model.norm", b"mod\xff\xfe.norm"), []),
    "header starts with a byte order mark": (lambda f: file_bytes(b"\xef\xbb\xbf" + f.text, f.body), []),
    "header is an array": (lambda f: file_bytes(b"[" + f.text + b"]", f.body), []),
    "header is a string": (lambda f: file_bytes(b'"x"', f.body), []),
    "header is not JSON": (lambda f: file_bytes(f.text[:-1] + b",", f.body), []),
    "header with a trailing comma": (lambda f: file_bytes(f.text[:-1] + b",}", f.body), []),
    "header with text after its end": (lambda f: file_bytes(f.text + b"{}", f.body), []),
    "header with a comment": (lambda f: file_bytes(b"/* x */" + f.text, f.body), []),
    "header nested too deep": (lambda f: file_bytes(nested(200_000), f.body), []),
    "a tensor is null": (lambda f: file_bytes(f.header | {NAME: None}, f.body), [NAME]),
    "a tensor is an array": (lambda f: file_bytes(f.header | {NAME: ["F32", [1], [0, 4]]}, f.body), [NAME]),
    "metadata that is not text": (lambda f: file_bytes(f.header | {"__metadata__": {"format": 1}}, f.body), []),
    "metadata that is a list": (lambda f: file_bytes(f.header | {"__metadata__": ["pt"]}, f.body), []),
    "no dtype": (lambda f: f.with_entry(dtype=None), [NAME]),
    "no shape": (lambda f: f.with_entry(shape=None), [NAME]),
    "no offsets": (lambda f: f.with_entry(data_offsets=None), [NAME]),
    "unknown dtype": (lambda f: f.with_entry(dtype="BF99"), [NAME, "BF99"]),
    "dtype is a number": (lambda f: f.with_entry(dtype=32), [NAME]),
    "negative dimension": (lambda f: f.with_entry(shape=[-24, 16]), [NAME]),
    "fractional dimension": (lambda f: f.with_entry(shape=[24.0, 16]), [NAME]),
    "shape is a number": (lambda f: f.with_entry(shape=384), [NAME]),
    "shape product overflows": (lambda f: f.with_entry(shape=[1 << 40, 1 << 40, 1 << 40]), [NAME]),
    "shape product wraps round to the right size": (lambda f: f.with_entry(shape=[(1 << 32) + 24 * 16, 1 << 32, 0]), [NAME]),
    "bytes overflow": (lambda f: f.with_entry(shape=[1 << 62]), [NAME]),
    "shape and offsets disagree": (lambda f: f.with_entry(shape=[24, 17]), [NAME]),
    "dtype and offsets disagree": (lambda f: f.with_entry(dtype="F64"), [NAME]),
    "one offset": (lambda f: f.with_entry(data_offsets=[0]), [NAME]),
    "three offsets": (lambda f: f.with_entry(data_offsets=[0, 4, 8]), [NAME]),
    "negative offset": (lambda f: f.with_entry(data_offsets=[-4, 4]), [NAME]),
    "fractional offset": (lambda f: f.with_entry(data_offsets=[0.0, 4.0]), [NAME]),
    "offset beyond 64 bits": (lambda f: f.with_entry(data_offsets=[0, 1 << 64]), [NAME]),
    "end before begin": (lambda f: f.with_entry(data_offsets=[400, 0]), [NAME]),
    "offsets beyond the file": (lambda f: f.moved(1 << 40, 1 << 40), []),
    "offsets moved by four": (lambda f: f.moved(4, 4), []),
    "overlap": (lambda f: f.with_overlap(), []),
    "hole": (lambda f: f.with_hole(), []),
    "duplicate tensor": (lambda f: f.with_text(f'"{NAME}"'.encode(), f'"{OTHER}"'.encode()), [OTHER]),
    "duplicate field in a tensor": (lambda f: f.with_text(b'"dtype": "F32"', b'"dtype": "F32", "dtype": "F32"'), []),
    "Git LFS pointer": (lambda f: b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12345\n", ["LFS"]),
    "ZIP (a torch checkpoint)": (lambda f: b"PK\x03\x04" + bytes(300), ["ZIP"]),
    "pickle": (lambda f: b"\x80\x02}q\x00(X\x05\x00\x00\x00" + bytes(100), ["pickle"]),
    "HTML page": (lambda f: b"<!DOCTYPE html>\n<html><body>404</body></html>", ["HTML"]),
    "GGUF": (lambda f: b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(100), ["GGUF"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_file_is_refused_by_name(fault, mp):
    family = families.make(mp.root, experts=2)
    make, words = FAULTS[fault]
    sound = File(family.load(family.experts[1]))
    path = family.experts[1] / "model.safetensors"
    path.write_bytes(make(sound))
    run = mp.refuse(merge_of(family), "e1/model.safetensors", *(w(sound) if callable(w) else w for w in words))
    assert len(run.err) < 4000, "a message that nobody reads"


@pytest.mark.parametrize("fault", ("one byte short", "unknown dtype", "Git LFS pointer", "pickle", "header nested too deep", "empty"))
@pytest.mark.parametrize("command", ("inspect", "diff", "plan"))
def test_every_command_refuses_bad_files_alike(command, fault, mp):
    family = families.make(mp.root, experts=1)
    path = family.base / "model.safetensors"
    path.write_bytes(FAULTS[fault][0](File(family.load(family.experts[0]))))
    arguments = {"inspect": [family.base], "diff": [family.base, family.experts[0]], "plan": [mp.recipe(merge_of(family))]}[command]
    run = mp.run(command, *arguments, "--json")
    assert run.status == 2 and "base/model.safetensors" in json.dumps(run.json["error"])


# --- checkpoints whose files disagree --------------------------------------------------------------------------------


def index_of(folder):
    return json.loads((folder / "model.safetensors.index.json").read_text())


def write_index(folder, index):
    (folder / "model.safetensors.index.json").write_text(index if isinstance(index, str) else json.dumps(index))


def remap(folder, **change):
    index = index_of(folder)
    index["weight_map"] |= change
    write_index(folder, index)


def without_shard(folder):
    (folder / "model-00002-of-00003.safetensors").unlink()


def entry_without_tensor(folder):
    remap(folder, **{"mtp.fc.weight": "model-00002-of-00003.safetensors"})


def entry_in_another_shard(folder):
    remap(folder, **{NAME: next(f for f in set(index_of(folder)["weight_map"].values()) if f != index_of(folder)["weight_map"][NAME])})


def tensor_without_entry(folder):
    index = index_of(folder)
    del index["weight_map"][NAME]
    write_index(folder, index)


def stray_shard(folder):
    checkpoints.write_file(folder / "model-00004-of-00004.safetensors", {"stray.weight": Tensor.of("F32", np.ones(3))})


def path_in_shard_name(folder):
    (folder / "sub").mkdir()
    os.rename(folder / "model-00001-of-00003.safetensors", folder / "sub" / "x.safetensors")
    index = index_of(folder)
    index["weight_map"] = {n: f.replace("model-00001-of-00003", "sub/x") for n, f in index["weight_map"].items()}
    write_index(folder, index)


def path_out_of_the_folder(folder):
    remap(folder, **{NAME: f"../{folder.name}/model-00001-of-00003.safetensors"})


def absolute_shard_name(folder):
    remap(folder, **{NAME: str(folder / "model-00001-of-00003.safetensors")})


def shard_name_that_is_no_text(folder):
    remap(folder, **{NAME: 3})


def shard_is_a_folder(folder):
    without_shard(folder)
    (folder / "model-00002-of-00003.safetensors").mkdir()


def shard_is_a_dangling_link(folder):
    without_shard(folder)
    (folder / "model-00002-of-00003.safetensors").symlink_to("../blobs/gone")


def shard_is_a_pipe(folder):
    without_shard(folder)
    os.mkfifo(folder / "model-00002-of-00003.safetensors")


def no_index(folder):
    (folder / "model.safetensors.index.json").unlink()


def index_is_cut(folder):
    text = json.dumps(index_of(folder))
    write_index(folder, text[: len(text) // 2])


def index_without_map(folder):
    write_index(folder, {"metadata": {}})


def index_is_a_list(folder):
    write_index(folder, [])


def index_with_a_name_twice(folder):
    text = json.dumps(index_of(folder))
    entry = f'"{NAME}": "model-00001-of-00003.safetensors", '
    write_index(folder, text.replace(f'"{NAME}"', entry + f'"{NAME}"'))


def only_pickles(folder):
    for path in folder.iterdir():
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04" + bytes(100))


def only_gguf(folder):
    for path in folder.iterdir():
        path.unlink()
    (folder / "model-q4.gguf").write_bytes(b"GGUF" + bytes(100))


def nothing_there(folder):
    for path in folder.iterdir():
        path.unlink()


SECOND, INDEX = "model-00002-of-00003.safetensors", "model.safetensors.index.json"
DISAGREEMENTS = {
    without_shard: [SECOND], entry_without_tensor: ["mtp.fc.weight", SECOND], entry_in_another_shard: [NAME], tensor_without_entry: [NAME],
    stray_shard: ["model-00004-of-00004.safetensors"], path_in_shard_name: ["sub/x.safetensors"], path_out_of_the_folder: ["../"],
    absolute_shard_name: [INDEX], shard_name_that_is_no_text: [INDEX], shard_is_a_folder: [SECOND], shard_is_a_dangling_link: [SECOND],
    shard_is_a_pipe: [SECOND], no_index: ["e0"], index_is_cut: [INDEX], index_without_map: [INDEX, "weight_map"], index_is_a_list: [INDEX],
    index_with_a_name_twice: [INDEX, NAME], only_pickles: ["pytorch_model.bin"], only_gguf: ["gguf"], nothing_there: ["e0"],
}


@pytest.mark.parametrize("damage", DISAGREEMENTS, ids=lambda f: f.__name__)
def test_shards_and_index_that_disagree_are_refused(damage, mp):
    family = families.make(mp.root, "F32", "sharded", experts=2)
    damage(family.experts[0])
    mp.refuse(merge_of(family), "e0", *DISAGREEMENTS[damage], timeout=20)


def test_a_superseded_copy_in_another_shard_is_never_taken(mp):
    """The index names one shard for a tensor that two of them hold: refused by name, or the indexed one is read."""
    family = families.make(mp.root, "F32", "sharded", experts=1)
    where = index_of(family.base)["weight_map"][NAME]
    other = family.base / next(f for f in sorted(set(index_of(family.base)["weight_map"].values())) if f != where)
    held = checkpoints.read_file(other)
    checkpoints.write_file(other, held | {NAME: Tensor.of("F32", np.full(held.get(NAME, family.load(family.base)[NAME]).shape, 99.0))})
    run = mp.run("merge", mp.recipe(recipes.models("linear", None, [family.base], {"weight": 1})), mp.root / "out")
    if run.status == 0:
        index = index_of(mp.root / "out")["weight_map"]
        assert checkpoints.read_file(mp.root / "out" / index[NAME])[NAME].raw == family.load(family.base)[NAME].raw
    else:
        assert run.status == 2 and NAME in run.err


def test_a_copy_whose_file_name_says_one_of_two_is_not_silently_complete(mp):
    """An index that names only shard 1 of 2: the name tells that half of the model is missing."""
    family = families.make(mp.root, experts=1)
    file = "model-00001-of-00002.safetensors"
    tensors = family.load(family.experts[0])
    (family.experts[0] / "model.safetensors").rename(family.experts[0] / file)
    write_index(family.experts[0], {"metadata": {}, "weight_map": dict.fromkeys(tensors, file)})
    run = mp.run("merge", mp.recipe(merge_of(family)), mp.root / "out", "--json")
    told = json.dumps(run.json["warnings"] if run.status == 0 else run.json["error"])
    assert run.status in (0, 2) and file in told


def test_all_bad_files_are_told_at_once(mp):
    """Five inputs, three of them bad in their own way: one run tells all three."""
    family = families.make(mp.root, experts=4)
    sound = File(family.load(family.experts[0]))
    for i, fault in ((0, "one byte short"), (2, "Git LFS pointer"), (3, "unknown dtype")):
        (family.experts[i] / "model.safetensors").write_bytes(FAULTS[fault][0](sound))
    run = mp.refuse(merge_of(family), "e0/model.safetensors", "e2/model.safetensors", "e3/model.safetensors", "LFS", "BF99", flags=["--json"])
    assert len(run.json["error"]["faults"]) >= 3
    assert {"kind", "message", "faults"} <= run.json["error"].keys()


def test_float8_weights_are_never_blended_or_dropped(mp):
    """Codes without their scales have no meaning: refused, naming tensor and type."""
    header = {NAME: {"dtype": "F8_E4M3", "shape": [4, 4], "data_offsets": [0, 16]}}
    paths = []
    for i in range(3):
        folder = mp.root / f"m{i}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(file_bytes(header, bytes([i + 1] * 16)))
        paths.append(folder)
    mp.refuse(recipes.models("task_arithmetic", paths[0], paths[1:], {"weight": 0.5}), NAME, "F8_E4M3")
