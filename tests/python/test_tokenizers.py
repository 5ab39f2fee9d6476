"""Merges of models with different vocabularies: what tokens the output has, and what their rows are; mergekit is the oracle."""

import contextlib
import json
import os
import random

import numpy as np
import pytest
import yaml

import checkpoints
import recipes
import vocabularies
from vocabularies import BASE, CHAT

TOLERANCE = 3e-6


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """Models of one shape whose vocabularies differ in every way that mergekit knows."""
    folder = tmp_path_factory.mktemp("vocabularies")
    shuffled = BASE[3:]
    random.Random(1).shuffle(shuffled)
    vocabularies.model(folder / "base", BASE, 1, biased=True)
    vocabularies.model(folder / "same", BASE, 2, biased=True)
    vocabularies.model(folder / "padded", [*BASE, "x1", "x2", "x3", "x4"], 3, rows=64, biased=True)
    vocabularies.model(folder / "chat", [*BASE, *CHAT], 4, biased=True)
    vocabularies.model(folder / "shuffled", [*BASE[:3], *shuffled], 5, rows=70, biased=True)
    vocabularies.model(folder / "other", [t for t in BASE if t not in ("Z", "cd", "ef")] + ["neu", "alt", CHAT[0]], 6, biased=True)
    vocabularies.model(folder / "another", [t for t in BASE if t not in ("Z", "q")] + ["neu"], 7, biased=True)
    return folder


@pytest.fixture(scope="module")
def mergekit(family):
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    import torch
    from mergekit.config import MergeConfiguration
    from mergekit.io.tasks import LoaderCache
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    torch.set_num_threads(1)

    def run(recipe, out):
        LoaderCache().loaders.clear()
        with contextlib.chdir(family):
            config = MergeConfiguration.model_validate(yaml.safe_load(recipes.text(recipe)))
            run_merge(config, str(out), MergeOptions(quiet=True, write_model_card=False, random_seed=0))
        return out

    return run


def indexed(tensors):
    return [n for n in ("model.embed_tokens.weight", "lm_head.weight", "lm_head.bias") if n in tensors]


def differences(ours, theirs):
    """What two outputs disagree about, rows compared token by token."""
    a, b = checkpoints.read_checkpoint(ours), checkpoints.read_checkpoint(theirs)
    # mergekit knows no head's bias in a Llama and drops it.
    found = [f"tensors {sorted(set(a) ^ set(b))}"] if set(a) - {"lm_head.bias"} != set(b) else []
    ids, their_ids = vocabularies.vocabulary(ours), vocabularies.vocabulary(theirs)
    if set(ids) != set(their_ids):
        found.append(f"tokens {sorted(set(ids) ^ set(their_ids))}")
    for name in b:
        x, y = a[name].values(), b[name].values()
        if x.shape != y.shape:
            found.append(f"{name}: {x.shape} but {y.shape}")
            continue
        if name in indexed(b):
            padding = sorted(set(range(len(y))) - set(their_ids.values()))
            order = [ids[token] for token in their_ids] + padding
            y = y[[*their_ids.values(), *padding]]
            x = x[order]
        off = np.abs(x - y).max() / max(1e-9, np.abs(y).max())
        if not off <= TOLERANCE:
            found.append(f"{name}: differs by {off:.2g} of the largest")
    sizes = [json.loads((o / "config.json").read_text())["vocab_size"] for o in (ours, theirs)]
    return found + ([f"vocab_size {sizes}"] if sizes[0] != sizes[1] else [])


def weighted(models, method="linear", base=None, **top):
    return recipes.models(method, base, models, each=[{"weight": 0.3 + 0.2 * i} for i in range(len(models))], **top)


