"""A merge of 405B size (ties of 8 experts of 126 layers, headers without data) is planned in little memory. bench/large/run has the times."""

import subprocess
import sys

import pytest

import program

MAKE = program.ROOT / "bench/large/hollow.py"
MEASURE = program.ROOT / "tests/python/measure.py"
BLOCKS = 773_000  # of each model


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hollow")
    made = subprocess.run([sys.executable, MAKE, folder], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no large sparse files here: {made.stderr.splitlines()[-1]}")
    return folder / "recipe.yml"


def plan(mp, recipe, *flags):
    """The report of a plan, and the largest resident memory."""
    report = mp.root / "peak"
    command = [sys.executable, "-S", "-E", MEASURE, report, program.BINARY, "plan", recipe, "--json", *flags]
    run = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=mp.env, timeout=600)
    status, peak = map(int, report.read_text().split())
    assert status == 0, run.stderr
    return program.Run(status, run.stdout, run.stderr).json, peak


def test_headers_alone(mp, recipe):
    told, peak = plan(mp, recipe)
    assert told["tensors"]["merged"] == 126 * 9 + 3 and told["output_bytes"] > 800e9
    assert peak < 128 << 20


def test_every_parameter_of_every_tensor(mp, recipe):
    told, peak = plan(mp, recipe, "--explain-parameters")
    assert sum(group["count"] for group in told["tensor_parameters"]) == 126 * 9 + 3
    assert len(told["tensor_parameters"]) == 1 and peak < 128 << 20


def test_a_budget_with_samples_slow(mp, recipe):
    told, peak = plan(mp, recipe, "--budget", "10%")
    assert 0 < told["expert_read_bytes"] <= told["budget_bytes"]
    assert 0 < told["sample_read_bytes"] <= 8 * 4096 * (1 << 18)
    assert peak < 1 << 30
