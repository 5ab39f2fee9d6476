"""The random numbers of the methods that drop elements, as docs/design.md defines them."""

import numpy as np
import xxhash

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def stream(seed, position, tensor):
    """Names the numbers of one expert, by its position among a method's inputs, in one output tensor."""
    return xxhash.xxh3_64_intdigest(tensor.encode(), xxhash.xxh3_64_intdigest(str(position).encode(), seed))


def uniform(stream, shape):
    """One number in [0, 1) for each element of a tensor, in float32."""
    n = int(np.prod(shape, dtype=np.int64))
    with np.errstate(over="ignore"):
        z = np.uint64(stream) + np.arange(1, n + 1, dtype=np.uint64) * GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return ((z >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)).reshape(shape)
