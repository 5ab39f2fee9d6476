"""Merge methods that treat a tensor, or each of its rows or columns, as a vector with a length and a direction. In float64 throughout.

  slerp         on the great circle between two tensors (Shoemake 1985); nuslerp: between two task vectors, or vector by vector
  multislerp    around the mean direction of several models (mergekit)
  karcher       the Frechet mean of directions on the sphere (Karcher 1977, arXiv:2603.04972)
  model_stock   towards the mean as far as the task vectors agree (Jang et al. 2024, arXiv:2403.19522)

`axis` None: the whole tensor is one vector.
"""

import numpy as np

COLINEAR = 1e-14  # nearer to +-1 than this the square of a cosine in float64 is noise


def wide(*arrays):
    return [np.asarray(a, np.float64) for a in arrays]


def dot(a, b, axis=None):
    return np.sum(a * b, axis=axis, keepdims=True)


def norm(a, axis=None):
    return np.sqrt(dot(a, a, axis))


def slerp(base, other, t):
    """t = 0 gives the base; nearly (anti)parallel tensors are interpolated in a straight line."""
    a, b = wide(base, other)

    def unit(v):
        length = norm(v)
        return np.where(length > 1e-8, v / np.where(length > 0, length, 1), v)

    cosine = float(np.clip(np.sum(unit(a) * unit(b)), -1, 1))
    if abs(cosine) > 0.9995:
        return (1 - t) * a + t * b
    angle = np.arccos(cosine)
    return np.sin((1 - t) * angle) / np.sin(angle) * a + np.sin(t * angle) / np.sin(angle) * b


def arc(first, second, t, axis):
    """Vector by vector on the arc between two; colinear ones in a straight line."""
    u, v = (x / np.maximum(norm(x, axis), 1e-7) for x in (first, second))
    cosine = np.clip(dot(u, v, axis), -1, 1)
    flat = 1 - cosine**2 <= COLINEAR
    angle = np.arccos(np.where(flat, 0, cosine))
    sine = np.where(flat, 1, np.sin(angle))
    near, far = np.where(flat, 1 - t, np.sin((1 - t) * angle) / sine), np.where(flat, t, np.sin(t * angle) / sine)
    return near * first + far * second


def nuslerp(base, pair, weights, flatten=True, row_wise=False):
    """base: None where the models themselves are turned."""
    first, second = wide(*pair)
    start = np.zeros_like(first) if base is None else np.asarray(base, np.float64)
    total = weights[0] + weights[1]
    t = 0.5 if abs(total) < 1e-6 else weights[1] / total
    axis = None if flatten or first.ndim == 0 else 0 if row_wise else -1
    return start + arc(first - start, second - start, t, axis)


def multislerp(base, models, weights, normalize_weights=True, eps=1e-8):
    models = wide(*models)
    if len(models) == 1:
        return models[0]
    start = np.zeros_like(models[0]) if base is None else np.asarray(base, np.float64)
    vectors = [x - start for x in models]
    weights = np.array(weights, np.float32).astype(np.float64)
    weights = weights / weights.sum() if normalize_weights else weights
    lengths = [float(norm(x).squeeze()) for x in vectors]
    units = [x / (n + eps) for x, n in zip(vectors, lengths)]
    mean = sum(w * u for w, u in zip(weights, units))
    length = float(norm(mean).squeeze())
    if length < eps:
        return start + sum(w * x for w, x in zip(weights, vectors))
    mean = mean / length
    tangent = sum(w * (u - np.sum(u * mean) * mean) for w, u in zip(weights, units))
    q = float(norm(tangent).squeeze()) + eps
    return start + (mean * np.cos(q) + tangent * (np.sin(q) / q)) * sum(w * n for w, n in zip(weights, lengths))


def karcher(models, max_iter=10, tol=1e-5):
    models = wide(*models)
    if len(models) == 1:
        return models[0]
    lengths = [float(norm(x).squeeze()) for x in models]
    units = [x / n for x, n in zip(models, lengths) if n > tol]
    if not units:
        return np.zeros_like(models[0])
    mean = sum(units) / len(units)
    length = float(norm(mean).squeeze())
    mean = units[0] if length < tol else mean / length
    for _ in range(int(max_iter)):
        tangent = np.zeros_like(mean)
        for u in units:
            cosine = float(np.clip(np.sum(mean * u), -1, 1))
            angle = np.arccos(cosine)
            if tol <= angle <= np.pi - 1e-6:  # towards what lies just opposite there is no direction
                tangent = tangent + angle / np.sin(angle) * (u - cosine * mean) / len(units)
        step = float(norm(tangent).squeeze())
        if step < tol:
            break
        mean = np.cos(step) * mean + np.sin(step) * tangent / step
        mean = mean / norm(mean)
    return mean * (sum(lengths) / len(models))


def model_stock(base, experts, filter_wise=False):
    base, *experts = wide(base, *experts)
    deltas = [x - base for x in experts]
    n, axis = len(deltas), -1 if filter_wise and base.ndim else None
    lengths = [norm(d, axis) for d in deltas]
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    cosine = sum(np.clip(dot(deltas[i], deltas[j], axis) / np.maximum(lengths[i] * lengths[j], 1e-6), -1, 1) for i, j in pairs) / len(pairs)
    divisor = 1 + (n - 1) * cosine
    singular = np.abs(divisor) < 1e-6
    t = np.where(singular, 0, n * cosine / np.where(singular, 1, divisor))
    return base + t * sum(deltas) / n
