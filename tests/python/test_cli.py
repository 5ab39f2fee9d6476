"""The command line: help, exit statuses, streams, options and their values."""

import json
import os
import pty
import subprocess

import pytest

import families
import program
import recipes

COMMANDS = ("merge", "plan", "inspect", "diff", "verify", "replay")
SUBJECTS = {"merge": ["recipe.yml", "out"], "plan": ["recipe.yml"], "inspect": ["nowhere"], "diff": ["nowhere", "nowhere"], "verify": ["nowhere"], "replay": ["nowhere", "out"]}


@pytest.mark.parametrize("ask", ("--help", "-h"))
def test_help_lists_every_command(ask, mp):
    run = mp.ok(ask)
    assert all(c in run.out for c in COMMANDS) and run.err == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_ends_with_examples_and_exit_statuses(command, mp):
    text = mp.ok(command, "--help").out
    lower = text.lower()
    assert f"mergepipe {command}" in text
    assert 0 < lower.index("examples") < lower.index("exit status")
    assert lower.index("exit status") > len(text) / 3, "they come last"
    if command in ("merge", "replay"):
        assert "130" in text[lower.index("exit status"):] and "75" in text[lower.index("exit status"):]


def test_the_version_is_told(mp):
    assert "mergepipe" in mp.ok("--version").out


@pytest.mark.parametrize("arguments", (["marge"], [], ["merge"], ["merge", "one"], ["diff", "one"], ["inspect"], ["replay", "one"], ["verify", "a", "b"], ["--nonsense"]))
def test_a_command_line_that_makes_no_sense_is_refused(arguments, mp):
    run = mp.run(*arguments)
    assert run.status == 2 and run.err.startswith("mergepipe: ") and run.out == ""


def test_an_unknown_command_or_option_is_named(mp):
    assert "marge" in mp.run("marge", "a", "b").err
    assert "--memroy" in mp.run("merge", "a", "b", "--memroy", "1GiB").err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_failure_with_json_is_one_object_on_stdout(command, mp):
    run = mp.run(command, *SUBJECTS[command], "--json")
    assert run.status == 2
    error = run.json["error"]
    assert isinstance(error["kind"], str) and isinstance(error["message"], str) and isinstance(error["faults"], list) and error["faults"]
    assert run.out.count("\n") <= 1 or json.loads(run.out)


@pytest.mark.parametrize("arguments", (["merge", "--json"], ["marge", "--json"], ["merge", "a", "b", "--memory", "x", "--json"]))
def test_a_wrong_command_line_with_json_is_one_object_too(arguments, mp):
    run = mp.run(*arguments)
    assert run.status == 2 and run.json["error"]["message"]


VALUES = {
    "--threads": ["0", "-1", "many", "1.5", "", "99999999999"],
    "--memory": ["0", "-1", "1XB", "GiB", "1 GiB x", "", "1e400GiB", "99999999999TiB", "10%%"],
    "--block-size": ["0", "3MiB", "8KiB", "1000", "x", "-16KiB"],
    "--seed": ["-1", "x", "1.5", "", "99999999999999999999999"],
    "--missing": ["maybe", ""],
}


@pytest.mark.parametrize("option, value", [(o, v) for o, values in VALUES.items() for v in values])
def test_a_bad_value_of_an_option_is_refused_by_name(option, value, mp):
    family = families.make(mp.root, experts=1)
    mp.refuse(families.smallest("ties", family), option, flags=[f"{option}={value}"])


@pytest.mark.parametrize("memory", ("64MiB", "64MB", "67108864B", "65536KiB", "0.0625GiB", "64mib", "0.001TB"))
def test_sizes_are_read_in_every_unit(memory, mp):
    family = families.make(mp.root, experts=1)
    report = mp.report(families.smallest("ties", family), "--memory", memory)
    assert report["peak_memory_bytes"] <= 10**9


