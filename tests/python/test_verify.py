"""verify finds what changed since the merge, and says where."""

import json
import shutil

import pytest

import families
from checkpoints import read_header

SHARDS = 3


@pytest.fixture
def out(mp):
    family = families.make(mp.root, "BF16", "sharded")
    (family.base / "tokenizer.json").write_text('{"model": {}}\n')
    return mp.merge(families.smallest("task_arithmetic", family))


def flip(path, at, bit=0):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def differences(mp, out):
    """What verify --json tells of a damaged output; the plain form must agree and name the file."""
    run = mp.run("verify", out, "--json")
    assert run.status == 3 and run.json["ok"] is False, run.out + run.err
    plain = mp.run("verify", out)
    assert plain.status == 3
    found = run.json["differences"]
    assert found and all(d["file"] in plain.out + plain.err for d in found), plain.out + plain.err
    return found


def covers(found, index):
    """A difference is told with the first element and the number of elements of the block that holds it."""
    return found["element"] <= index < found["element"] + found["elements"]


def test_an_untouched_output_is_accepted(mp, out):
    told = mp.ok("verify", out, "--json").json
    assert told["ok"] is True and told["differences"] == []


def test_a_moved_output_is_accepted(mp, out):
    shutil.move(out, mp.root / "moved")
    assert mp.ok("verify", mp.root / "moved", "--json").json["ok"]


@pytest.mark.parametrize("shard", range(1, SHARDS + 1))
@pytest.mark.parametrize("where", ("first", "middle", "last"))
def test_one_flipped_bit_in_any_tensor_is_found_by_file_tensor_and_element(where, shard, mp, out):
    """Each tensor of the shard in turn, at its first, a middle, or its last element."""
    path = out / f"model-{shard:05d}-of-{SHARDS:05d}.safetensors"
    header, start = read_header(path)
    for i, (name, entry) in enumerate(sorted(header.items())):
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        at = {"first": begin, "middle": (begin + end) // 2, "last": end - 1}[where]
        flip(path, start + at, i % 8)
        (found,) = differences(mp, out)
        assert (found["file"], found["tensor"]) == (path.name, name)
        assert covers(found, (at - begin) // 2), found
        flip(path, start + at, i % 8)


def test_a_flipped_bit_of_a_large_tensor_is_told_to_within_a_mebibyte(mp):
    """Not just the tensor: the block of it."""
    family = families.make(mp.root, "BF16", layers=1, hidden=512, vocab=4000, experts=1)
    out = mp.merge(families.smallest("linear", family))
    header, start = read_header(out / "model.safetensors")
    begin, end = header["lm_head.weight"]["data_offsets"]
    for index in (0, 700_001, 2_047_999):
        flip(out / "model.safetensors", start + begin + 2 * index)
        (found,) = differences(mp, out)
        assert found["tensor"] == "lm_head.weight" and covers(found, index) and found["elements"] <= 1 << 19
        flip(out / "model.safetensors", start + begin + 2 * index)


def test_bits_flipped_in_several_files_are_all_told(mp, out):
    paths = [out / f"model-{i:05d}-of-{SHARDS:05d}.safetensors" for i in (1, 3)]
    for path in paths:
        flip(path, -1)
    assert {d["file"] for d in differences(mp, out)} == {p.name for p in paths}


@pytest.mark.parametrize("name", ("config.json", "model.safetensors.index.json"))
def test_one_flipped_bit_in_config_or_index_is_found(name, mp, out):
    size = (out / name).stat().st_size
    for at in (0, size // 3, size // 2, size - 1):
        flip(out / name, at)
        assert name in {d["file"] for d in differences(mp, out)}
        flip(out / name, at)


def test_one_flipped_bit_in_a_header_is_found(mp, out):
    """In its length, its names, its offsets, its padding."""
    path = out / "model-00001-of-00003.safetensors"
    _, start = read_header(path)
    for at in (0, 5, 9, start // 2, start - 1):
        flip(path, at)
        assert path.name in {d["file"] for d in differences(mp, out)}
        flip(path, at)


def remove(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path):
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize("damage", (remove, cut, lengthen))
@pytest.mark.parametrize("name", ("model-00002-of-00003.safetensors", "model.safetensors.index.json", "config.json"))
def test_a_file_that_is_missing_or_has_another_length_is_found(name, damage, mp, out):
    damage(out / name)
    assert name in {d["file"] for d in differences(mp, out)}


def test_swapped_shards_are_found(mp, out):
    one, two = (out / f"model-{i:05d}-of-{SHARDS:05d}.safetensors" for i in (1, 2))
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)
    assert {one.name, two.name} <= {d["file"] for d in differences(mp, out)}


@pytest.mark.parametrize("name", ("README.md", "mergekit_config.yml"))
def test_what_a_person_edited_is_mentioned_only(name, mp, out):
    with open(out / name, "a") as f:
        f.write("# edited\n")
    told = mp.ok("verify", out, "--json").json
    assert told["ok"] is True and any(name in str(note) for note in told["notes"])


def test_an_extra_file_is_mentioned_only(mp, out):
    (out / "notes.txt").write_text("mine\n")
    told = mp.ok("verify", out, "--json").json
    assert told["ok"] is True and any("notes.txt" in str(note) for note in told["notes"])


def test_an_edited_tokenizer_is_told(mp, out):
    with open(out / "tokenizer.json", "a") as f:
        f.write("\n")
    run = mp.run("verify", out)
    assert run.status in (0, 3) and "tokenizer.json" in run.out + run.err


def test_a_manifest_that_was_tampered_with_is_not_believed(mp, out):
    path = out / "mergepipe_manifest.json"
    text = path.read_text()
    digit = next(i for i in range(len(text) // 2, len(text)) if text[i] in "12345678")
    path.write_text(text[:digit] + "9" + text[digit + 1 :])
    run = mp.run("verify", out)
    assert run.status in (2, 3) and path.name in run.out + run.err


@pytest.mark.parametrize("text", (None, "", "{", "[]", "null", '{"format": 99}'))
def test_a_folder_without_a_sound_manifest_cannot_be_verified(text, mp, out):
    path = out / "mergepipe_manifest.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    run = mp.run("verify", out, "--json")
    assert run.status == 2 and path.name in run.json["error"]["message"] + run.err


def test_the_manifest_is_json_and_names_every_tensor(mp, out):
    manifest = (out / "mergepipe_manifest.json").read_text()
    json.loads(manifest)
    for path in out.glob("*.safetensors"):
        assert all(f'"{name}"' in manifest for name in read_header(path)[0] if name != "__metadata__")
