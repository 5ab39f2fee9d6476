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

    def want(self, recipe, masks=None):
        """What the oracle makes of a recipe over this family."""
        return oracle.merge(recipe, self.load, masks)


def write(root, base, experts, layout="single", **save):
    """Checkpoints given as dicts, saved as base, e0, e1, ..."""
    paths = [checkpoints.save(root / f"e{i}", e, layout, **save) for i, e in enumerate(experts)]
    return Family(checkpoints.save(root / "base", base, layout, **save), paths)


def make(root, dtype="F32", layout="single", experts=3, seed=1, expert_dtype=None, **size):
    """A random Llama-shaped base and fine-tunes of it."""
    base = checkpoints.llama(seed, dtype, **size)
    tuned = [checkpoints.fine_tune(base, 100 * seed + i, dtype=expert_dtype) for i in range(experts)]
    return write(root, base, tuned, layout)


def dare_masks(mp, family, recipe, *flags):
    """The elements that a random recipe (in the models form) keeps of each expert, one dict by tensor for each.

    A mask depends on nothing but the seed, the expert's place in the recipe, the tensor and the element. So it shows when all weights
    but one are 0 and nothing is rescaled: elements that differ from the base were kept.
    """
    base, masks = family.load(recipe["base_model"]), []
    for i in range(len(recipe["models"])):
        probe = recipe | {"merge_method": "dare_linear", "out_dtype": "float32", "parameters": {"rescale": False}}
        probe["models"] = [
            m | {"parameters": {"density": m["parameters"]["density"], "weight": float(i == j)}} for j, m in enumerate(recipe["models"])
        ]
        kept = mp.merged(probe, *flags)
        masks.append({n: kept[n].values() != t.values() for n, t in base.items()})
    return masks


def faults(mp, family, recipe, *flags):
    """Merges, and tells how the result differs from the oracle's."""
    masks = dare_masks(mp, family, recipe, *flags) if recipe["merge_method"].startswith("dare") else None
    return oracle.faults(mp.merged(recipe, *flags), family.want(recipe, masks))


def smallest(method, family, **top):
    return recipes.smallest(method, family.base, family.experts, **top)
