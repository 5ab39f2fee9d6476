"""Damage drawn at random: whatever a stranger's file holds, the program ends with a documented status, never by a crash or a hang."""

import numpy as np
import pytest

import checkpoints
import families
import recipes

ROUNDS = 150
SPICE = [b"0", b"-1", b"9" * 30, b"1e999", b"null", b"true", b'""', b"[]", b"{}", b"[" * 50, b'"', b"\\", b"\x00", b"\xff", b"\n", b":", b",", b"&a", b"*a", b"<<"]


def mutate(random, data):
    """One to three small changes: a flipped bit, something cut out, doubled, or put in."""
    data = bytearray(data)
    for _ in range(random.integers(1, 4)):
        at = int(random.integers(0, max(1, len(data))))
        size = int(random.integers(1, 12))
        kind = random.integers(4)
        if kind == 0 and data:
            data[at] ^= 1 << int(random.integers(8))
        elif kind == 1:
            del data[at : at + size]
        elif kind == 2:
            data[at:at] = data[at : at + size]
        else:
            data[at:at] = SPICE[random.integers(len(SPICE))]
    return bytes(data)


def statuses(mp, path, arguments, allowed, part=slice(None)):
    """Runs a command on many mutations of a file (or of a part of it); every run must end with an allowed status and a message."""
    sound, seen = path.read_bytes(), set()
    for seed in range(ROUNDS):
        begin, end, _ = part.indices(len(sound))
        path.write_bytes(sound[:begin] + mutate(np.random.default_rng(seed), sound[begin:end]) + sound[end:])
        run = mp.run(*arguments, timeout=20)
        assert run.status in allowed, f"mutation {seed}: exit {run.status}\n{run.err[:1000]}"
        assert run.status == 0 or run.err or run.out, f"mutation {seed}: no message"
        seen.add(run.status)
    path.write_bytes(sound)
    return seen


def test_a_mutated_header_is_read_or_refused(mp):
    path = mp.root / "m.safetensors"
    checkpoints.write_file(path, checkpoints.llama(1, "mixed", layers=1))
    header = slice(0, checkpoints.read_header(path)[1])
    assert 2 in statuses(mp, path, ["inspect", path], {0, 2}, header)


@pytest.mark.parametrize("name", ("model.safetensors.index.json", "config.json"))
def test_a_mutated_index_or_config_is_read_or_refused(name, mp):
    family = families.make(mp.root, layout="sharded", experts=1)
    recipe = mp.recipe(recipes.sliced("passthrough", [[recipes.source(family.base, 0, 1)], [recipes.source(family.base, 0, 2)]]))
    statuses(mp, family.base / name, ["plan", recipe], {0, 2})


def test_a_mutated_recipe_is_read_or_refused(mp):
    family = families.make(mp.root, experts=2)
    each = {"weight": [{"filter": "mlp", "value": [0.1, 0.9]}, {"value": 0.5}], "density": 0.4}
    path = mp.recipe(recipes.models("ties", family.base, family.experts, each, {"lambda": 0.5, "normalize": True}, dtype="float32"))
    assert statuses(mp, path, ["plan", path], {0, 2}) == {0, 2}


def test_a_mutated_manifest_is_not_believed(mp):
    """verify may say that nothing is wrong only where nothing of the record was changed."""
    family = families.make(mp.root, experts=1, layers=1)
    out = mp.merge(families.smallest("linear", family))
    assert statuses(mp, out / "mergepipe_manifest.json", ["verify", out], {0, 2, 3}) & {2, 3}


def test_a_mutated_manifest_is_not_replayed_to_other_bytes(mp):
    """replay refuses, or gives what was recorded."""
    family = families.make(mp.root, experts=1, layers=1)
    out = mp.merge(families.smallest("linear", family))
    want, path = (out / "model.safetensors").read_bytes(), out / "mergepipe_manifest.json"
    sound = path.read_bytes()
    for seed in range(ROUNDS // 3):
        path.write_bytes(mutate(np.random.default_rng(seed), sound))
        run = mp.run("replay", out, mp.root / f"again{seed}", timeout=20)
        assert run.status in (0, 2, 3), f"mutation {seed}: exit {run.status}\n{run.err[:1000]}"
        if run.status == 0:
            assert (mp.root / f"again{seed}" / "model.safetensors").read_bytes() == want, f"mutation {seed}"
        else:
            assert not (mp.root / f"again{seed}").exists()
