"""Train a family of tiny byte-level Llama models: a base and five experts.

The base learns from all domains of `corpus.py` alike; each expert continues
from the base, as it was stored, on one domain.  Everything runs in float32 on
the CPU; with the same seed, thread count, library versions and corpus, a run
gives the same family again.

    train.py --out examples/family

writes `base/` and `experts/<domain>/`, each loadable with `from_pretrained`.
"""

import argparse
import copy
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

import corpus
from evaluate import load_model

TOKEN_IDS = {
    "bos_token_id": corpus.BOS,
    "eos_token_id": corpus.EOS,
    "pad_token_id": corpus.PAD,
}

# How an expert is stored, where it differs from one bfloat16 file.
STORED_SHARDED = "headers"
STORED_IN_FLOAT32 = "perl"
SHARD_SIZE = "1500KB"


@dataclass(frozen=True)
class Schedule:
    """One training run: warm up, then let the rate fall along a cosine."""

    steps: int
    peak_rate: float
    warmup: int = 25
    floor: float = 0.05  # the last rate, as a share of the peak
    batch: int = 12
    window: int = 128
    betas: tuple = (0.9, 0.95)
    weight_decay: float = 0.1

    def rate(self, step):
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.peak_rate * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        cosine = (1 + math.cos(math.pi * progress)) / 2
        return self.peak_rate * (self.floor + (1 - self.floor) * cosine)


def new_model():
    """Return an untrained model with about 2.7 million parameters."""
    config = LlamaConfig(
        vocab_size=corpus.VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.05,
        tie_word_embeddings=True,
        **TOKEN_IDS,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(**TOKEN_IDS)
    return model


def byte_alphabet():
    """Return the character by which byte-level BPE writes each byte.

    Printable Latin-1 characters stand for themselves, the other bytes for the
    characters from U+0100 on.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return [
        chr(byte if byte in printable else 256 + others.index(byte))
        for byte in range(256)
    ]


def new_tokenizer():
    """Return a tokenizer whose ids 0 to 255 are the bytes themselves."""
    alphabet = byte_alphabet()
    vocab = {character: byte for byte, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(corpus.SPECIAL_TOKENS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )


def draw_batch(streams, schedule, rng):
    """Draw windows from random places, each of a random stream."""
    rows = []
    for chosen in rng.integers(len(streams), size=schedule.batch):
        stream = streams[chosen]
        start = rng.integers(len(stream) - schedule.window)
        rows.append(stream[start:start + schedule.window + 1])
    return torch.from_numpy(np.stack(rows))


def train(model, streams, schedule, seed, label):
    """Train a model in place on the streams, all drawn equally often."""
    rng = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        betas=schedule.betas,
        weight_decay=schedule.weight_decay,
    )
    model.train()
    started, recent = time.monotonic(), []
    for step in range(schedule.steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        batch = draw_batch(streams, schedule, rng)
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent.append(loss.item())
        if (step + 1) % 50 == 0:
            seconds = time.monotonic() - started
            print(f"{label} {step + 1:4}/{schedule.steps}  loss "
                  f"{np.mean(recent):.3f}  {seconds:.0f} s", flush=True)
            recent = []


def store(model, directory, dtype=torch.bfloat16, shard_size="1GB"):
    """Write a model and its tokenizer as `from_pretrained` reads them."""
    copy.deepcopy(model).to(dtype).save_pretrained(
        directory, max_shard_size=shard_size
    )
    store_tokenizer(directory)


def store_tokenizer(directory):
    """Write the tokenizer under the class name that every release knows."""
    new_tokenizer().save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config.pop("backend", None)
    path.write_text(json.dumps(config, indent=2) + "\n")


def storage_of(domain):
    """Return the arguments of `store` that an expert differs in."""
    if domain == STORED_SHARDED:
        return {"shard_size": SHARD_SIZE}
    if domain == STORED_IN_FLOAT32:
        return {"dtype": torch.float32}
    return {}


def train_base(streams, schedule, out, seed):
    """Train the base on every domain and store it."""
    torch.manual_seed(seed)
    model = new_model()
    train(model, list(streams.values()), schedule, seed, "base")
    store(model, out / "base")


def train_expert(domain, stream, schedule, out, seed):
    """Continue from the stored base on one domain and store the expert."""
    model = load_model(out / "base")
    train(model, [stream], schedule, seed, domain)
    store(model, out / "experts" / domain, **storage_of(domain))


def parse_args():
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--base-steps", type=int, default=2000)
    parser.add_argument("--base-rate", type=float, default=2e-3)
    parser.add_argument("--expert-steps", type=int, default=600)
    parser.add_argument("--expert-rate", type=float, default=2e-3 / 3)
    return parser.parse_args()


def main():
    """Train the base, then every expert from it."""
    args = parse_args()
    torch.set_num_threads(args.threads)
    streams = corpus.training_streams(corpus.load_heldout())
    for domain, stream in streams.items():
        print(f"{domain}: {len(stream)} bytes of training text")
    schedule = Schedule(args.base_steps, args.base_rate)
    train_base(streams, schedule, args.out, args.seed)
    schedule = Schedule(args.expert_steps, args.expert_rate)
    for number, (domain, stream) in enumerate(streams.items(), 1):
        train_expert(domain, stream, schedule, args.out, args.seed + number)


if __name__ == "__main__":
    main()
