"""Merges of models with different vocabularies: the tokens, their rows and the chat template are mergekit's."""

import json

import numpy as np
import pytest
import transformers

import cases
import checkpoints
import referee
from comparison import TOLERANCE, in_float32, largest_difference, obeys_budgets, row
from tokenizer_cases import CASES, LINEAR
from vocabulary_zoo import TEMPLATES

SENTENCES = ("the quick brown fox", "wizards rest <|im_end|>", "zwei boxkaempfer neu", "<|im_start|>jug", "<s>den deich</s>")
TABLES = ("embed_tokens.weight", "embed_in.weight", "word_embeddings.weight", "lm_head.weight", "embed_out.weight")


def in_order_of(ids, tensors):
    """The tensors with rows of tokens sorted by the token's text; padding stays behind. mergekit appends tokens in the order of a set."""
    def sort(tensor):
        order = [ids[token] for token in sorted(ids)]
        return checkpoints.Tensor(tensor.dtype, np.concatenate([tensor.bits[order], tensor.bits[len(ids):]]))

    return {n: sort(t) if n.endswith(TABLES) else t for n, t in tensors.items()}


@pytest.mark.parametrize("name", CASES)
def test_recipe(name, mp, speakers, results, tmp_path):
    case, theirs = CASES[name], tmp_path / "theirs"
    case.precise = case.recipe["merge_method"] in cases.PRECISE
    folder = speakers(case.family)
    want, config = referee.merge(folder, in_float32(case.recipe, "float64" if case.precise else "float32"), theirs)
    out = mp.merge(in_float32(case.recipe), cwd=folder)
    got = checkpoints.read_checkpoint(out)
    assert {n: t.shape for n, t in got.items()} == {n: t.shape for n, t in want.items()}
    speaker, other = (transformers.AutoTokenizer.from_pretrained(f) for f in (out, theirs))
    ids, their_ids = speaker.get_vocab(), other.get_vocab()
    assert sorted(ids) == sorted(their_ids) and sorted(ids.values()) == list(range(len(ids)))
    assert [speaker.tokenize(s) for s in SENTENCES] == [other.tokenize(s) for s in SENTENCES]
    difference, where = largest_difference(in_order_of(ids, got), in_order_of(their_ids, want))
    results.append(row(f"tokenizer: {name}", case, difference))
    assert difference <= TOLERANCE, where
    assert json.loads((out / "config.json").read_text())["vocab_size"] == config["vocab_size"]


@pytest.mark.parametrize("name", CASES)
def test_budget(name, mp, speakers):
    obeys_budgets(mp, CASES[name].recipe, speakers(CASES[name].family))


LITERAL = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
CHATS = {
    "the base's": LINEAR,
    "the base's under a union": LINEAR | {"tokenizer_source": "union"},
    "a model's": LINEAR | {"tokenizer_source": "chat"},
    "a literal": LINEAR | {"chat_template": LITERAL, "tokenizer_source": "union"},
    "a literal for a copied tokenizer": LINEAR | {"chat_template": LITERAL, "models": [{"model": m, "parameters": {"weight": 0.5}} for m in ("base", "same")]},
    "the most common": LINEAR | {"chat_template": "auto", "tokenizer_source": "base", "models": [{"model": m, "parameters": {"weight": 0.5}} for m in ("same", "chat")], "base_model": "same"},
}


def template(folder):
    return transformers.AutoTokenizer.from_pretrained(folder).chat_template


@pytest.mark.parametrize("name", CHATS)
def test_chat_template(name, mp, speakers, tmp_path):
    folder, theirs = speakers("llama"), tmp_path / "theirs"
    recipe = CHATS[name]
    if "chat" in {m["model"] for m in recipe["models"]} and "tokenizer_source" not in recipe:
        recipe = recipe | {"tokenizer_source": "base"}
    referee.merge(folder, recipe, theirs, copy_tokenizer=True)
    assert template(mp.merge(recipe, cwd=folder)) == template(theirs)
    assert template(theirs) in (*TEMPLATES.values(), LITERAL)


@pytest.mark.parametrize("name", ("alpaca", "chatml", "exaone", "llama3", "mistral"))
def test_built_in_template(name, mp, speakers, tmp_path):
    """Other words, the same rendering."""
    folder, recipe = speakers("llama"), LINEAR | {"chat_template": name, "tokenizer_source": "union"}
    referee.merge(folder, recipe, tmp_path / "theirs")
    ours, theirs = (transformers.AutoTokenizer.from_pretrained(f) for f in (mp.merge(recipe, cwd=folder), tmp_path / "theirs"))
    talk = [{"role": r, "content": c} for r, c in (("user", "the fox"), ("assistant", "a jug"), ("user", "rest"))]
    for turns in (1, 2, 3):
        assert ours.apply_chat_template(talk[:turns], tokenize=False) == theirs.apply_chat_template(talk[:turns], tokenize=False)


@pytest.mark.parametrize("bad", ("nonesuch", "too short {", "a long text without any brace"))
def test_a_template_that_is_none(bad, mp, speakers, tmp_path):
    recipe, folder = LINEAR | {"chat_template": bad, "tokenizer_source": "base"}, speakers("llama")
    with pytest.raises(RuntimeError, match="chat template"):
        referee.merge(folder, recipe, tmp_path / "theirs")
    run = mp.run("merge", mp.recipe(recipe), mp.root / "none", cwd=folder)
    assert run.status == 2 and bad in run.err and not (mp.root / "none").exists()
