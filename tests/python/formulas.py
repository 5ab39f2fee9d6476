"""The merge methods in numpy, one tensor at a time, written from their papers and from what mergekit 0.1.5 computes.

Arithmetic is float32, sums in the order of the inputs; what cuts and shares hang on (norms, energies, divergences) in float64. Each
function takes the inputs of one tensor as arrays (float32, or float64 for tensors stored so) and yields the merged values before they are
rounded to the stored type. Those that turn vectors are in spheres.py.

  linear            weighted mean of weights (Wortsman et al. 2022, arXiv:2203.05482)
  task_arithmetic   b + lambda * sum w_i d_i (Ilharco et al. 2023, arXiv:2212.04089)
  ties              trim, elect sign, disjoint merge (Yadav et al. 2023, arXiv:2306.01708)
  dare_*            drop at random and rescale (Yu et al. 2024, arXiv:2311.03099), here by the L1 norm that was really kept
  breadcrumbs*      leave out the largest and the smallest (Davari, Belilovsky 2023, arXiv:2312.06795)
  della*            drop at random, small ones sooner (Deep et al. 2024, arXiv:2406.11617)
  sce               select by variance, weigh by energy, erase the minority (Wan et al. 2024, arXiv:2408.07990)
  ram, ramplus_tl   mean of what several change, all of what one changes (Yuan et al. 2026, arXiv:2601.13572)
  nearswap          a step of at most t towards the other model
  arcee_fusion      the other model's elements where they matter most
"""

import numpy as np

F = np.float32


def linear(inputs, weights, normalize=True):
    total = sum((x * F(w) for x, w in zip(inputs, weights)), np.zeros_like(inputs[0]))
    return total / np.sum(np.array(weights, F), dtype=F) if normalize else total


def passthrough(value, scale=None):
    return value if scale is None else value * F(scale)


# --- which elements of a delta stay ----------------------------------------------------------------------------------


def by_size(delta):
    """Indices of all elements, the largest magnitude first; equal ones by index. Magnitudes are compared in float32."""
    return np.argsort(-np.abs(delta.ravel().astype(F)), kind="stable")


def mask_of(chosen, delta):
    keep = np.zeros(delta.size, bool)
    keep[chosen] = True
    return keep.reshape(delta.shape)


def keep_largest(delta, density):
    """A mask of exactly max(1, trunc(density * n)) elements of largest magnitude; none at density 0."""
    n = delta.size
    k = min(n, max(1, int(density * n))) if density > 0 and n else 0
    return mask_of(by_size(delta)[:k], delta)


def keep_middle(delta, density, gamma):
    """trunc(density * n) elements, after leaving out the trunc(gamma * n) largest, or fewer of those where too few were left."""
    n = delta.size
    k = int(max(density, 0) * n)
    out = min(int(max(gamma, 0) * n), n - k)
    return mask_of(by_size(delta)[out : out + k], delta)


def keep_by_chance(delta, density, uniform):
    return uniform < F(density)


