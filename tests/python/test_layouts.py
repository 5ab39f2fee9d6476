"""Inputs come in many legal shapes; the output has the shape of the base."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import yaml

import checkpoints
import families
import oracle
import recipes
from checkpoints import Tensor, digests, file_bytes, header_of, read_checkpoint, read_header


def half_way(mp, family, **top):
    """A plain merge with the base and all experts of a family."""
    return recipes.models("task_arithmetic", family.base, family.experts, {"weight": 0.5}, **top)


# --- files of the output ---------------------------------------------------------------------------------------------

SIDE_FILES = {
    "tokenizer.json": b'{"model": {"type": "BPE"}}\n', "tokenizer.model": bytes(range(256)), "generation_config.json": b"{}",
    "chat_template.jinja": b"{{ x }}", "LICENSE": b"Do what you like.\n", "modeling_x.py": b"print()\n", "empty.txt": b"",
    "1_Pooling/config.json": b'{"pooling": "mean"}', "2_Dense/deep/er/note.txt": b"deep\n", "name with spaces.txt": b"x", "naïve.txt": b"y",
}
NOT_COPIED = {
    ".gitattributes": b"* binary\n", ".cache/huggingface/x.lock": b"", "pytorch_model.bin": b"PK\x03\x04 zip", "model.gguf": b"GGUF",
    "tf_model.h5": b"\x89HDF", "flax_model.msgpack": b"\x80", "pytorch_model.bin.index.json": b'{"weight_map": {}}', "README.md": b"the base's own card\n",
}


def lay(folder, files):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("layout", ("single", "sharded"))
def test_the_output_has_the_files_of_the_base(layout, mp):
    """Shard names, index, config and every side file, byte for byte, folders too; hidden files and weights in other formats stay behind."""
    family = families.make(mp.root, "BF16", layout)
    lay(family.base, SIDE_FILES | NOT_COPIED)
    out = mp.merge(half_way(mp, family))
    made = {"README.md", "mergekit_config.yml", "mergepipe_manifest.json"}
    files = {n for n, d in digests(out).items() if d != "folder"}
    of_base = {n for n, d in digests(family.base).items() if d != "folder"}
    assert files == (of_base - set(NOT_COPIED)) | made
    assert all((out / n).read_bytes() == data for n, data in SIDE_FILES.items())
    assert (out / "config.json").read_bytes() == (family.base / "config.json").read_bytes()


def test_the_shards_hold_the_same_tensors_with_a_true_index(mp):
    family = families.make(mp.root, "mixed", "sharded")
    out = mp.merge(half_way(mp, family))
    for path in out.glob("*.safetensors"):
        theirs, ours = read_header(family.base / path.name)[0], read_header(path)[0]
        assert {n: (e["dtype"], e["shape"]) for n, e in theirs.items() if "_" != n[0]} == {
            n: (e["dtype"], e["shape"]) for n, e in ours.items() if "_" != n[0]}
    index, was = (json.loads((p / "model.safetensors.index.json").read_text()) for p in (out, family.base))
    assert index["weight_map"] == was["weight_map"]
    assert index["metadata"]["total_size"] == sum(len(t.raw) for t in read_checkpoint(out).values())


def test_the_index_tells_the_size_of_another_output_dtype(mp):
    family = families.make(mp.root, "F32", "sharded")
    out = mp.merge(half_way(mp, family, out_dtype="bfloat16"))
    index = json.loads((out / "model.safetensors.index.json").read_text())
    got = read_checkpoint(out)
    assert {t.dtype for t in got.values()} == {"BF16"}
    assert index["metadata"]["total_size"] == sum(len(t.raw) for t in got.values())
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == "bfloat16"


@pytest.mark.parametrize("metadata", ({"format": "pt", "trained": "yes, naïvely"}, {"format": "pt"}))
def test_header_metadata_is_kept(metadata, mp):
    base = checkpoints.llama(1)
    family = families.write(mp.root, base, [checkpoints.fine_tune(base, 2)], "sharded", metadata=metadata)
    out = mp.merge(half_way(mp, family))
    for path in out.glob("*.safetensors"):
        assert metadata.items() <= read_header(path)[0]["__metadata__"].items()


@pytest.mark.parametrize("metadata", (None, {}))
def test_the_format_is_written_where_the_base_does_not_say_it(metadata, mp):
    """transformers refuses a file without it."""
    base = checkpoints.llama(1)
    family = families.write(mp.root, base, [checkpoints.fine_tune(base, 2)], metadata=metadata)
    assert read_header(mp.merge(half_way(mp, family)) / "model.safetensors")[0]["__metadata__"]["format"] == "pt"


def test_a_null_metadata_object_counts_as_none(mp):
    family = families.make(mp.root)
    header, body = header_of(family.load(family.base))
    (family.base / "model.safetensors").write_bytes(file_bytes({"__metadata__": None} | header, body))
    assert read_header(mp.merge(half_way(mp, family)) / "model.safetensors")[0]["__metadata__"]["format"] == "pt"


def test_output_tensors_are_aligned(mp):
    """Whatever the base did: element sizes divide the offsets of the data in the file."""
    tensors = {"a": Tensor.of("U8", np.arange(3)), "b": Tensor.of("F32", np.ones(5)), "c": Tensor.of("BF16", np.ones(3)), "d": Tensor.of("F64", np.ones(2))}
    family = families.write(mp.root, tensors, [tensors])
    header, start = read_header(mp.merge(half_way(mp, family)) / "model.safetensors")
    assert start % 8 == 0
    for name, t in tensors.items():
        assert (start + header[name]["data_offsets"][0]) % t.bits.itemsize == 0, name


def test_the_recipe_is_kept_word_for_word(mp):
    family = families.make(mp.root)
    text = f"# my merge\nmerge_method:   linear # comment\nmodels:\n- {{model: '{family.base}', parameters: {{weight: 1}}}}\n\n"
    assert (mp.merge(text) / "mergekit_config.yml").read_text() == text


def test_the_model_card_names_method_parents_and_recipe(mp):
    family = families.make(mp.root)
    lay(family.base, NOT_COPIED)
    out = mp.merge(recipes.models("ties", family.base, family.experts, {"weight": 0.25, "density": 0.5}))
    card = (out / "README.md").read_text()
    assert card.startswith("---\n")
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["library_name"] == "transformers" and "merge" in front["tags"]
    for word in ("ties", family.base.name, *(e.name for e in family.experts), "density: 0.5"):
        assert word in card.lower(), word
    assert "own card" not in card


def test_the_report_counts_tensors_and_bytes(mp):
    """Method without statistics: every input is read once; the ledger counts payload to the byte."""
    base = checkpoints.llama(1, "BF16") | {"position_ids": Tensor.of("I64", np.arange(7))}
    family = families.write(mp.root, base, [checkpoints.fine_tune(base, i) for i in range(3)], "sharded")
    report = mp.report(half_way(mp, family))
    assert report["tensors"] == {"merged": len(base) - 1, "copied": 1, "dropped": 0}
    floats = sum(len(t.raw) for n, t in base.items() if n != "position_ids")
    assert report["io"]["expert_read_bytes"] in (3 * floats, 3 * (floats + 56))
    assert report["io"]["base_read_bytes"] == floats + 56
    assert report["io"]["write_bytes"] >= floats + 56
    headers = sum(read_header(p)[1] for m in (family.base, *family.experts) for p in m.glob("*.safetensors"))
    assert report["io"]["header_read_bytes"] >= headers
    assert report["method"] == "task_arithmetic" and Path(report["output"]).is_dir()


# --- files of the inputs ---------------------------------------------------------------------------------------------


def faults_of(mp, family):
    recipe = half_way(mp, family)
    return oracle.faults(mp.merged(recipe), family.want(recipe))


def test_inputs_may_differ_in_layout(mp):
    """A sharded base, an expert in one file, an expert in other shards, an expert named by its file."""
    base = checkpoints.llama(1, "BF16")
    e = [checkpoints.fine_tune(base, i) for i in range(3)]
    other = dict(reversed(e[1].items()))
    family = families.Family(
        checkpoints.save(mp.root / "base", base, "sharded"),
        [checkpoints.save(mp.root / "e0", e[0]), checkpoints.save(mp.root / "e1", other, "sharded"), checkpoints.save(mp.root / "e2", e[2], "file")])
    assert faults_of(mp, family) == []


def test_the_hugging_face_cache_is_followed_through_its_links(mp):
    """models--org--name/snapshots/REV/FILE are links to ../../blobs/DIGEST; the output has files of its own."""
    family = families.make(mp.root, "BF16", "sharded")
    snapshots = []
    for i, folder in enumerate((family.base, *family.experts)):
        cache = mp.root / "hub" / f"models--org--m{i}"
        snapshot = cache / "snapshots" / "0123abc"
        snapshot.mkdir(parents=True)
        (cache / "blobs").mkdir()
        for j, file in enumerate(sorted(folder.iterdir())):
            file.rename(cache / "blobs" / f"b{j}")
            (snapshot / file.name).symlink_to(f"../../blobs/b{j}")
        snapshots.append(snapshot)
    linked = families.Family(snapshots[0], snapshots[1:])
    recipe = half_way(mp, linked)
    out = mp.merge(recipe)
    assert oracle.faults(read_checkpoint(out), linked.want(recipe)) == []
    assert not any(p.is_symlink() for p in out.rglob("*"))
    mp.ok("verify", out)


def test_a_single_file_is_a_checkpoint(mp):
    family = families.make(mp.root, layout="file")
    recipe = half_way(mp, family)
    out = mp.merge(recipe)
    (file,) = out.glob("*.safetensors")
    assert file.name == "model.safetensors"
    assert oracle.faults(checkpoints.read_file(file), family.want(recipe)) == []


def test_paths_in_a_recipe_are_tried_from_the_current_folder_then_from_the_recipes(mp):
    family = families.make(mp.root / "models")
    elsewhere = mp.root / "elsewhere"
    elsewhere.mkdir()
    recipe = recipes.models("linear", None, ["base", "e0"], {"weight": 0.5})
    beside = mp.root / "models" / "recipe.yml"
    beside.write_text(recipes.text(recipe))
    mp.ok("merge", beside, mp.root / "one", cwd=elsewhere)
    mp.ok("merge", mp.recipe(recipe), mp.root / "two", cwd=mp.root / "models")
    assert (mp.root / "one/model.safetensors").read_bytes() == (mp.root / "two/model.safetensors").read_bytes()
    checkpoints.save(elsewhere / "base", family.load(family.experts[1]))
    mp.ok("merge", beside, mp.root / "three", cwd=elsewhere)
    assert (mp.root / "three/model.safetensors").read_bytes() != (mp.root / "one/model.safetensors").read_bytes()


def rewritten(mp, layout):
    """A family whose files are laid out by a function from header and body to file bytes."""
    family = families.make(mp.root, "mixed", experts=2)
    for folder in (family.base, *family.experts):
        header, body = header_of(family.load(folder))
        (folder / "model.safetensors").write_bytes(layout(header, body))
    return family


LEGAL_FILES = {
    "leading whitespace": lambda h, b: file_bytes(h, b, before=b" \n\t\r "),
    "trailing whitespace": lambda h, b: file_bytes(json.dumps(h).encode() + b"\n\t  \r\n", b),
    "padded to a page": lambda h, b: file_bytes(h, b, align=4096),
    "data at an odd offset": lambda h, b: file_bytes(json.dumps(h).encode() + b" " * (len(json.dumps(h)) % 2 == 0), b, align=1),
    "data at every offset modulo 8 but 0": lambda h, b: file_bytes(json.dumps(h).encode() + b" " * (-len(json.dumps(h)) % 8 + 3), b, align=1),
    "keys against the order of data": lambda h, b: file_bytes(dict(reversed(h.items())), b),
    "unknown fields beside the known": lambda h, b: file_bytes({n: e | {"note": [1, {"x": None}]} for n, e in h.items()}, b),
    "escaped names": lambda h, b: file_bytes(json.dumps(h).replace("model.norm", "\\u006dodel.norm").encode(), b),
}


@pytest.mark.parametrize("kind", LEGAL_FILES)
def test_a_legal_file_is_read_however_it_is_laid_out(kind, mp):
    assert faults_of(mp, rewritten(mp, LEGAL_FILES[kind])) == []


def test_tensors_of_the_base_may_be_misaligned(mp):
    """One byte before them moves every float to an odd address, in all inputs alike or in some only."""
    base = {"a": Tensor.of("U8", [7])} | checkpoints.llama(1, "mixed")
    family = families.write(mp.root, base, [checkpoints.fine_tune(base, i) for i in range(2)])
    assert faults_of(mp, family) == []
    tuned = family.load(family.experts[0])
    checkpoints.save(family.experts[0], {n: tuned[n] for n in reversed(tuned)})
    assert faults_of(mp, family) == []


# --- kinds of tensors ------------------------------------------------------------------------------------------------

ODD_TENSORS = {
    "position_ids": Tensor.of("I64", np.arange(77).reshape(1, 77)), "steps": Tensor.of("I32", np.array(12345)), "small": Tensor.of("I16", [-3, 3]),
    "bytes": Tensor.of("I8", [-1, 1, 2]), "packed": Tensor.of("U8", np.arange(33)), "mask": Tensor.of("BOOL", [[True, False], [False, True]]),
    "empty": Tensor.of("F32", np.zeros(0)), "no_rows": Tensor.of("BF16", np.zeros((0, 16))), "no_columns": Tensor.of("F16", np.zeros((16, 0))),
    "scalar": Tensor.of("F32", np.array(0.5)), "logit_scale": Tensor.of("BF16", np.array(2.5)), "one": Tensor.of("F64", [1.25]),
    "conv": Tensor.of("F32", np.arange(24.0).reshape(2, 3, 2, 2)), "island": Tensor.of("F32", [1.0000001, 2.0000002]),
}


@pytest.mark.parametrize("layout", ("single", "sharded"))
@pytest.mark.parametrize("method", recipes.METHODS + tuple(recipes.VARIANTS))
def test_odd_tensors_are_merged_or_copied(method, layout, mp):
    """Integers and booleans are copied from the base; empty, scalar, 4-D and float32-island tensors are merged like others."""
    base = checkpoints.llama(1, "BF16", layers=1) | ODD_TENSORS
    family = families.write(mp.root, base, [checkpoints.fine_tune(base, i) for i in range(2)], layout)
    assert families.faults(mp, family, families.smallest(method, family)) == []


@pytest.mark.parametrize("method", ("linear", "ties"))
def test_integers_that_differ_are_the_bases_and_a_warning_says_so(method, mp):
    base = checkpoints.llama(1, layers=1) | {"position_ids": Tensor.of("I64", np.arange(7))}
    experts = [checkpoints.fine_tune(base, i) | {"position_ids": Tensor.of("I64", np.arange(7) + i)} for i in range(2)]
    family = families.write(mp.root, base, experts)
    report = mp.report(families.smallest(method, family))
    assert checkpoints.same_bits(read_checkpoint(report["output"])["position_ids"], base["position_ids"])


def test_any_names_make_a_model(mp):
    """No list of architectures: a made-up family with layers of unlike shape."""
    random = np.random.default_rng(1)
    odd = 'q"uo\\te\n\t\x01 \U0001f600'
    shapes = {odd: (3, 2), "": (2,), "foo.blocks.0.bar": (4, 6), "foo.blocks.0.qux": (6,), "foo.blocks.1.bar": (4, 9), "foo.blocks.2.baz": (3,), "é 名.0": (5,)}
    base = {n: Tensor.of("F32", random.standard_normal(s)) for n, s in shapes.items()}
    config = {"architectures": ["FooForBar"], "model_type": "foo"}
    family = families.write(mp.root, base, [checkpoints.fine_tune(base, i) for i in range(2)], config=config)
    assert faults_of(mp, family) == []


def test_towers_of_unlike_depth_are_merged_as_whole_models_only(mp):
    """Two stacks of layers: a layer range would not say of which."""
    random = np.random.default_rng(1)
    names = [f"vision.blocks.{i}.w" for i in range(2)] + [f"text.layers.{i}.w" for i in range(3)] + ["projector.w"]
    base = {n: Tensor.of("F32", random.standard_normal((4, 3))) for n in names}
    family = families.write(mp.root, base, [checkpoints.fine_tune(base, i) for i in range(2)])
    assert faults_of(mp, family) == []
    mp.refuse(recipes.sliced("passthrough", [[recipes.source(family.base, 0, 2)]]), "modules", "vision.blocks", "text.layers")


def test_an_output_is_an_input_like_any_other(mp):
    """As base and as expert of the next merge: its recipe, card and manifest are replaced, not mixed up."""
    family = families.make(mp.root, "BF16", "sharded")
    first = mp.merge(families.smallest("ties", family))
    (first / "extra.txt").write_text("kept\n")
    recipe = recipes.models("task_arithmetic", first, family.experts[:1], {"weight": 0.5})
    second = mp.merge(recipe)
    assert (second / "extra.txt").read_text() == "kept\n"
    assert (second / "mergekit_config.yml").read_text() == recipes.text(recipe)
    mp.ok("verify", second)
    mp.ok("verify", mp.merge(recipes.models("linear", None, [family.base, second], {"weight": 1})))
    mp.ok("replay", second, mp.root / "again")


def loop(folder):
    (folder / "loop").symlink_to(".")


def dangling(folder):
    (folder / "dangling.txt").symlink_to("gone")


def pipe(folder):
    os.mkfifo(folder / "pipe.txt")


def link_to_a_device(folder):
    (folder / "zero.bin.txt").symlink_to("/dev/zero")


@pytest.mark.parametrize("trap", (loop, dangling, pipe, link_to_a_device), ids=lambda f: f.__name__)
def test_a_trap_among_the_side_files_is_skipped_or_named(trap, mp):
    """It neither hangs the merge nor ends in the output."""
    family = families.make(mp.root)
    trap(family.base)
    (name,) = {p.name for p in family.base.iterdir()} - {"config.json", "model.safetensors"}
    out = mp.root / "out"
    run = mp.run("merge", mp.recipe(half_way(mp, family)), out, timeout=20)
    assert run.status in (0, 2)
    assert run.status == 0 or name in run.err
    assert not out.exists() or not (out / name).is_symlink() and not (out / name).is_fifo() and not (out / name / name).exists()


def test_a_folder_without_config_is_merged_all_the_same(mp):
    family = families.make(mp.root)
    for folder in (family.base, *family.experts):
        (folder / "config.json").unlink()
    recipe = half_way(mp, family)
    out = mp.merge(recipe)
    assert oracle.faults(read_checkpoint(out), family.want(recipe)) == []
    mp.ok("verify", out)
