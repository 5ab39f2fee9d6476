"""Recipes drawn at random, against the oracle: combinations that nobody thought of."""

import pytest

import families
import recipes
from dice import LAYERS, Dice, drop_filters, well_conditioned


MERGING = [m for m in recipes.METHODS if m != "passthrough"]


@pytest.mark.parametrize("seed", range(95))
def test_a_random_recipe_of_whole_models_equals_the_oracle(seed, mp):
    dice = Dice(seed)
    method = MERGING[seed % len(MERGING)]
    dtype, layout = dice.pick("F32", "F16", "BF16", "mixed", "F64"), dice.pick("single", "sharded")
    family = families.make(mp.root, dtype, layout, seed=seed + 1, layers=LAYERS)
    recipe = well_conditioned(dice.models(family, method))
    flags = ["--seed", str(seed), "--threads", str(dice.pick(1, 2, 3))]
    assert families.faults(mp, family, recipe, *flags) == []


@pytest.mark.parametrize("seed", range(38))
def test_a_random_recipe_of_slices_equals_the_oracle(seed, mp):
    dice = Dice(1000 + seed)
    method = MERGING[seed % len(MERGING)]
    family = families.make(mp.root, dice.pick("F32", "BF16"), seed=seed + 1, layers=LAYERS)
    recipe = well_conditioned(dice.slices(family, method))
    for source in (s for piece in recipe["slices"] for s in piece["sources"]):
        drop_filters(source.get("parameters", {}))
    drop_filters(recipe.get("parameters", {}))
    assert families.faults(mp, family, recipe) == []