LINEAR = ["base", "chat", "shuffled"]
TOKENIZERS = {
    "union": {"tokenizer_source": "union"},
    "base": {"tokenizer_source": "base"},
    "of a model": {"tokenizer_source": "chat"},
    "mapping": {"tokenizer": {}},
    "padded to 16": {"tokenizer": {"source": "union", "pad_to_multiple_of": 16}},
    "forced": {"tokenizer": {"source": "union", "tokens": {"abc": {"source": "shuffled", "force": True}}}},
    "a model's row": {"tokenizer": {"source": "union", "tokens": {CHAT[0]: {"source": "chat"}}}},
    "another token by name": {"tokenizer": {"source": "union", "tokens": {"new one": {"source": {"kind": "model_token", "model": "chat", "token": CHAT[1]}}}}},
    "another token by id": {"tokenizer": {"source": "base", "tokens": {"a": {"source": {"kind": "model_token", "model": "shuffled", "token_id": 40}, "force": True}}}},
    "zero": {"tokenizer": {"source": "union", "tokens": {CHAT[0]: {"source": {"kind": "zero"}, "force": True}, "nought": {"source": {"kind": "zero"}}}}},
    "no source": {"tokenizer": {"source": "union", "tokens": {"b": {}, "d": {"force": False}}}},
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_form_gives_what_mergekit_gives(name, mp, family, mergekit, tmp_path):
    recipe = weighted(LINEAR, base="base", **TOKENIZERS[name])
    ours = mp.merge(recipe, cwd=family)
    assert differences(ours, mergekit(recipe, tmp_path / "theirs")) == []


METHODS = {
    "linear": weighted(["base", "chat", "other", "another"]),
    "slerp": recipes.models("slerp", "base", ["other"], parameters={"t": 0.35}),
    "task_arithmetic": weighted(["chat", "other", "another"], "task_arithmetic", "base"),
    "ties": recipes.models("ties", "base", ["chat", "other", "another"], each={"weight": 0.5, "density": 0.6}),
    "linear without a base": weighted(["other", "another", "chat"]),
}


@pytest.mark.parametrize("padded", (False, True))
@pytest.mark.parametrize("name", METHODS)
def test_methods_merge_aligned_rows(name, padded, mp, family, mergekit, tmp_path):
    tokenizer = {"source": "union"} | ({"pad_to_multiple_of": 4} if padded else {})  # one row: many equal ones make ties cut anywhere
    recipe = METHODS[name] | {"tokenizer": tokenizer}
    if name == "linear without a base":  # mergekit's base would be any of them: the tokens are the same, ids are not
        recipe |= {"base_model": "other"}
    ours = mp.merge(recipe, cwd=family)
    assert differences(ours, mergekit(recipe, tmp_path / "theirs")) == []


def test_slices_have_the_tokens_of_their_own_models(mp, family, mergekit, tmp_path):
    """The embedding is the first slice's, the head the last one's; what none of their models has is zero."""
    recipe = recipes.sliced(
        "passthrough", [[recipes.source("base", 0, 1)], [recipes.source("chat", 0, 1)]], base="base", tokenizer={"source": "union"}
    )
    ours = mp.merge(recipe, cwd=family)
    assert differences(ours, mergekit(recipe, tmp_path / "theirs")) == []


@pytest.mark.parametrize("budget", ("30%", "100%"))
def test_stand_ins_have_their_rows_too(budget, mp, family):
    """Under a budget the base stands behind what a slice takes from another model."""
    recipe = recipes.sliced(
        "passthrough", [[recipes.source("chat", 0, 1)], [recipes.source("other", 0, 1)]], base="base", tokenizer={"source": "union", "pad_to_multiple_of": 4}
    )
    full, out = mp.merge(recipe, cwd=family), mp.merge(recipe, "--budget", budget, cwd=family)
    mp.ok("verify", out)
    if budget == "100%":
        assert (full / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


def test_tied_models_stay_tied(mp, family, mergekit, tmp_path):
    for name, seed, tokens in (("base", 21, BASE), ("chat", 22, [*BASE, *CHAT])):
        vocabularies.model(mp.root / name, tokens, seed, tied=True)
    recipe = weighted(["base", "chat"], base=str(mp.root / "base"), tokenizer_source="union")
    recipe["models"] = [m | {"model": str(mp.root / m["model"])} for m in recipe["models"]]
    ours = mp.merge(recipe)
    assert differences(ours, mergekit(recipe, tmp_path / "theirs")) == []
    assert "lm_head.weight" not in checkpoints.read_checkpoint(ours)


def test_a_tied_model_lends_its_embedding_to_a_head(mp, family):
    vocabularies.model(mp.root / "tied", [*BASE, *CHAT], 22, tied=True, biased=False)
    recipe = recipes.models("linear", None, [family / "shuffled", mp.root / "tied"], each={"weight": 1.0}, tokenizer_source="union")
    bare = mp.root / "bare"
    tensors = checkpoints.read_checkpoint(family / "shuffled")
    del tensors["lm_head.bias"]
    checkpoints.save(bare, tensors, config=json.loads((family / "shuffled/config.json").read_text()))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (bare / file).write_bytes((family / "shuffled" / file).read_bytes())
    recipe["models"][0]["model"] = str(bare)
    out = mp.merge(recipe)
    ids, own = vocabularies.vocabulary(out), vocabularies.vocabulary(mp.root / "tied")
    head = checkpoints.read_checkpoint(out)["lm_head.weight"].values(np.float64)
    lent = checkpoints.read_checkpoint(mp.root / "tied")["model.embed_tokens.weight"].values(np.float64)
    stored = tensors["lm_head.weight"].values(np.float64)
    assert np.allclose(head[ids["abc"]], (lent[own["abc"]] + stored[ids["abc"]]) / 2, atol=1e-6)
    assert np.allclose(head[ids[CHAT[0]]], lent[own[CHAT[0]]], atol=1e-6)


def test_16_bit_rows_are_averaged_before_they_are_rounded(mp):
    for name, seed, tokens in (("a", 1, BASE), ("b", 2, [*BASE, *CHAT]), ("c", 3, [*BASE, *CHAT])):
        vocabularies.model(mp.root / name, tokens, seed, dtype="BF16")
    out = mp.merge(recipes.models("linear", None, ["a", "b", "c"], each={"weight": 1.0}, tokenizer_source="union"), cwd=mp.root)
    got = checkpoints.read_checkpoint(out)["model.embed_tokens.weight"]
    b, c = (checkpoints.read_checkpoint(mp.root / m)["model.embed_tokens.weight"].values()[64] for m in "bc")
    mean = (b + c) / np.float32(2)
    want = checkpoints.Tensor.of("BF16", (mean + b + c) / np.float32(3))
    assert got.dtype == "BF16" and np.abs(got.values()[64] - want.values()).max() <= 2e-3
    off = (got.bits[64] != want.bits).sum()
    assert off <= 1, "rounded twice"


def test_tokens_beyond_the_vocabulary_are_removed(mp, family, mergekit, tmp_path):
    recipe = weighted(["padded", "chat"], base="padded", tokenizer_source="union")
    ours = mp.merge(recipe, cwd=family)
    assert differences(ours, mergekit(recipe, tmp_path / "theirs")) == []
    assert set(vocabularies.vocabulary(ours)) == {*BASE, *CHAT}


def test_a_new_token_goes_with_the_bases_vocabulary_too(mp, family):
    """mergekit ends in a KeyError here: its base has the token once it is added."""
    source = {"kind": "model_token", "model": "chat", "token": CHAT[1]}
    recipe = weighted(["base", "chat"], base="base", tokenizer={"source": "base", "tokens": {"new one": {"source": source}}})
    out = mp.merge(recipe, cwd=family)
    ids = vocabularies.vocabulary(out)
    assert ids.keys() == {*BASE, "new one"} and ids["new one"] == 64
    row = checkpoints.read_checkpoint(out)["model.embed_tokens.weight"].values()[64]
    assert np.allclose(row, checkpoints.read_checkpoint(family / "chat")["model.embed_tokens.weight"].values()[65], atol=1e-7)


def test_a_head_is_aligned_with_its_bias(mp, family):
    recipe = weighted(["base", "shuffled"], base="base", tokenizer_source="base")
    out = mp.merge(recipe, cwd=family)
    bias = checkpoints.read_checkpoint(out)["lm_head.bias"].values(np.float64)
    ids = vocabularies.vocabulary(family / "shuffled")
    stored = [checkpoints.read_checkpoint(family / m)["lm_head.bias"].values(np.float64) for m in ("base", "shuffled")]
    want = [(0.3 * stored[0][i] + 0.5 * stored[1][ids[t]]) / 0.8 for i, t in enumerate(BASE)]
    assert np.allclose(bias, want, atol=1e-6)


def test_equal_vocabularies_copy_the_tokenizer_and_merge_as_ever(mp, family):
    plain = weighted(["base", "same"], base="base")
    with_tokenizer, without = (mp.merge(r, cwd=family) for r in (plain | {"tokenizer_source": "union"}, plain))
    assert (with_tokenizer / "tokenizer.json").read_bytes() == (family / "base/tokenizer.json").read_bytes()
    assert (with_tokenizer / "model.safetensors").read_bytes() == (without / "model.safetensors").read_bytes()


def test_numbers_of_tokens_are_those_of_the_tokenizer_that_is_taken(mp, tmp_path):
    """Else a model that takes another tokenizer ends its sentences at another token."""
    for name, tokens, end in (("base", BASE, 2), ("chat", [*BASE, *CHAT], 9)):
        folder = vocabularies.model(tmp_path / name, tokens, end) or tmp_path / name
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [end]}))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    for source, end in (("chat", 9), ("base", 2), ("union", 2)):
        out = mp.merge(weighted(["base", "chat"], base="base", tokenizer_source=source), cwd=tmp_path)
        assert json.loads((out / "config.json").read_text())["eos_token_id"] == [end]
        assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == end


