"""On 16-bit checkpoints many magnitudes are equal, and which of them are kept at a cut is the implementation's choice.

The kept sets of both sides have the same size and differ only among equals.
"""

import numpy as np
import pytest

import checkpoints
import referee
from recipes import models

TRIMS = {
    "ties": {"density": 0.4},
    "breadcrumbs": {"density": 0.4, "gamma": 0.05},
    "breadcrumbs_ties": {"density": 0.6, "gamma": 0.1},
}


def kept(folder, base):
    """By tensor, the elements that differ from the base."""
    return {n: t.values() != base[n].values() for n, t in checkpoints.read_checkpoint(folder).items()}


@pytest.mark.parametrize("method", TRIMS)
def test_kept_sets_differ_only_among_equal_magnitudes(method, mp, zoo, tmp_path):
    folder = zoo("llama BF16")
    recipe = models(method, "base", ["a"], {"weight": 1.0, **TRIMS[method]}) | {"dtype": "float32", "out_dtype": "float32"}
    base, expert = (checkpoints.read_checkpoint(folder / m) for m in ("base", "a"))
    referee.merge(folder, recipe, tmp_path / "theirs")
    ours, theirs = kept(mp.merge(recipe, cwd=folder), base), kept(tmp_path / "theirs", base)
    swapped = 0
    for name, stored in base.items():
        size = np.abs(expert[name].values() - stored.values())
        only_ours, only_theirs = ours[name] & ~theirs[name], theirs[name] & ~ours[name]
        # Zeros that are kept do not show: as many elements are swapped as have a counterpart of the same size, or 0.
        assert sorted(size[only_ours]) == sorted(size[only_theirs]), name
        swapped += int(only_ours.sum())
    total = sum(int(k.sum()) for k in ours.values())
    assert swapped <= 0.1 * total, "and they are few"