def keep_by_rank(delta, density, epsilon, uniform):
    """The chance grows with the rank in a row, from density - epsilon to density + epsilon; rows run along the second axis, and a tensor of
    one axis is one row. A lone element stays with chance density."""
    if density <= 0 or not delta.size:
        return np.zeros(delta.shape, bool)
    rows = delta.reshape(1, -1) if delta.ndim < 2 else delta
    order = np.argsort(np.abs(rows.astype(F)), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable").astype(F)
    share = rank / F(rows.shape[1] - 1) if rows.shape[1] > 1 else np.full(rows.shape, F(0.5))
    chance = share * F(2) * F(epsilon) + F(density - epsilon)
    return uniform < chance.reshape(delta.shape)


def l1(values):
    return float(np.abs(values).sum(dtype=np.float64))


def masked(delta, mask, rescale):
    """The kept part of a delta, brought back to the L1 norm of the whole where asked for."""
    kept = np.where(mask, delta, F(0))
    whole, part = l1(delta), l1(kept)
    if not rescale or whole < 1e-7 or part < 1e-7:
        return kept
    return kept * F(whole / part)


def sparsify(delta, density, rescale, keep=keep_largest):
    """One delta with only what `keep` leaves of it; whole and never rescaled from density 1 on."""
    return delta if density >= 1 else masked(delta, keep(delta, density), rescale)


# --- task vectors ----------------------------------------------------------------------------------------------------


def agreeing(parts):
    """Masks of what has the sign of the sum, which counts as positive where it is zero. Zeros never agree."""
    majority = np.where(sum(parts) >= 0, F(1), F(-1))
    return [np.sign(p) == majority for p in parts]


def elect(parts, weights, normalize):
    """The disjoint merge: only parts whose sign is that of the weighted sum count."""
    agrees = agreeing(parts)
    mix = sum(np.where(a, p, F(0)) for a, p in zip(agrees, parts))
    divisor = sum(np.where(a, F(w), F(0)) for a, w in zip(agrees, weights))
    return mix / np.where(divisor == 0, F(1), divisor) if normalize else mix


def add(parts, weights, normalize):
    divisor = np.sum(np.array(weights, F), dtype=F)
    mix = sum(parts)
    return mix / (divisor if abs(divisor) >= 1e-8 else F(1)) if normalize else mix


def task_vectors(base, experts, weights, *, combine, densities=None, keeps=None, rescale=False, normalize=False, factor=1.0):
    """The family around task arithmetic: sparsify each delta, weigh, combine, scale, add to the base."""
    deltas = [(x - base).astype(F) for x in experts]
    if not deltas:
        return base
    densities = densities or [1.0] * len(deltas)
    keeps = keeps or [keep_largest] * len(deltas)
    kept = [sparsify(d, p, rescale, k) for d, p, k in zip(deltas, densities, keeps)]
    mix = combine([F(w) * d for w, d in zip(weights, kept)], weights, normalize)
    return base + (mix if factor == 1 else mix * F(factor))


# --- others that work on deltas --------------------------------------------------------------------------------------


def most_varied(deltas, share):
    """A mask of the elements whose variance over the models is largest: a share of those where it is not zero, cut off in float32."""
    same = np.all([d == deltas[0] for d in deltas], axis=0)
    variance = np.where(same, 0, np.var(np.array(deltas, np.float64), axis=0)).astype(F)
    k = int(F(np.count_nonzero(variance)) * F(share))
    return mask_of(by_size(variance)[:k], variance)


def sce(base, experts, select_topk=1.0):
    deltas = [x - base for x in experts]
    if not deltas or select_topk <= 0:
        return base
    if select_topk < 1:
        selected = most_varied(deltas, select_topk)
        deltas = [np.where(selected, d, F(0)) for d in deltas]
    energies = [float(np.square(d, dtype=np.float64).mean()) if d.size else 0.0 for d in deltas]
    total = sum(energies)
    weights = [1 / len(deltas) if total < 1e-6 else e / total for e in energies]
    shares = [np.where(a, F(w), F(0)) for a, w in zip(agreeing(deltas), weights)]
    return base + sum(d * s for d, s in zip(deltas, shares)) / np.maximum(sum(shares), F(1e-6))


def ram(base, experts, epsilon=1e-5, enlarge=lambda shared, alone: 1.0):
    """enlarge: the factor on what one model alone changes, from how many of its changes it shares and how many not."""
    deltas = [x - base for x in experts]
    changes = [np.abs(d) > d.dtype.type(epsilon) for d in deltas]
    count = sum((c.astype(np.int64) for c in changes), np.zeros(base.shape, np.int64))
    mix = np.zeros_like(base)
    for d, c in zip(deltas, changes):
        alone, shared = c & (count == 1), c & (count > 1)
        mix = mix + np.where(alone, d * F(enlarge(shared.sum(), alone.sum())), F(0)) + np.where(shared, d / np.maximum(count, 1).astype(d.dtype), F(0))
    return base + mix


def ramplus_tl(base, experts, r=0.1, alpha=0.2, epsilon=1e-5):
    return ram(base, experts, epsilon, lambda shared, alone: 1 + r * min(max(shared / max(alone, epsilon), 0), alpha))


def nearswap(base, other, t):
    delta = other - base
    weight = np.clip(F(1) / np.maximum(np.abs(delta), F(1e-6)) * F(t), F(0), F(1))
    return base + delta * weight


# --- arcee_fusion ----------------------------------------------------------------------------------------------------


def softmax(x):
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def importance(base, other):
    """|delta| times how far apart the distributions of both rows are (Kullback-Leibler)."""
    b, x = np.atleast_1d(base.astype(np.float64)), np.atleast_1d(other.astype(np.float64))
    p, q = softmax(x) + 1e-8, softmax(b) + 1e-8
    divergence = np.maximum(0, np.sum(p * np.log(p / q), axis=-1, keepdims=True))
    return (np.abs(x - b) * divergence).reshape(base.shape)


def arcee_fusion(base, other):
    if not base.size:
        return base
    scores = importance(base, other)
    ranked = np.sort(scores.ravel())
    low, median, high = (ranked[int(q * (ranked.size - 1))] for q in (0.25, 0.5, 0.75))
    return np.where(scores >= median + 1.5 * (high - low), other, base)
