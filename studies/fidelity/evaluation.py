"""Loss and accuracy of merges of the family on held-out text, each set of weights evaluated once.

The text of each domain has two parts: SCAN, by which weights are chosen, and JUDGE, by which merges are compared. They do not
overlap, so the choice flatters no result.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

FAMILY_STUDY = Path(__file__).resolve().parent.parent / "family"
sys.path.insert(0, str(FAMILY_STUDY))

import corpus
import evaluate

SCAN = slice(0, 16 << 10)
JUDGE = slice(16 << 10, 48 << 10)
PARTS = {"scan": SCAN, "judge": JUDGE}


@torch.inference_mode()
def measure(model, text):
    """Mean loss in nats per byte and share of bytes guessed right."""
    loss, right, count = 0.0, 0, 0
    for inputs, targets in zip(*(t.split(evaluate.BATCH) for t in evaluate.windows(text))):
        logits = model(inputs).logits.flatten(0, 1)
        wanted = targets.flatten()
        loss += torch.nn.functional.cross_entropy(logits, wanted, reduction="sum").item()
        right += int((logits.argmax(dim=1) == wanted).sum())
        count += wanted.numel()
    return loss / count, right / count


class Evaluator:
    """Puts weights into one model and measures it; what was measured before is looked up in a file."""

    def __init__(self, base, cache):
        self.model = evaluate.load_model(base).eval()
        self.heldout = corpus.load_heldout()
        self.cache = cache
        self.known = json.loads(cache.read_text()) if cache.exists() else {}

    def __call__(self, checkpoint, part):
        file = checkpoint / "model.safetensors"
        key = f"{part}-{hashlib.sha256(file.read_bytes()).hexdigest()}"
        if key not in self.known:
            self.known[key] = self.evaluated(file, PARTS[part])
            self.cache.write_text(json.dumps(self.known))
        return self.known[key]

    def evaluated(self, file, part):
        stored = load_file(file)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(stored[name])
        by_domain = {d: measure(self.model, text[part]) for d, text in self.heldout.items()}
        loss = {d: value for d, (value, _) in by_domain.items()}
        accuracy = {d: value for d, (_, value) in by_domain.items()}
        mean = lambda values: sum(values.values()) / len(values)
        return {"loss": loss | {"mean": mean(loss)}, "accuracy": accuracy | {"mean": mean(accuracy)}}


def vector(checkpoint):
    """All weights of a one-file checkpoint, in float64."""
    stored = load_file(checkpoint / "model.safetensors")
    return torch.cat([stored[n].double().flatten() for n in sorted(stored)])
