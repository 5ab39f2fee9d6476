"""A base and its fine-tunes on disk."""

from dataclasses import dataclass, field
from pathlib import Path

import checkpoints
import oracle
import recipes


@dataclass
class Family:
    base: Path
    experts: list
    read: dict = field(default_factory=dict)

    def load(self, path):
        """The checkpoint that a recipe names."""
        return self.read.setdefault(str(path), checkpoints.read_checkpoint(path))

    def want(self, recipe, seed=0):
        """What the oracle makes of a recipe over this family."""
        return oracle.merge(recipe, self.load, seed)


def write(root, base, experts, layout="single", **save):
    """Checkpoints given as dicts, saved as base, e0, e1, ..."""
    paths = [checkpoints.save(root / f"e{i}", e, layout, **save) for i, e in enumerate(experts)]
    return Family(checkpoints.save(root / "base", base, layout, **save), paths)


def make(root, dtype="F32", layout="single", experts=3, seed=1, expert_dtype=None, **size):
    """A random Llama-shaped base and fine-tunes of it."""
    base = checkpoints.llama(seed, dtype, **size)
    tuned = [checkpoints.fine_tune(base, 100 * seed + i, dtype=expert_dtype) for i in range(experts)]
    return write(root, base, tuned, layout)


def faults(mp, family, recipe, *flags):
    """Merges, and tells how the result differs from the oracle's."""
    seed = int(flags[flags.index("--seed") + 1]) if "--seed" in flags else 0
    return oracle.faults(mp.merged(recipe, *flags), family.want(recipe, seed))


def smallest(method, family, **top):
    """The smallest recipe of a method, or of one of recipes.VARIANTS."""
    return recipes.smallest(method, family.base, family.experts, **top)
