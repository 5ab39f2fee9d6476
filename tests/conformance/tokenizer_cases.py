"""Recipes over the models of vocabulary_zoo."""

from cases import Case, each
from recipes import models, sliced, source
from vocabulary_zoo import CHAT

LINEAR = models("linear", "base", ["base", "chat", "shuffled"], each(0.5, 0.3, 0.4))
ALL = ["chat", "shuffled", "other"]


def linear(**tokenizer):
    return LINEAR | {"tokenizer": tokenizer}


def token(name, source=None, force=None, of="union"):
    entry = ({"source": source} if source else {}) | ({} if force is None else {"force": force})
    return linear(source=of, tokens={name: entry})


def row(model, **which):
    return {"kind": "model_token", "model": model} | which


def united(method, *experts, each=None, parameters=None, **tokenizer):
    return models(method, "base", list(experts) or ALL, each, parameters, tokenizer={"source": "union"} | tokenizer)


W = {"weight": 0.5}
RECIPES = {
    "tokenizer_source union": LINEAR | {"tokenizer_source": "union"},
    "tokenizer_source base": LINEAR | {"tokenizer_source": "base"},
    "tokenizer_source of a model": LINEAR | {"tokenizer_source": "chat"},
    "an empty tokenizer is a union": LINEAR | {"tokenizer": {"pad_to_multiple_of": None}},
    "source union": linear(source="union"),
    "source base": linear(source="base"),
    "source of a model": linear(source="shuffled"),
    "source of a model with fewer tokens": models("linear", "base", ["base", "other"], W, tokenizer={"source": "other"}),
    "equal vocabularies": models("linear", "base", ["base", "same"], W, tokenizer={"source": "union"}),
    "rows beyond the vocabulary": models("linear", "padded", ["padded", "base"], W, tokenizer={"source": "union"}),
    "rows beyond the vocabulary of a model": models("linear", "base", ["base", "padded"], W, tokenizer={"source": "base"}),
    "tokens that the config does not count": models("linear", "unused", ["unused", "chat"], W, tokenizer={"source": "union"}),
    "tokens that a model's config does not count": models("linear", "base", ["base", "unused"], W, tokenizer={"source": "base"}),
    "base, padded and chat in a union": models("linear", "base", ["base", "padded", "chat"], W, tokenizer={"source": "union"}),
    "a union of languages": models("linear", "base", ["base", "other"], each(0.4, 0.9), tokenizer={"source": "union"}),
    "a union of four": models("linear", "base", ["base", *ALL], W, tokenizer={"source": "union"}),
    "padded to 16": linear(source="union", pad_to_multiple_of=16),
    "padded to what it is": linear(source="base", pad_to_multiple_of=32),
    "padded to 7": models("linear", "base", ["base", *ALL], W, tokenizer={"source": "union", "pad_to_multiple_of": 7}),
    "a forced token": token("▁the", "shuffled", True),
    "a token by force of the chat model": token(CHAT[0], "chat", True),
    "a row for those that lack the token": token(CHAT[0], "chat"),
    "a row of another token": token(CHAT[1], row("base", token="▁the"), True),
    "a row by its number": token("▁the", row("shuffled", token_id=40), True),
    "a row by its number for those that lack the token": token(CHAT[0], row("chat", token_id=5)),
    "a new token": token("<new>", row("chat", token=CHAT[0])),
    "a new token by a number": token("<new>", row("base", token_id=0), True),
    "a new token of zeros": token("<new>", {"kind": "zero"}),
    "zeros by force": token("▁the", {"kind": "zero"}, True),
    "zeros for those that lack the token": token(CHAT[0], {"kind": "zero"}),
    "a token without a source": token("▁the"),
    "several tokens": linear(source="union", pad_to_multiple_of=8, tokens={
        CHAT[0]: {"source": "chat", "force": True}, CHAT[1]: {"source": {"kind": "zero"}}, "<x>": {"source": row("shuffled", token="e")},
        "e": {"source": "shuffled"}, "<y>": {"source": row("chat", token_id=65), "force": True},
    }),
    "slerp with a union": united("slerp", "chat", parameters={"t": 0.35}),
    "slerp of languages": united("slerp", "other", parameters={"t": [0.2, 0.8]}),
    "ties with a union": united("ties", each={"weight": 0.5, "density": 0.6}),
    "task_arithmetic with a union": united("task_arithmetic", each=W),
    "task_arithmetic with a union, padded": united("task_arithmetic", each=W, pad_to_multiple_of=16),
    # By chance: over the base's vocabulary, since mergekit's order of a union is another one every time, and chance goes by rows.
    "dare_ties with the base's": models("dare_ties", "base", ["chat", "shuffled"], {"weight": 0.5, "density": 0.6}, tokenizer={"source": "base"}),
    "della with the base's, padded": models("della", "base", ["chat", "shuffled"], {"weight": 0.5, "density": 0.6}, tokenizer={"source": "base", "pad_to_multiple_of": 16}),
    "breadcrumbs with a union": united("breadcrumbs", "chat", "shuffled", each={"weight": 0.5, "density": 0.6, "gamma": 0.05}),
    "sce with a union": united("sce", parameters={"select_topk": 1.0}),
    "model_stock with a union": united("model_stock", parameters={"filter_wise": True}),
    "multislerp with a union": united("multislerp", each=W),
    "karcher with a union": models("karcher", "base", ["base", "chat", "other"], tokenizer={"source": "union"}),
    "nuslerp with a union": united("nuslerp", "chat", "other", each=W),
    "nearswap with a union": united("nearswap", "other", parameters={"t": 0.01}),
    "ram with a union": united("ram"),
    "arcee_fusion with a union": united("arcee_fusion", "chat"),
    "passthrough with another's tokenizer": models("passthrough", "chat", ["chat"], tokenizer={"source": "base"}),
    "slices with a union": sliced("linear", [
        [source("base", 0, 2, weight=0.5), source("chat", 0, 2, weight=0.5)], [source("base", 1, 4, weight=0.2), source("chat", 1, 4, weight=0.7)],
    ], "base", tokenizer={"source": "union"}),
}


def all_cases():
    cases = {name: Case("llama", recipe) for name, recipe in RECIPES.items()}
    for family in ("llama_tied", "neox", "mixtral", "gemma2", "bert"):
        for name in ("source union", "source of a model", "a union of four", "padded to 16", "several tokens", "slerp with a union", "ties with a union"):
            cases[f"{family}: {name}"] = Case(family, RECIPES[name])
    return cases


CASES = all_cases()
