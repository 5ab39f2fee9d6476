"""Checkpoints with tokenizers of their own, written by hand: the files of transformers' fast tokenizers, and embeddings to go with them."""

import json
import string

import numpy as np

import checkpoints
from checkpoints import Tensor

SPECIAL = ("<unk>", "<s>", "</s>")
LETTERS = list(string.ascii_letters + string.digits)[:57]
MERGES = ["a b", "c d", "ab c", "e f"]
BASE = [*SPECIAL, *LETTERS, "ab", "cd", "abc", "ef"]  # 64 tokens
CHAT = ["<|im_start|>", "<|im_end|>"]


def added(content, number, special=True, **settings):
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special, "special": special}
    return {"id": number, "content": content} | plain | settings


def tokenizer_json(tokens, beside=(*SPECIAL, *CHAT), **settings):
    """A BPE tokenizer whose ids are the positions in tokens; those of `beside` stand in added_tokens as well."""
    ids = {token: i for i, token in enumerate(tokens)}
    merges = [m for m in MERGES if all(part in ids for part in (*m.split(), m.replace(" ", "")))]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(t, i, **settings.get(t, {})) for t, i in ids.items() if t in beside],
        "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for t, i in ids.items() if t not in CHAT}, "merges": [m.split() for m in merges]},
    }


def write_tokenizer(folder, tokens, **settings):
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens, **settings), indent=2))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    return folder


def model(folder, tokens, seed, rows=None, vocab_size=None, dtype="F32", hidden=16, biased=False, tied=False, layers=1, **settings):
    """A Llama-shaped checkpoint with one row for each token, or `rows` of them."""
    rows = rows or len(tokens)
    tensors = checkpoints.llama(seed, dtype, layers=layers, hidden=hidden, vocab=rows, tied=tied)
    if biased:
        values = np.random.default_rng(seed + 1000).standard_normal(rows, np.float32)
        tensors["lm_head.bias"] = Tensor.of(dtype, values)
    config = checkpoints.llama_config(tensors) | {"vocab_size": vocab_size or rows}
    checkpoints.save(folder, tensors, config=config)
    write_tokenizer(folder, tokens, **settings)
    return folder


def vocabulary(folder):
    """Token to id, as transformers loads it."""
    import transformers

    return transformers.AutoTokenizer.from_pretrained(folder).get_vocab()
