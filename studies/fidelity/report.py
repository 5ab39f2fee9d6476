"""Makes docs/fidelity.md and its plots of a study's results.

    report.py [RESULTS.json [FOLDER]]
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
COLOURS = {"gram": "#0b6e99", "norm": "#d9730d", "uniform": "#6b8e23", "fair": "#8e44ad", "random": "#999999"}
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "mergepipe", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


def points_of(method, policy):
    return sorted((p for p in method["points"] if p["policy"] == policy), key=lambda p: p["budget"])


def policies_of(results):
    first = next(iter(results["methods"].values()))
    return [c for c in COLOURS if any(p["policy"] == c for p in first["points"])]


def at(method, policy, budget):
    return next(p for p in method["points"] if (p["policy"], p["budget"]) == (policy, budget))


# --- plots


def plot(results, path, label, value, lines):
    """One panel for each method: value(point) against the budget, and horizontal lines (name, value of a method)."""
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, len(results["methods"]), figsize=(9, 3), sharey=True, layout="constrained")
        for panel, (name, method) in zip(panels, results["methods"].items()):
            for policy in policies_of(results):
                points = points_of(method, policy)
                shares = [100 * p["read_bytes"] / method["full"]["read_bytes"] for p in points]
                panel.plot(shares, [value(p) for p in points], ".-", color=COLOURS[policy], label=policy, linewidth=1.2)
            for line, of in lines:
                panel.axhline(of(method), color="black", linewidth=0.8, linestyle="--" if "base" in line else ":", label=line)
            panel.set(title=name, xlabel="expert bytes read, %", xscale="log", xticks=[1, 10, 100], xticklabels=["1", "10", "100"])
        panels[0].set_ylabel(label)
        panels[-1].legend(frameon=False, fontsize=8)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def plots(results, folder):
    folder.mkdir(parents=True, exist_ok=True)
    base = results["base"]["loss"]["mean"]
    plot(results, folder / "deviation.svg", "deviation, to the update", lambda p: p["deviation"]["relative_to_update"], [("base", lambda m: 1.0)])
    lines = [("base", lambda m: base), ("full read", lambda m: m["full"]["loss"]["mean"])]
    plot(results, folder / "loss.svg", "loss, nats per byte", lambda p: p["loss"]["mean"], lines)


# --- tables


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def share(value):
    return f"{100 * value:.1f} %"


def number(value, digits=4):
    return "–" if value is None else f"{value:.{digits}f}"


def kept(results, method, point):
    """The share of the full merge's gain over the base that a merge has."""
    base = results["base"]["loss"]["mean"]
    return (base - point["loss"]["mean"]) / (base - method["full"]["loss"]["mean"])


def gram_table(results, method):
    rows = [["do nothing: the base", "0 %", number(method["nothing"]["relative_to_weights"]), "1.0000", "", *measured(results["base"]), "0 %"]]
    for p in points_of(method, "gram"):
        rows.append([
            f"{p['budget']} %", share(p["read_bytes"] / method["full"]["read_bytes"]), number(p["deviation"]["relative_to_weights"]),
            number(p["deviation"]["relative_to_update"]), number(p["predicted"]), *measured(p), f"{100 * kept(results, method, p):.0f} %",
        ])
    return table(["budget", "read", "to weights", "to update", "predicted", "loss", "accuracy", "of the gain"], rows)


def measured(point):
    return number(point["loss"]["mean"]), share(point["accuracy"]["mean"])


def policy_table(results, method, value):
    policies = policies_of(results)
    budgets = [p["budget"] for p in points_of(method, policies[0])]
    return table(["budget", *policies], [[f"{b} %", *(value(at(method, p, b)) for p in policies)] for b in budgets])


def domain_table(results, method):
    domains = [d for d in results["base"]["loss"] if d != "mean"]
    rows = [["base", *(number(results["base"]["loss"][d]) for d in domains)]]
    rows += [[f"{p['budget']} %", *(number(p["loss"][d]) for d in domains)] for p in points_of(method, "gram")]
    return table(["gram", *domains], rows)


# --- text


def median(values):
    values = sorted(values)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def least(results, method, policy, wanted):
    """The smallest budget at which a policy has the wanted share of the gain, as text."""
    enough = [p["budget"] for p in points_of(method, policy) if kept(results, method, p) >= wanted]
    return f"{min(enough)} %" if enough else "none of these budgets"