def test_kb_is_1000_and_kib_1024(mp):
    """The least memory, told to the byte, is enough; a byte less is not."""
    family = families.make(mp.root, experts=1)
    recipe = mp.recipe(families.smallest("ties", family))
    least = mp.ok("plan", recipe, "--json").json["least_memory_bytes"]
    kib, kb = -(-least // 1024), -(-least // 1000)
    mp.ok("plan", recipe, "--memory", f"{kib}KiB")
    mp.ok("plan", recipe, "--memory", f"{kb}KB")
    if kb * 1024 > least > kib * 1000:
        assert mp.run("plan", recipe, "--memory", f"{kib}KB").status == 2


def test_options_may_stand_anywhere_and_take_an_equals_sign(mp):
    family = families.make(mp.root, experts=1)
    recipe = mp.recipe(families.smallest("ties", family))
    mp.ok("merge", "--threads=1", recipe, "--memory", "1GiB", mp.root / "one", "--seed=3")
    mp.ok("merge", recipe, mp.root / "two", "--seed", "3", "--threads", "1")
    assert (mp.root / "one/model.safetensors").read_bytes() == (mp.root / "two/model.safetensors").read_bytes()


def test_an_environment_variable_gives_way_to_the_flag(mp):
    """Order of authority: flag, environment, recipe, default."""
    family = families.make(mp.root)
    recipe = recipes.models("dare_linear", family.base, family.experts, {"weight": 0.5, "density": 0.5})
    flag = mp.merged(recipe, "--seed", 4)
    env = mp.merged(recipe, env={"MERGEPIPE_SEED": "4"})
    both = mp.merged(recipe, "--seed", 4, env={"MERGEPIPE_SEED": "9"})
    default = mp.merged(recipe)
    raw = [{n: t.raw for n, t in x.items()} for x in (flag, env, both, default)]
    assert raw[0] == raw[1] == raw[2] != raw[3]


def test_json_has_stdout_to_itself_and_messages_go_to_stderr(mp):
    family = families.make(mp.root)
    recipe = mp.recipe(recipes.models("task_arithmetic", family.base, family.experts, {"weight": 0.5, "density": 0.5}))
    run = mp.ok("merge", recipe, mp.root / "out", "--json")
    assert isinstance(run.json, dict) and run.json["warnings"]
    want = {"output", "method", "tensors", "io", "peak_memory_bytes", "seconds", "plan_digest", "root_digest", "warnings"}
    assert want <= run.json.keys()
    assert {"merged", "copied", "dropped"} <= run.json["tensors"].keys()
    assert {"base_read_bytes", "expert_read_bytes", "header_read_bytes", "write_bytes", "alignment_bytes"} <= run.json["io"].keys()


def test_quiet_says_nothing_but_warnings_and_errors(mp):
    family = families.make(mp.root, experts=1)
    run = mp.ok("merge", mp.recipe(families.smallest("ties", family)), mp.root / "out", "--quiet")
    assert run.out == "" and run.err == ""
    run = mp.run("merge", mp.recipe(families.smallest("ties", family)), mp.root / "out", "--quiet")
    assert run.status == 2 and run.err


def test_streams_that_are_no_terminal_get_no_control_characters(mp):
    family = families.make(mp.root)
    out = mp.root / "out"
    for arguments in (["merge", mp.recipe(families.smallest("ties", family)), out], ["verify", out], ["inspect", out], ["diff", out, family.base]):
        run = mp.ok(*arguments, env={"NO_COLOR": ""})
        assert not set("\x1b\r\b") & set(run.out + run.err)


def test_a_terminal_sees_progress_on_stderr(mp):
    """Bytes and their rate, on one line that is drawn anew; nothing of it under --quiet."""
    family = families.make(mp.root, "BF16", hidden=512, inner=2048, vocab=4096)
    recipe = mp.recipe(families.smallest("ties", family))
    shown = {}
    for flags in ((), ("--quiet",)):
        ours, theirs = pty.openpty()
        run = subprocess.run([program.BINARY, "merge", recipe, mp.fresh("out"), *flags], stdout=subprocess.PIPE, stderr=theirs, env=mp.env, timeout=60)
        os.close(theirs)
        shown[flags] = drain(ours)
        assert run.returncode == 0
    assert "\r" in shown[()] and "B/s" in shown[()]
    assert shown[("--quiet",)] == ""


def drain(terminal):
    """All that was written to a terminal whose other end is closed."""
    parts = []
    try:
        while part := os.read(terminal, 65536):
            parts.append(part)
    except OSError:  # how Linux says that the other end is gone
        pass
    os.close(terminal)
    return b"".join(parts).decode()


def test_a_full_stdout_is_an_error(mp):
    """What could not be told is not done."""
    family = families.make(mp.root)
    with open("/dev/full", "w") as full:
        run = subprocess.run([program.BINARY, "inspect", family.base, "--json"], stdout=full, stderr=subprocess.PIPE, env=mp.env, timeout=60)
    assert run.returncode == 1 and run.stderr


WITHOUT_YAML = {
    "no method": (["--base", "base", "--expert", "e0:1"], ["--method"]),
    "no expert": (["--base", "base", "--method", "ties"], ["--expert"]),
    "unknown method": (["--base", "base", "--method", "tise", "--expert", "e0:1"], ["tise", "ties"]),
    "unknown parameter": (["--base", "base", "--method", "ties", "--expert", "e0:1", "--set", "densty=0.5"], ["densty", "density"]),
    "parameter without value": (["--base", "base", "--method", "ties", "--expert", "e0:1", "--set", "density"], ["density"]),
    "parameter that is no number": (["--base", "base", "--method", "ties", "--expert", "e0:1", "--set", "density=x"], ["density"]),
    "no weight": (["--base", "base", "--method", "task_arithmetic", "--expert", "e0"], ["weight"]),
    "missing expert": (["--base", "base", "--method", "task_arithmetic", "--expert", "nowhere:1"], ["nowhere"]),
}


@pytest.mark.parametrize("fault", WITHOUT_YAML)
def test_faults_of_the_form_without_yaml_are_told(fault, mp):
    families.make(mp.root, experts=1)
    arguments, words = WITHOUT_YAML[fault]
    run = mp.run("merge", *arguments, "out")
    assert run.status == 2 and all(w in run.err for w in words), run.err
    assert not (mp.root / "out").exists()


def test_a_path_with_a_colon_or_odd_characters_is_a_path(mp):
    """A number after the last colon is the weight; anything else belongs to the path."""
    family = families.make(mp.root, experts=1)
    for name in ("a:b", "with space", "ünïcode", "per%cent", "quote's", "#hash"):
        family.experts[0] = family.experts[0].rename(mp.root / name)
        mp.ok("merge", "--base", family.base, "--method", "task_arithmetic", "--expert", f"{family.experts[0]}:0.5", mp.root / f"out {name}")
        mp.ok("verify", mp.root / f"out {name}")
        mp.ok("replay", mp.root / f"out {name}", mp.root / f"again {name}")


def test_paths_with_plus_or_at_take_the_mapping_form(mp):
    """In a recipe these characters mean adapter and revision; the mapping form takes any path."""
    family = families.make(mp.root, experts=1)
    plus = family.experts[0].rename(mp.root / "a+b@c")
    for model in ({"model": str(plus)}, {"model": {"path": str(plus)}}):
        mp.merge({"merge_method": "linear", "models": [{"model": model, "parameters": {"weight": 1}}]})
