"""Choose the weights of the family's recipes, and record all losses.

    recipes.py --family examples/family

merges the experts by task arithmetic and by TIES at every point of a small
grid, keeps the point with the lowest mean loss, and writes `ties.yml`,
`task_arithmetic.yml` and `losses.json` into the family's directory.  The
points are compared on the first part of each held-out sample; the losses that
are recorded for the chosen ones, the base and the experts are on all of it.
"""

import argparse
import itertools
import json
from pathlib import Path

import torch

import corpus
import merging
from evaluate import as_table, load_model, losses_by_domain

SEARCH_BYTES = 16 * 1024
DENSITIES = (0.3, 0.4, 0.5)
WEIGHTS = (0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3, 0.4, 0.5)
GRIDS = {
    "task_arithmetic": [{"weight": w} for w in WEIGHTS],
    "ties": [
        {"weight": w, "density": d}
        for d, w in itertools.product(DENSITIES, WEIGHTS)
    ],
}

COMMENTS = {
    "task_arithmetic": "The five experts' deltas, added to the base.",
    "ties": "The five experts, trimmed and joined where their signs agree.",
}


class Merger:
    """The family's tensors, and one model to evaluate merges of them in."""

    def __init__(self, family, experts):
        self.model = load_model(family / "base")
        self.base = self.tensors_of(self.model)
        self.experts = [
            self.tensors_of(load_model(family / name)) for name in experts
        ]

    @staticmethod
    def tensors_of(model):
        """Return a copy of a model's stored tensors (tied ones once)."""
        return {n: p.detach().clone() for n, p in model.named_parameters()}

    def losses(self, method, parameters, heldout):
        """Merge, and return the loss by domain of what comes out."""
        merge = getattr(merging, method)
        merged = merge(self.base, self.experts, **parameters)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(merged[name])
        return losses_by_domain(self.model, heldout)


def search(merger, method, heldout):
    """Return the grid of a method, each point with its mean loss."""
    beginnings = {d: text[:SEARCH_BYTES] for d, text in heldout.items()}
    points = []
    for parameters in GRIDS[method]:
        loss = merger.losses(method, parameters, beginnings)["mean"]
        points.append({**parameters, "mean": loss})
        print(method, points[-1], flush=True)
    return points


def recipe(method, experts, parameters):
    """Return a recipe in mergekit's YAML, paths relative to its own place."""
    lines = [
        f"# {COMMENTS[method]}",
        "# Chosen on held-out text: see README.md.",
        f"merge_method: {method}",
        "base_model: base",
        "models:",
    ]
    for expert in experts:
        lines += [f"  - model: {expert}", "    parameters:"]
        lines += [f"      {key}: {value}" for key, value in parameters.items()]
    lines += ["parameters:", "  normalize: false"]
    return "\n".join(lines) + "\n"


def stored_losses(family, names, heldout):
    """Return the losses of the family's own checkpoints."""
    return {
        name: losses_by_domain(load_model(family / name), heldout)
        for name in names
    }


def main():
    """Search both grids and write the recipes and the losses."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--family", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    heldout = corpus.load_heldout()
    experts = [f"experts/{domain}" for domain in corpus.DOMAINS]
    models = stored_losses(args.family, ["base", *experts], heldout)
    merger = Merger(args.family, experts)
    merges = {}
    for method in GRIDS:
        points = search(merger, method, heldout)
        best = min(points, key=lambda point: point["mean"])
        chosen = {key: best[key] for key in best if key != "mean"}
        models[method] = merger.losses(method, chosen, heldout)
        merges[method] = {"chosen": chosen, "grid": points}
        text = recipe(method, experts, chosen)
        (args.family / f"{method}.yml").write_text(text)

    record = {"unit": "nats per byte", "losses": models, "merges": merges}
    text = json.dumps(record, indent=2) + "\n"
    (args.family / "losses.json").write_text(text)
    print(as_table(models))


if __name__ == "__main__":
    main()
