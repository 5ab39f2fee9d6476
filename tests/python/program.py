"""The program under test, run as its users run it, in a folder of the test's own."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import checkpoints
import recipes

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.path.abspath(os.environ.get("MERGEPIPE_BINARY", ROOT / "build/release/mergepipe"))
STAGING = ".{}.mergepipe-staging"


@dataclass
class Run:
    status: int  # as a shell tells it: 128 + N for signal N
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


class Program:
    """Runs the program in root; outputs of merge() are numbered and everything stays in root."""

    def __init__(self, root):
        self.root, self.made = root, 0
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("MERGEPIPE_")}
        self.env |= {"XDG_CACHE_HOME": str(root / "cache"), "NO_COLOR": "1"}

    def start(self, *args, cwd=None, env=None, **popen):
        return subprocess.Popen(
            [BINARY, *map(str, args)], cwd=cwd or self.root, env=self.env | (env or {}), text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **popen,
        )

    def run(self, *args, timeout=120, **start):
        with self.start(*args, **start) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        code = process.returncode
        return Run(code if code >= 0 else 128 - code, out, err)

    def ok(self, *args, **start):
        run = self.run(*args, **start)
        assert run.status == 0, f"{' '.join(map(str, args))}: exit {run.status}\n{run.err}\n{run.out[:500]}"
        return run

    # --- recipes and merges

    def fresh(self, stem, suffix=""):
        self.made += 1
        return self.root / f"{stem}{self.made}{suffix}"

    def recipe(self, recipe):
        """A recipe (dict or YAML text) as a file."""
        path = self.fresh("recipe", ".yml")
        path.write_text(recipes.text(recipe))
        return path

    def merge(self, recipe, *flags, **start):
        """Merges and yields the output folder."""
        out = self.fresh("out")
        self.ok("merge", self.recipe(recipe), out, *flags, **start)
        return out

    def merged(self, recipe, *flags, **start):
        """Merges and yields the stored tensors."""
        return checkpoints.read_checkpoint(self.merge(recipe, *flags, **start))

    def report(self, recipe, *flags, **start):
        """Merges with --json and yields the object on stdout."""
        return self.ok("merge", self.recipe(recipe), self.fresh("out"), "--json", *flags, **start).json

    def refuse(self, recipe, *words, flags=(), status=2, **start):
        """A merge that is refused: exit status 2, a message with all the words, no output, nothing left behind, inputs untouched."""
        path, out = self.recipe(recipe), self.fresh("out")
        before = checkpoints.digests(self.root, ignore=("cache",))
        run = self.run("merge", path, out, *flags, **start)
        assert run.status == status, f"exit {run.status}, wanted {status}\n{run.err}"
        told = run.err + run.out
        missing = [w for w in map(str, words) if w not in told]
        assert not missing, f"{missing} not in:\n{told}"
        assert checkpoints.digests(self.root, ignore=("cache",)) == before, "files were left behind or changed"
        return run

    def refuse_to(self, out, recipe):
        """A merge into a place that cannot be written: exit status 2, the place named, nothing changed."""
        path = self.recipe(recipe)
        before = checkpoints.digests(self.root, ignore=("cache",))
        run = self.run("merge", path, out)
        assert run.status == 2 and str(out.parent) in run.err, f"exit {run.status}\n{run.err}"
        assert checkpoints.digests(self.root, ignore=("cache",)) == before
