"""Task arithmetic and TIES in a few lines, to choose a recipe's weights by.

Both take {name: float32 tensor} of a base and of each expert and return the
merged tensors in the base's stored precision, bfloat16.  Every expert has the
same weight.  They follow mergekit's definitions, with `normalize: false`.
"""

import torch


def merge(base, experts, combine):
    """Add to each base tensor what `combine` makes of the experts' deltas."""
    merged = {}
    for name, tensor in base.items():
        deltas = torch.stack([expert[name] - tensor for expert in experts])
        merged[name] = (tensor + combine(deltas)).to(torch.bfloat16)
    return merged


def task_arithmetic(base, experts, weight):
    """Add the experts' deltas, each times the weight."""
    return merge(base, experts, lambda deltas: weight * deltas.sum(dim=0))


def ties(base, experts, weight, density):
    """Keep each delta's largest entries, add those of the elected sign."""

    def combine(deltas):
        trimmed = weight * torch.stack([trim(d, density) for d in deltas])
        elected = torch.where(trimmed.sum(dim=0) >= 0, 1.0, -1.0)
        return (trimmed * (trimmed.sign() == elected)).sum(dim=0)

    return merge(base, experts, combine)


def trim(delta, density):
    """Set all but the share `density` of the largest entries to zero."""
    kept = delta.abs().flatten().topk(int(density * delta.numel())).indices
    trimmed = torch.zeros_like(delta)
    trimmed.view(-1)[kept] = delta.flatten()[kept]
    return trimmed
