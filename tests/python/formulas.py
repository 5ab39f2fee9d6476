"""The merge methods in numpy, one tensor at a time, written from their papers and from what mergekit 0.1.5 computes.

Arithmetic is float32, sums in the order of the inputs, norms and inner products in float64. Each function takes the inputs of one tensor
as arrays (float32, or float64 for tensors stored so) and yields the merged values before they are rounded to the stored type.

  linear            weighted mean of weights (Wortsman et al. 2022, arXiv:2203.05482)
  task_arithmetic   b + lambda * sum w_i d_i (Ilharco et al. 2023, arXiv:2212.04089)
  ties              trim, elect sign, disjoint merge (Yadav et al. 2023, arXiv:2306.01708)
  dare_*            drop at random and rescale (Yu et al. 2024, arXiv:2311.03099), here by the L1 norm that was really kept
  slerp             on the great circle between the two tensors (Shoemake 1985)
"""

import numpy as np

F = np.float32


def linear(inputs, weights, normalize=True):
    total = sum((x * F(w) for x, w in zip(inputs, weights)), np.zeros_like(inputs[0]))
    return total / np.sum(np.array(weights, F), dtype=F) if normalize else total


def passthrough(value, scale=None):
    return value if scale is None else value * F(scale)


def slerp(base, other, t):
    """t = 0 gives the base; nearly (anti)parallel tensors are interpolated in a straight line."""
    a, b = base.astype(np.float64).ravel(), other.astype(np.float64).ravel()

    def unit(v):
        norm = np.sqrt(v @ v)
        return v / norm if norm > 1e-8 else v

    cosine = float(np.clip(unit(a) @ unit(b), -1, 1))
    if abs(cosine) > 0.9995:
        return F(1 - t) * base + F(t) * other
    angle = np.arccos(cosine)
    near, far = np.sin((1 - t) * angle) / np.sin(angle), np.sin(t * angle) / np.sin(angle)
    return F(near) * base + F(far) * other


def keep_largest(delta, density):
    """A mask of exactly max(1, trunc(density * n)) elements of largest magnitude, ties to the lowest index; none at density 0."""
    n = delta.size
    keep = np.zeros(n, bool)
    if density > 0 and n:
        k = min(n, max(1, int(density * n)))
        keep[np.argsort(-np.abs(delta.ravel()), kind="stable")[:k]] = True
    return keep.reshape(delta.shape)


def l1(values):
    return float(np.abs(values).sum(dtype=np.float64))


def masked(delta, mask, rescale):
    """The kept part of a delta, brought back to the L1 norm of the whole where asked for."""
    kept = np.where(mask, delta, F(0))
    whole, part = l1(delta), l1(kept)
    if not rescale or whole < 1e-7 or part < 1e-7:
        return kept
    return kept * F(whole / part)


def sparsify(delta, density, rescale, mask):
    """One delta trimmed by magnitude, or by a mask that the caller knows (the random ones)."""
    if density >= 1:
        return delta
    return masked(delta, keep_largest(delta, density) if mask is None else mask, rescale)


def elect(parts, weights, normalize):
    """The disjoint merge: only parts whose sign is that of the weighted sum count; a sum of zero counts as positive."""
    majority = np.where(sum(parts) >= 0, F(1), F(-1))
    agrees = [np.sign(p) == majority for p in parts]
    mix = sum(np.where(a, p, F(0)) for a, p in zip(agrees, parts))
    divisor = sum(np.where(a, F(w), F(0)) for a, w in zip(agrees, weights))
    return mix / np.where(divisor == 0, F(1), divisor) if normalize else mix


def add(parts, weights, normalize):
    divisor = np.sum(np.array(weights, F), dtype=F)
    mix = sum(parts)
    return mix / (divisor if abs(divisor) >= 1e-8 else F(1)) if normalize else mix


def task_vectors(base, experts, weights, *, combine, densities=None, masks=None, rescale=False, normalize=False, factor=1.0):
    """The family around task arithmetic: sparsify each delta, weigh, combine, scale, add to the base."""
    deltas = [(x - base).astype(F) for x in experts]
    if not deltas:
        return base
    densities = densities or [1.0] * len(deltas)
    masks = masks or [None] * len(deltas)
    kept = [sparsify(d, p, rescale, m) for d, p, m in zip(deltas, densities, masks)]
    mix = combine([F(w) * d for w, d in zip(weights, kept)], weights, normalize)
    return base + (mix if factor == 1 else mix * F(factor))
