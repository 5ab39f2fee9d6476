"""Fixtures for all tests: each test has its own folder and its own program runner."""

import os
import subprocess

import pytest

import program


@pytest.fixture(scope="session", autouse=True)
def program_is_there():
    if not os.access(program.BINARY, os.X_OK):
        pytest.exit(f"no program at {program.BINARY}: run scripts/build, or set MERGEPIPE_BINARY", returncode=2)


@pytest.fixture(autouse=True)
def private_catalog(tmp_path, monkeypatch):
    """No test sees what another one analysed, or what the user of this machine did."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def mp(tmp_path):
    return program.Program(tmp_path)


@pytest.fixture
def tmpfs(tmp_path):
    """A function that mounts a small file system of its own; needs root."""
    mounted = []

    def mount(name, options):
        path = tmp_path / name
        path.mkdir()
        if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], capture_output=True).returncode:
            pytest.skip("cannot mount a tmpfs here")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", path], check=True)