def test_the_rest_of_tokenizer_json_keeps_its_bytes(mp, family):
    out = mp.merge(weighted(["base", "chat"], base="base", tokenizer_source="union"), cwd=family)
    before, after = ((f / "tokenizer.json").read_text() for f in (family / "base", out))
    assert before[before.index('"normalizer"'):] == after[after.index('"normalizer"'):]


@pytest.mark.parametrize("pad", (False, True))
@pytest.mark.parametrize("method", ("linear", "ties"))
def test_bytes_do_not_depend_on_threads_memory_or_blocks(method, pad, mp, family):
    recipe = METHODS[method] | {"tokenizer": {"source": "union"} | ({"pad_to_multiple_of": 64} if pad else {})}
    outs = [
        mp.merge(recipe, *flags, cwd=family)
        for flags in ((), ("--threads", 1), ("--threads", 8), ("--block-size", "16KiB"), ("--memory", "8MiB"))
    ]
    assert len({(o / "model.safetensors").read_bytes() for o in outs}) == 1


# --- faults ----------------------------------------------------------------------------------------------------------


def token(source, name="abc", **more):
    return {"tokenizer": {"source": "union", "tokens": {name: {"source": source} | more}}}


FAULTS = {
    "a model that does not have the token": (token("base", CHAT[0]), ["<|im_start|>", "'base'", "does not have it"]),
    "a token that the model does not have": (token({"kind": "model_token", "model": "chat", "token": "nobody"}), ["'chat'", "has no token 'nobody'"]),
    "an id beyond the rows": (token({"kind": "model_token", "model": "chat", "token_id": 66}, force=True), ["'chat'", "no row 66", "has 66"]),
    "a model that is not merged": (token("other"), ["'other'", "not part of the merge"]),
    "a token without a source that a model lacks": ({"tokenizer": {"tokens": {CHAT[0]: {}}}}, [CHAT[0], "no 'source'", "not every model has it"]),
    "force without a source": ({"tokenizer": {"tokens": {"a": {"force": True}}}}, ["'a'", "'force' needs one"]),
    "an unknown kind": (token({"kind": "zeros"}), ["zeros", "did you mean 'zero'"]),
    "neither token nor id": (token({"kind": "model_token", "model": "chat"}), ["exactly one of 'token' and 'token_id'"]),
    "an unknown key": ({"tokenizer": {"sauce": "union"}}, ["sauce", "did you mean 'source'"]),
    "an unknown key of a token": (token("chat", forced=True), ["forced", "did you mean 'force'"]),
    "a padding of nothing": ({"tokenizer": {"pad_to_multiple_of": 0}}, ["pad_to_multiple_of"]),
    "both forms": ({"tokenizer": {}, "tokenizer_source": "base"}, ["exclude each other"]),
    "a model that is not there": ({"tokenizer_source": "bose"}, ["bose", "did you mean 'base'"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_name_both_sides(name, mp, family):
    top, words = FAULTS[name]
    mp.refuse(weighted(["base", "chat"], base="base", **top), *words, cwd=family)


def test_widths_must_agree(mp):
    vocabularies.model(mp.root / "a", BASE, 1)
    vocabularies.model(mp.root / "b", [*BASE, *CHAT], 2, hidden=8)
    mp.refuse(weighted(["a", "b"], tokenizer_source="union"), "model.embed_tokens.weight", "[66, 8]", "[64, 16]")


def test_a_vocab_size_beyond_the_rows_is_a_fault(mp):
    vocabularies.model(mp.root / "a", BASE, 1)
    vocabularies.model(mp.root / "b", [*BASE, *CHAT], 2, vocab_size=70)
    mp.refuse(weighted(["a", "b"], tokenizer_source="union"), "66 rows", "vocab_size is 70")


DAMAGE = {
    "cut off": lambda text: text[: len(text) // 2],
    "no model": lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "model"}),
    "an id that is none": lambda text: text.replace('"abc": 62', '"abc": 1e3'),
    "a huge id": lambda text: text.replace('"abc": 62', '"abc": 4000000000'),
    "an id twice": lambda text: text.replace('"abc": 62', '"abc": 61'),
    "a list": lambda text: "[]",
    "not UTF-8": lambda text: text.replace('"abc"', '"a\\ud800"'),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_tokenizers_are_refused(name, mp):
    vocabularies.model(mp.root / "a", BASE, 1)
    vocabularies.model(mp.root / "b", [*BASE, *CHAT], 2)
    path = mp.root / "b/tokenizer.json"
    text = DAMAGE[name](path.read_text())
    assert text != path.read_text()
    path.write_text(text)
    mp.refuse(weighted(["a", "b"], tokenizer_source="union"), "b")


def test_a_sentencepiece_model_alone_is_refused_with_the_way_out(mp):
    vocabularies.model(mp.root / "a", BASE, 1)
    vocabularies.model(mp.root / "b", BASE, 2)
    (mp.root / "b/tokenizer.json").unlink()
    (mp.root / "b/tokenizer.model").write_bytes(b"\n")
    mp.refuse(weighted(["a", "b"], tokenizer_source="union"), "SentencePiece", "save_pretrained")


# --- budgets and what comes after a merge ----------------------------------------------------------------------------

WORDS = [*BASE, *(f"w{i}" for i in range(1200))]


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """Tables of many blocks whose rows lie in other orders."""
    folder = tmp_path_factory.mktemp("big")
    mixed = WORDS[3:]
    random.Random(2).shuffle(mixed)
    size = {"hidden": 64, "layers": 2}
    vocabularies.model(folder / "base", WORDS, 1, **size)
    vocabularies.model(folder / "chat", [*WORDS, *CHAT], 2, **size)
    vocabularies.model(folder / "mixed", [*WORDS[:3], *mixed[:900], "more", "most"], 3, dtype="BF16", **size)
    return folder


BLOCKS = ("--block-size", "16KiB")
BIG = {
    "ties": recipes.models("ties", "base", ["chat", "mixed"], each={"weight": 0.5, "density": 0.5}),
    "linear": weighted(["base", "chat", "mixed"]),
    "slerp": recipes.models("slerp", "base", ["mixed"], parameters={"t": 0.4}),
}


def with_padding(name, pad):
    return BIG[name] | {"tokenizer": {"source": "union"} | ({"pad_to_multiple_of": 256} if pad else {})}


@pytest.mark.parametrize("pad", (False, True))
@pytest.mark.parametrize("name", BIG)
@pytest.mark.parametrize("budget", ("3%", "20%", "77%"))
def test_a_budget_is_kept_and_told(budget, name, pad, mp, big):
    recipe = with_padding(name, pad)
    full = mp.ok("plan", mp.recipe(recipe), "--json", *BLOCKS, cwd=big).json["full_expert_bytes"]
    planned = mp.ok("plan", mp.recipe(recipe), "--json", *BLOCKS, "--budget", budget, cwd=big).json
    told = mp.report(recipe, *BLOCKS, "--budget", budget, cwd=big)
    assert told["io"]["expert_read_bytes"] == planned["expert_read_bytes"]
    assert told["io"]["expert_read_bytes"] <= full * float(budget[:-1]) / 100


@pytest.mark.parametrize("pad", (False, True))
@pytest.mark.parametrize("name", BIG)
def test_a_budget_of_everything_is_the_full_read(name, pad, mp, big):
    recipe = with_padding(name, pad)
    full, out = mp.merge(recipe, *BLOCKS, cwd=big), mp.merge(recipe, *BLOCKS, "--budget", "100%", cwd=big)
    assert (full / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    planned = mp.ok("plan", mp.recipe(recipe), "--json", *BLOCKS, cwd=big).json
    told = mp.report(recipe, *BLOCKS, cwd=big)
    assert planned["expert_read_bytes"] == planned["full_expert_bytes"] == told["io"]["expert_read_bytes"]


@pytest.mark.parametrize("flags", ((), ("--budget", "30%")))
@pytest.mark.parametrize("pad", (False, True))
def test_outputs_verify_and_replay(pad, flags, mp, big):
    out = mp.merge(with_padding("ties", pad), *BLOCKS, *flags, cwd=big)
    mp.ok("verify", out)
    again = mp.fresh("again")
    mp.ok("replay", out, again, cwd=big)
    assert checkpoints.digests(out, ignore=("mergepipe_manifest.json", "manifest.json")) == checkpoints.digests(again, ignore=("mergepipe_manifest.json", "manifest.json"))
    mp.ok("explain", out, cwd=big)
    mp.ok("diff", out, again)


@pytest.mark.parametrize("pad", (False, True))
def test_a_saved_plan_runs(pad, mp, big):
    plan = mp.fresh("plan", ".json")
    recipe = mp.recipe(with_padding("linear", pad))
    mp.ok("plan", recipe, *BLOCKS, "--budget", "40%", "-o", plan, cwd=big)
    ran, merged = mp.fresh("ran"), mp.fresh("merged")
    mp.ok("run", plan, ran, cwd=big)
    mp.ok("merge", recipe, merged, *BLOCKS, "--budget", "40%", cwd=big)
    assert (ran / "model.safetensors").read_bytes() == (merged / "model.safetensors").read_bytes()


@pytest.mark.parametrize("pad", (False, True))
@pytest.mark.parametrize("name", ("ties", "linear"))
def test_a_sweep_measures_what_merges_give(name, pad, mp, big):
    recipe = with_padding(name, pad)
    swept = mp.ok("sweep", mp.recipe(recipe), "--budgets", "20%,60%", "--json", *BLOCKS, cwd=big).json
    full = checkpoints.read_checkpoint(mp.merge(recipe, *BLOCKS, cwd=big))
    for budget, point in zip(("20%", "60%"), swept["points"]):
        got = checkpoints.read_checkpoint(mp.merge(recipe, *BLOCKS, "--budget", budget, cwd=big))
        square = sum(float(((got[n].values(np.float64) - full[n].values(np.float64)) ** 2).sum()) for n in full)
        norm = sum(float((full[n].values(np.float64) ** 2).sum()) for n in full)
        assert point["deviation"]["relative_to_weights"] == pytest.approx((square / norm) ** 0.5, rel=1e-6)


def test_rows_are_sampled_even_of_experts_that_are_analysed(mp, big):
    vocabulary = [*WORDS[:3], *reversed(WORDS[3:])]
    vocabularies.model(mp.root / "turned", vocabulary, 9, hidden=64, layers=2)
    mp.ok("analyze", big / "base", mp.root / "turned", *BLOCKS)
    recipe = weighted([mp.root / "turned"], "task_arithmetic", big / "base", tokenizer_source="base")
    recipe = recipe | {"base_model": str(big / "base"), "models": [{"model": str(mp.root / "turned"), "parameters": {"weight": 0.5}}]}
    told = mp.report(recipe, *BLOCKS, "--budget", "50%")
    assert told["statistics"] == "sampled" and told["io"]["sample_read_bytes"] > 0
    mp.refuse(recipe, "--max-deviation", "rows of tensor", flags=(*BLOCKS, "--max-deviation", "0.5"))


def test_a_budget_below_the_rows_of_new_tokens_is_refused(mp, big):
    mp.refuse(with_padding("linear", False), "can not be left out", "tokens that the base lacks", flags=("--budget", "0%"), cwd=big)
