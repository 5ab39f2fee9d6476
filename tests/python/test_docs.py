"""The documents say what the program does: examples run, tables are its records, nothing is left out."""

import os
import re
import subprocess
import sys

import pytest
import yaml

import program

RECIPES, CLI = (program.ROOT / "docs" / name for name in ("recipes.md", "cli.md"))
FAMILY = program.ROOT / "examples/family"
COMMIT = {"main": "1" * 40, "v2": "2" * 40}


def examples():
    """(line, text) of each YAML block."""
    text = RECIPES.read_text()
    for block in re.finditer(r"^```yaml\n(.*?)^```$", text, re.S | re.M):
        yield text[: block.start()].count("\n") + 1, block.group(1)


def documents():
    for _, text in examples():
        yield from yaml.safe_load_all(text)


def keys_in(value):
    """All keys of all mappings within a value; the parameters' names are apart."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_in(inner)


def rows(page, heading):
    """Cells of the first table below a heading."""
    section = page.read_text().split(f"\n{heading}\n")[1].split("\n## ")[0]
    for line in section.split("\n|---")[1].splitlines()[1:]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.fixture
def hub(tmp_path):
    """A Hugging Face cache with the model that the page names, in two revisions."""
    model = tmp_path / "hub/models--acme--scribe"
    (model / "refs").mkdir(parents=True)
    for (ref, commit), source in zip(COMMIT.items(), ("base", "experts/perl")):
        (model / "refs" / ref).write_text(commit)
        (model / "snapshots" / commit).mkdir(parents=True)
        for file in (FAMILY / source).iterdir():
            os.symlink(file, model / "snapshots" / commit / file.name)
    return {"HF_HUB_CACHE": str(tmp_path / "hub")}


@pytest.mark.skipif(not FAMILY.is_dir(), reason="examples/family is not there")
@pytest.mark.parametrize("line,text", list(examples()), ids=lambda v: f"line {v}" if isinstance(v, int) else "")
def test_every_example_plans(line, text, mp, hub):
    path = mp.fresh("recipe", ".yml")
    path.write_text(text)
    mp.ok("plan", path, mp.fresh("out"), cwd=FAMILY, env=hub)


def test_every_key_has_an_example():
    known = {key for first, *_ in rows(RECIPES, "## Keys") for key in re.findall(r"`(\w+)`", first)}
    tokenizer = {"source", "tokens", "force", "pad_to_multiple_of", "kind", "token"}
    reference = {"model", "path", "revision", "lora", "override_architecture", "filter", "value"}
    assert len(known) >= 16
    used = {key for document in documents() for key in keys_in(document)}
    assert (known | tokenizer | reference) - used == set()


def test_every_method_and_parameter_has_an_example(mp):
    methods = mp.ok("methods", "--json").json["methods"]
    shown = {}
    for document in documents():
        shown.setdefault(document["merge_method"], set()).update(keys_in(document))
    assert {m["name"] for m in methods} == set(shown)
    anywhere = set().union(*shown.values())
    assert {p["name"] for m in methods for p in m["parameters"]} <= anywhere


def test_the_tables_are_the_programs_records():
    check = subprocess.run([sys.executable, program.ROOT / "tools/write_docs", "--check", "--program", program.BINARY], capture_output=True, text=True)
    assert check.returncode == 0, check.stderr


def flags(mp):
    """All flags of all commands, from the man page."""
    for term in re.findall(r"^\.TP\n(\\fB\\-.*)$", mp.ok("help", "--man").out, re.M):
        yield from re.findall(r"\\fB(.*?)\\fR", term.replace("\\-", "-"))


def test_every_flag_stands_in_the_documents(mp):
    text = CLI.read_text() + RECIPES.read_text()
    found = set(flags(mp))
    assert {"--budget", "-i", "--no-cuda", "--why"} <= found
    assert not [flag for flag in found if not re.search(rf"`(?:[^`]* )?{re.escape(flag)}(?![\w-])", text)]


def test_every_command_stands_in_the_documents(mp):
    text = CLI.read_text()
    commands = re.findall(r"^\.SS (\w+)$", mp.ok("help", "--man").out, re.M)
    assert len(commands) >= 14
    for command in commands:
        assert f"    mergepipe {command} " in text and f"\n## {command}" in text, command
