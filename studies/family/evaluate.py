"""Measure how well byte-level checkpoints predict held-out text.

    evaluate.py DIR... [--json]

prints, for each checkpoint directory, its loss in nats per byte on the
held-out sample of each domain, and the mean over the domains: as a table, or
as JSON with `--json`.  A byte costs less the better a model knows the domain;
2.303 nats are one guess in ten.

The text is cut into windows of 128 bytes, the length that the family was
trained on; a last part shorter than a window is left out.
Checkpoints may be stored in any dtype; they are computed in float32.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

import corpus

logging.disable_progress_bar()

WINDOW = 128
BATCH = 64


def load_model(directory):
    """Load a checkpoint from local files, in float32."""
    if not (Path(directory) / "config.json").is_file():
        raise SystemExit(f"{directory}: no checkpoint here (no config.json)")
    return AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, local_files_only=True
    )


def windows(text):
    """Cut a text into (inputs, targets): rows of WINDOW byte values."""
    values = np.frombuffer(text, np.uint8).astype(np.int64)
    count = (len(values) - 1) // WINDOW
    inputs = values[:count * WINDOW].reshape(count, WINDOW)
    targets = values[1:count * WINDOW + 1].reshape(count, WINDOW)
    return torch.from_numpy(inputs), torch.from_numpy(targets)


@torch.inference_mode()
def loss_on(model, text):
    """Return a model's mean loss on a text, in nats per byte."""
    total, count = 0.0, 0
    for inputs, targets in zip(*(t.split(BATCH) for t in windows(text))):
        logits = model(inputs).logits
        total += torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="sum"
        ).item()
        count += targets.numel()
    return total / count


def losses_by_domain(model, heldout):
    """Return {domain: loss} with the domains' "mean" at the end."""
    model.eval()
    losses = {domain: loss_on(model, text) for domain, text in heldout.items()}
    losses["mean"] = sum(losses.values()) / len(losses)
    return {domain: round(loss, 4) for domain, loss in losses.items()}


def as_table(results):
    """Return {model: {domain: loss}} as lines of a Markdown table."""
    columns = list(next(iter(results.values())))
    width = max(len("model"), *map(len, results))
    lines = [
        f"| {'model':{width}} | " + " | ".join(f"{c:>8}" for c in columns),
        f"| {'-' * width} | " + " | ".join("-" * 7 + ":" for _ in columns),
    ]
    for model, losses in results.items():
        cells = " | ".join(f"{losses[c]:8.4f}" for c in columns)
        lines.append(f"| {model:{width}} | {cells}")
    return "\n".join(f"{line} |" for line in lines)


def main():
    """Evaluate the checkpoints named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoints", nargs="+", metavar="DIR")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--heldout", type=Path, default=corpus.HELDOUT_DIR)
    args = parser.parse_args()
    heldout = corpus.load_heldout(args.heldout)
    results = {
        directory: losses_by_domain(load_model(directory), heldout)
        for directory in args.checkpoints
    }
    print(json.dumps(results, indent=2) if args.json else as_table(results))


if __name__ == "__main__":
    main()
