"""The script that people write first: naive.py task_arithmetic|ties WEIGHT DENSITY OUT BASE EXPERT...

Loads every checkpoint, computes tensor by tensor in float32, saves. Its output is compared with mergepipe's too.
"""
import os
import sys

import torch
from safetensors.torch import load_file, save_file


def trimmed(delta, density):
    """The density * n largest elements of the whole tensor; which of several equal ones stay is torch's choice."""
    kept = torch.topk(delta.abs().flatten(), max(1, int(density * delta.numel())), sorted=False).indices
    mask = torch.zeros(delta.numel(), dtype=torch.bool)
    mask[kept] = True
    return delta * mask.view(delta.shape)


def ties(base, deltas, weight, density):
    weighted = torch.stack([trimmed(delta, density) for delta in deltas]) * weight
    elected = torch.where(weighted.sum(dim=0) >= 0, 1.0, -1.0)
    agrees = weighted.sign() == elected
    divisor = agrees.sum(dim=0) * weight
    divisor[divisor == 0] = 1
    return base + (weighted * agrees).sum(dim=0) / divisor


def task_arithmetic(base, deltas, weight, _):
    return base + weight * sum(deltas)


def main():
    method, weight, density, out = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    base, *experts = [load_file(os.path.join(folder, "model.safetensors")) for folder in sys.argv[5:]]
    merge = {"task_arithmetic": task_arithmetic, "ties": ties}[method]
    merged = {}
    for name, stored in base.items():
        value = stored.float()
        deltas = [expert[name].float() - value for expert in experts]
        merged[name] = merge(value, deltas, weight, density).to(stored.dtype)
    os.makedirs(out)
    save_file(merged, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})


main()
