"""Models whose vocabularies differ in every way that mergekit knows, with tokenizers as transformers saves them.

base: 64 tokens, trained. padded: the base's tokenizer and more rows than tokens. unused: four tokens that its config does not count. chat: two
added tokens. shuffled: the base's tokens under other ids. other: a tokenizer trained on another text, with an added token of chat's and one of
its own.
"""

import json
import random

import tokenizers
import torch
import transformers

import checkpoint_zoo
import checkpoints

SPECIAL = ["<unk>", "<s>", "</s>"]
CHAT = ["<|im_start|>", "<|im_end|>"]
TEXTS = {
    "base": "the quick brown fox jumps over the lazy dog while seven wizards box the quick jug and then rest there",
    "other": "zwei boxkaempfer jagen viktor quer ueber den grossen deich und dann noch einmal quer durch den park",
}
TEMPLATES = {
    "base": "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}",
    "chat": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
}


def trained(text, size=64):
    """A byte-pair tokenizer of `size` tokens."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    tokenizer.train_from_iterator([text], tokenizers.trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIAL, show_progress=False))
    assert tokenizer.get_vocab_size() == size
    return tokenizer


def shuffled(tokenizer, seed):
    """The same tokens and merges under other ids; special tokens stay in front."""
    told = json.loads(tokenizer.to_str())
    ordinary = [t for t in told["model"]["vocab"] if t not in SPECIAL]
    random.Random(seed).shuffle(ordinary)
    told["model"]["vocab"] = {t: i for i, t in enumerate([*SPECIAL, *ordinary])}
    return tokenizers.Tokenizer.from_str(json.dumps(told))


def with_tokens(tokenizer, special=(), ordinary=()):
    tokenizer.add_special_tokens(list(special))
    tokenizer.add_tokens(list(ordinary))
    return tokenizer


def tokenizer_of(name):
    base = trained(TEXTS["other" if name == "other" else "base"], 60 if name == "other" else 64)
    changes = {
        "chat": lambda: with_tokens(base, CHAT),
        "shuffled": lambda: shuffled(base, 1),
        "unused": lambda: with_tokens(base, ordinary=[f"<unused{i}>" for i in range(4)]),
        "other": lambda: with_tokens(base, [CHAT[1]], ["neu"]),
    }
    return changes.get(name, lambda: base)()


MODELS = ("base", "same", "padded", "unused", "chat", "shuffled", "other")
ROWS = {"padded": 80, "unused": 64}  # of the others: as many as tokens


def save(root, family):
    """The models under root / family, each of its own random weights near the base's."""
    for number, name in enumerate(MODELS):
        tokenizer = tokenizer_of(name)
        rows = ROWS.get(name, tokenizer.get_vocab_size())
        torch.manual_seed(7)
        model = checkpoint_zoo.ARCHITECTURES[family]()
        model.resize_token_embeddings(rows, mean_resizing=False)
        stored = checkpoint_zoo.stored(model, 1)
        tensors = checkpoints.fine_tune(stored, 20 + number) if number else stored
        folder = root / family / name
        checkpoints.save(folder, tensors, "sharded" if name == "chat" else "single", config=checkpoint_zoo.config_of(model, "float32"))
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
        fast.chat_template = TEMPLATES.get(name)
        fast.save_pretrained(folder)
    return root / family
