"""What a budget costs: two deviations, loss and accuracy of budgeted merges of the trained family.

    study.py [--quick]

merges the five experts by three methods at several budgets by every policy,
from a full catalog at the smallest block size, each method at the weight at
which its full merge has the lowest loss. Results go to results.json beside
this file, and report.py makes docs/fidelity.md of them.
"""

import argparse
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import torch

import evaluation
import report

ROOT = Path(__file__).resolve().parents[2]
FAMILY = ROOT / "examples/family"
RESULTS = Path(__file__).resolve().parent / "results.json"
EXPERTS = ("manpages", "licences", "headers", "python", "perl")
BLOCKS = ("--block-size", "16KiB")
DENSITY = 0.5
METHODS = ("task_arithmetic", "ties", "dare_ties")
WEIGHTS = (0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3)
BUDGETS = (1, 2, 5, 10, 25, 50, 100)
POLICIES = ("gram", "norm", "uniform", "fair", "random")


class Mergepipe:
    """The program, with a catalog and outputs in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.binary = os.environ.get("MERGEPIPE_BINARY", ROOT / "build/release/mergepipe")
        self.catalog = folder / "catalog.db"

    def __call__(self, *arguments):
        command = [self.binary, *arguments, "--json", *BLOCKS, "--catalog", self.catalog]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"study: {' '.join(map(str, command))}\n{done.stderr}")
        return json.loads(done.stdout)

    def analyze(self):
        experts = [FAMILY / "experts" / name for name in EXPERTS]
        return self("analyze", FAMILY / "base", *experts, "--density", DENSITY)

    def merge(self, method, weight, *flags):
        """Yields the report and the output, which the next merge replaces."""
        recipe, out = self.folder / "recipe.yml", self.folder / "merged"
        recipe.write_text(recipe_text(method, weight))
        return self("merge", recipe, out, "--force", *flags), out


def recipe_text(method, weight):
    density = "" if method == "task_arithmetic" else f", density: {DENSITY}"
    lines = [f"merge_method: {method}", f"base_model: {FAMILY / 'base'}", "models:"]
    for name in EXPERTS:
        lines += [f"  - model: {FAMILY / 'experts' / name}", f"    parameters: {{weight: {weight}{density}}}"]
    return "\n".join([*lines, "parameters: {normalize: false}"]) + "\n"


class Method:
    """One merge method: its best weight, its full merge, and points on the way there."""

    def __init__(self, mergepipe, evaluator, method, options):
        self.mergepipe, self.evaluator, self.method, self.options = mergepipe, evaluator, method, options
        self.base = evaluation.vector(FAMILY / "base")

    def run(self):
        scan = [{"weight": w, "loss": self.scanned(w)} for w in self.options.weights]
        self.weight = min(scan, key=lambda point: point["loss"])["weight"]
        told, out = self.mergepipe.merge(self.method, self.weight)
        self.full = evaluation.vector(out)
        full = {"read_bytes": told["io"]["expert_read_bytes"], **self.evaluator(out, "judge")}
        points = [self.point(p, b) for b in self.options.budgets for p in self.options.policies]
        return {"weight": self.weight, "scan": scan, "full": full, "points": points, "nothing": self.deviation(self.base)}

    def scanned(self, weight):
        _, out = self.mergepipe.merge(self.method, weight)
        return self.evaluator(out, "scan")["loss"]["mean"]

    def deviation(self, got):
        apart = torch.linalg.norm(got - self.full)
        return {
            "relative_to_weights": float(apart / torch.linalg.norm(self.full)),
            "relative_to_update": float(apart / torch.linalg.norm(self.full - self.base)),
        }

    def point(self, policy, budget):
        told, out = self.mergepipe.merge(self.method, self.weight, "--budget", f"{budget}%", "--policy", policy)
        measured = self.evaluator(out, "judge")
        point = {
            "policy": policy,
            "budget": budget,
            "read_bytes": told["io"]["expert_read_bytes"],
            "predicted": told["predicted_deviation"]["relative_to_update"],
            "certificate": told["certificate"],
            "deviation": self.deviation(evaluation.vector(out)),
            **measured,
        }
        print(
            f"{self.method} {policy} {budget} %: deviation {point['deviation']['relative_to_update']:.4f}, "
            f"loss {measured['loss']['mean']:.4f}",
            flush=True,
        )
        return point


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few points, written to build/fidelity alone")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    options.weights = WEIGHTS[1:4:2] if options.quick else WEIGHTS
    options.budgets = (5, 100) if options.quick else BUDGETS
    options.policies = ("gram", "random") if options.quick else POLICIES
    return options


def main():
    options = parse()
    torch.set_num_threads(options.threads)
    folder = ROOT / "build/fidelity"
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    mergepipe = Mergepipe(folder)
    mergepipe.catalog.unlink(missing_ok=True)
    mergepipe.analyze()
    evaluator = evaluation.Evaluator(FAMILY / "base", folder / "evaluations.json")
    results = {"base": evaluator(FAMILY / "base", "judge"), "methods": {}}
    for method in METHODS:
        results["methods"][method] = Method(mergepipe, evaluator, method, options).run()
    results["seconds"] = round(time.monotonic() - begin)
    shutil.rmtree(folder / "merged")
    target = folder / "results.json" if options.quick else RESULTS
    target.write_text(json.dumps(results, indent=1) + "\n")
    report.write(results, folder if options.quick else ROOT / "docs")


if __name__ == "__main__":
    main()
