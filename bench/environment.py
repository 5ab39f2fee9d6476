"""The Python environment with the real mergekit."""
import subprocess
import sys

import machine

# torch comes first and alone: its version as such has a small CPU wheel, while what another package asks for may
# bring gigabytes.
STEPS = [["torch==2.13.0"], ["mergekit==0.1.5", "transformers==5.24.0", "safetensors==0.8.0", "numpy"]]

CHECK = """
import importlib.metadata as m, sys
for want in sys.argv[1:]:
    name, _, version = want.partition("==")
    found = m.version(name).split("+")[0]
    if version and found != version:
        sys.exit(f"{name} {found} instead of {version}")
"""


def is_ready(folder):
    python = folder / "bin" / "python"
    wanted = [package for step in STEPS for package in step]
    return python.exists() and subprocess.run([python, "-c", CHECK, *wanted], capture_output=True).returncode == 0


def find_or_make(root, say):
    """The folder of an environment with the pinned packages: one that is there, else a new .venv-bench."""
    for name in (".venv-bench", ".venv-test"):
        if is_ready(root / name):
            return root / name
    folder = root / ".venv-bench"
    say(f"making {folder.name} with torch and mergekit (a few minutes)")
    if subprocess.run([sys.executable, "-c", "import ensurepip"], capture_output=True).returncode != 0:
        machine.install("python3-venv", say)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    for packages in STEPS:
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", *packages], check=True)
    return folder
