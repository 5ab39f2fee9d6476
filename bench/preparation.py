"""What a benchmark needs before it measures: the program, a folder on a disk, a family."""
import os
import pathlib
import shutil
import subprocess
import sys

import contenders
import machine

ROOT = pathlib.Path(__file__).resolve().parent.parent
BASE_BYTES = {"large": 1 << 30, "small": 64 << 20, "tiny": 7 << 20}


def say(text):
    print(text, file=sys.stderr, flush=True)


def find_program(given):
    if given:
        return given.resolve()
    program = ROOT / "build" / "release" / "mergepipe"
    build = ROOT / "scripts" / "build"
    if build.exists():
        subprocess.run([build], check=True, stdout=sys.stderr)
    if not program.exists():
        raise SystemExit(f"{program.relative_to(ROOT)} is missing; run scripts/build")
    return program


def find_folder(given, needed):
    """A folder on a disk with so many bytes of room."""
    candidates = [given] if given else [os.environ.get("TMPDIR"), "/var/tmp", "/tmp", ROOT / "build"]
    for candidate in filter(None, candidates):
        folder = pathlib.Path(candidate)
        folder.mkdir(parents=True, exist_ok=True)
        if machine.mount_of(folder)[0] in machine.MEMORY_FILE_SYSTEMS:
            say(f"{folder}: lies in memory, not on a disk")
        elif shutil.disk_usage(folder).free < needed:
            say(f"{folder}: has less than the {needed / 2**30:.1f} GiB that this takes")
        else:
            return folder.resolve()
    raise SystemExit("no folder to work in; name one with --dir")


def make_family(folder, size, experts, python, *kind):
    """The family in `folder`, generated where it is not there yet, complete and of this generator."""
    family = contenders.Family(folder, experts)
    generator = ROOT / "bench" / "family.py"
    complete = folder / "complete"
    wanted = generator.read_text(encoding="utf-8") + f"# {size} {experts} {kind}\n"
    if not complete.exists() or complete.read_text(encoding="utf-8") != wanted:
        say(f"generating the family: {experts + 1} checkpoints of {BASE_BYTES[size] >> 20} MiB")
        complete.unlink(missing_ok=True)
        subprocess.run([python, generator, folder, size, str(experts), *kind], check=True)
        complete.write_text(wanted, encoding="utf-8")
    return family