def findings(results):
    """What the numbers say, in sentences made of them."""
    lines = []
    for name, method in results["methods"].items():
        partial = [p["budget"] for p in points_of(method, "gram") if 0 < p["budget"] < 100]
        ratio = median([
            at(method, "gram", b)["deviation"]["relative_to_update"] / at(method, "random", b)["deviation"]["relative_to_update"] for b in partial
        ])
        halves = {p: least(results, method, p, 0.5) for p in ("gram", "random")}
        loss = lambda policy, budget: at(method, policy, budget)["loss"]["mean"]
        better = sum(loss("random", b) < loss("gram", b) for b in partial)
        off = [abs(p["predicted"] / p["deviation"]["relative_to_update"] - 1) for p in points_of(method, "gram") if p["predicted"] and p["budget"] < 100]
        told = f" The prediction is off by {100 * median(off):.1f} % in the median." if off else ""
        lines.append(
            f"* **{name}**: gram's deviation is {ratio:.2f} times random's in the median over budgets. Half of the gain in loss needs a budget of "
            f"{halves['gram']} by gram, {halves['random']} by random; nine tenths need {least(results, method, 'gram', 0.9)} by gram. "
            f"Random blocks have the lower loss than gram's at {better} of {len(partial)} budgets.{told}"
        )
    lines.append(
        "\nA smaller deviation is what gram promises and keeps; a better model does not follow from it. The blocks with the largest deltas come from "
        "few experts and tensors, so that a small budget moves the base one-sidedly, and where loss counts, blocks spread over all experts may be worth more."
    )
    return "\n".join(lines)


def method_text(results, name, method):
    scan = ", ".join(f"{p['weight']}: {p['loss']:.4f}" for p in method["scan"])
    return f"""## {name}

Weight {method['weight']}, the best of the scan (loss on the other part of the text: {scan}). By gram:

{gram_table(results, method)}

Deviation relative to the update, by policy:

{policy_table(results, method, lambda p: number(p['deviation']['relative_to_update']))}

Loss by policy (base {results['base']['loss']['mean']:.4f}, full read {method['full']['loss']['mean']:.4f}):

{policy_table(results, method, lambda p: number(p['loss']['mean']))}

Loss by domain:

{domain_table(results, method)}
"""


def text(results):
    sections = "\n".join(method_text(results, n, m) for n, m in results["methods"].items())
    return f"""# What a budget costs

    studies/fidelity/run

merges the five trained experts of [examples/family](../examples/family/README.md) under budgets, measures how far each result is
from the full read's, and evaluates it on held-out text. This page is what it wrote; every number is measured
(`studies/fidelity/results.json` has all of them). It took {results['seconds'] // 60} minutes.

{findings(results)}

![Deviation against bytes read](fidelity/deviation.svg)

![Loss against bytes read](fidelity/loss.svg)

How to read it:

* **to weights** is ‖θ_A − θ_full‖ / ‖θ_full‖, **to update** is ‖θ_A − θ_full‖ / ‖θ_full − θ_0‖. The first is always small, since a fine-tune is
  near its base; 1.0 in the second is no better than doing nothing.
* **do nothing** returns the base and reads no expert; **random** reads blocks drawn by a seed. A policy is worth what it does better than these.
* **loss** is the mean over the five domains in nats per byte, **accuracy** the share of next bytes guessed right. **of the gain**: the share of the full
  merge's gain over the base. Above 100 %: what was left out did harm.
* **read** is below the budget where blocks need not be read, or the next one did not fit.

{sections}
## How it is measured

* Full catalog (`analyze --density 0.5`), `--block-size 16KiB`: at the default of 1 MiB this family of 2.7 million parameters has fewer blocks than a
  plan can choose from. Budgets are shares of the expert bytes of a full read. Densities are 0.5, `normalize: false`.
* The weight of each method is the one whose full merge has the lowest loss on the first 16 KiB of each domain's text; everything else is
  measured on the next 32 KiB, which the choice has not seen.
* Equal outputs are evaluated once.

## What to be careful about

* One family, small models, one seed. The gain of a merge over its base is small here, so shares of it are sensitive to hundredths of a nat.
* Five experts on five kinds of text pull against each other: at weights like these, less of each can be better than all of it.
* The base's layers are small tensors. In large models blocks are smaller parts of a tensor, and more uneven ones.
"""


def write(results, folder):
    plots(results, folder / "fidelity")
    (folder / "fidelity.md").write_text(text(results), encoding="utf-8")


if __name__ == "__main__":
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "results.json"
    write(json.loads(source.read_text()), Path(sys.argv[2]) if len(sys.argv) > 2 else HERE.parents[1] / "docs")
