"""Fixtures of the conformance suite: checkpoints made once, and the table of results."""

import json
import os

import pytest

import checkpoint_zoo
import vocabulary_zoo
from fixtures import mp, private_catalog, program_is_there  # noqa: F401


@pytest.fixture(scope="session")
def zoo(tmp_path_factory):
    """A function that yields the folder of a family; each is made once."""
    root, made = tmp_path_factory.mktemp("zoo"), {}

    def of(family):
        if family not in made:
            name, _, dtype = family.partition(" ")
            made[family] = checkpoint_zoo.save(root / family.replace(" ", "_"), name, checkpoint_zoo.ARCHITECTURES[name], dtype or "F32")
        return made[family]

    return of


@pytest.fixture(scope="session")
def speakers(tmp_path_factory):
    """The same for the models of vocabulary_zoo."""
    root, made = tmp_path_factory.mktemp("speakers"), {}

    def of(family):
        if family not in made:
            made[family] = vocabulary_zoo.save(root, family)
        return made[family]

    return of


@pytest.fixture(scope="session")
def results():
    """Rows for docs/conformance.md, written where MERGEPIPE_CONFORMANCE_ROWS says."""
    rows = []
    yield rows
    if path := os.environ.get("MERGEPIPE_CONFORMANCE_ROWS"):
        with open(path, "w") as file:
            json.dump(rows, file)
