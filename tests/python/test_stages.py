"""Recipes of several stages: one file, one graph, each stage a merge of its own."""

import json
import os
import shutil
import signal
import time

import numpy as np
import pytest

import checkpoints
import families
import oracle
import recipes
from checkpoints import Tensor, digests
from recipes import models, source

W = {"weight": 0.5}
MANIFEST = "mergepipe_manifest.json"


def stream(*stages):
    """A YAML stream of recipes; a pair is a name and a recipe."""
    named = [s if isinstance(s, dict) else {"name": s[0]} | s[1] for s in stages]
    return "---\n".join(recipes.text(s) for s in named)


def task(base, *experts, **top):
    return models("task_arithmetic", base, experts, W, **top)


CHAINS = {
    "one uses another": [("x", task("base", "e0")), task("x", "e1")],
    "three in a row": [("x", task("base", "e0")), ("y", models("linear", None, ["x", "e1"], W)), models("slerp", "x", ["y"], parameters={"t": [0, 1]})],
    "a diamond": [("l", task("base", "e0")), ("r", task("base", "e1")), models("ties", "base", ["l", "r"], {"weight": 0.5, "density": 0.5})],
    "in any order of the file": [("z", task("y", "e2")), ("y", task("x", "e1")), ("x", task("base", "e0"))],
    "a stack of a stage": [("x", task("base", "e0")), recipes.sliced("passthrough", [[source("x", 0, 2)], [source("x", 1, 2)]])],
    "a merge of stacks": [
        ("deep", recipes.sliced("passthrough", [[source("base", 0, 2)], [source("base", 0, 2)]])),
        ("deeper", recipes.sliced("passthrough", [[source("e0", 0, 2)], [source("e1", 0, 2)]])),
        models("linear", None, ["deep", "deeper"], W)],
    "other types on the way": [("x", task("base", "e0", out_dtype="float16")), task("x", "e1", out_dtype="float32")],
    "one that nothing uses": [("x", task("base", "e0")), ("aside", task("base", "e2")), task("x", "e1")],
}


def result_of(chain):
    """Name and position of the result."""
    unnamed = [i for i, s in enumerate(chain) if isinstance(s, dict)]
    if unnamed:
        return None, unnamed[0]
    used = {m["model"] for _, r in chain for m in r["models"]} | {r["base_model"] for _, r in chain}
    return next((n, i) for i, (n, _) in enumerate(chain) if n not in used)


@pytest.fixture
def family(mp):
    return families.make(mp.root)


@pytest.fixture
def write(mp):
    def make(*stages):
        return mp.recipe(stream(*stages))

    return make


def by_hand(mp, chain):
    """The stages of a chain merged one after the other, each as a recipe of its own; yields the result."""
    waiting = [(s[0], dict(s[1])) if not isinstance(s, dict) else ("result", dict(s)) for s in chain]
    made = {}
    while waiting:
        for name, recipe in waiting:
            text = json.dumps(recipe)
            if not any(f'"{other}"' in text for other, _ in waiting if other != name):
                break
        waiting.remove((name, recipe))
        for other, place in made.items():
            text = text.replace(f'"{other}"', f'"{place}"')
        made[name] = mp.merge(text, cwd=mp.root)
    return made[result_of(chain)[0] or "result"]


def weights(out):
    return digests(out, ignore=(MANIFEST, "README.md", "mergekit_config.yml"))


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_gives_what_its_stages_give_one_by_one(name, mp, family, write):
    out = mp.fresh("out")
    report = mp.ok("merge", write(*CHAINS[name]), out, "--json", cwd=mp.root).json
    assert weights(out) == weights(by_hand(mp, CHAINS[name]))
    assert len(report["stages"]) == len(CHAINS[name]) and not any(s["reused"] for s in report["stages"])
    assert report["stages"][-1]["output"] == report["output"] == str(out)
    assert report["root_digest"] == json.loads((out / MANIFEST).read_text())["root_digest"]
    for path in (out, *(out.parent / f"{out.name}.stages").iterdir()):
        mp.ok("verify", path)
        again = mp.fresh("again")
        mp.ok("replay", path, again, cwd="/")
        assert weights(again) == weights(path)


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_gives_what_mergekit_multi_gives(name, mp, family, write, monkeypatch):
    from click.testing import CliRunner
    from mergekit.io.tasks import LoaderCache
    from mergekit.scripts.multimerge import main

    chain = [s | {"dtype": "float32"} | ({"out_dtype": s["out_dtype"]} if "out_dtype" in s else {}) if isinstance(s, dict)
             else (s[0], s[1] | {"dtype": "float32"}) for s in CHAINS[name]]
    recipe, ours, theirs = write(*chain), mp.fresh("out"), mp.fresh("theirs")
    monkeypatch.chdir(mp.root)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    LoaderCache().loaders.clear()
    flags = ["--no-copy-tokenizer", "--no-write-model-card", "--quiet"]
    run = CliRunner().invoke(main, [str(recipe), "-I", str(theirs), "--out-path", str(theirs / "result"), *flags], catch_exceptions=False)
    assert run.exit_code == 0
    mp.ok("merge", recipe, ours, "-I", mp.root / "mine", cwd=mp.root)
    last, _ = result_of(chain)
    for a, b in ((ours, theirs / (last or "result")), *((mp.root / "mine" / s[0], theirs / s[0]) for s in chain if not isinstance(s, dict) and s[0] != last)):
        want = checkpoints.read_checkpoint(b)
        assert oracle.faults(checkpoints.read_checkpoint(a), {n: oracle.Merged(t.dtype, t.values()) for n, t in want.items()}) == []


# --- what is used again ----------------------------------------------------------------------------------------------


def reused(mp, recipe, out, *flags):
    """The names of the stages that were used again."""
    report = mp.ok("merge", recipe, out, "--json", *flags, cwd=mp.root).json
    return {s["stage"] for s in report["stages"] if s["reused"]}


CHAIN = [("x", task("base", "e0")), ("y", task("x", "e1")), task("y", "e2")]


def test_what_nothing_changed_for_is_used_again(mp, family, write):
    recipe, out = write(*CHAIN), mp.root / "out"
    assert reused(mp, recipe, out) == set()
    before = digests(mp.root)
    assert reused(mp, recipe, out) == {"x", "y", None}
    assert digests(mp.root) == before


def test_only_what_a_change_reaches_is_done_again(mp, family, write):
    recipe, out = write(*CHAIN), mp.root / "out"
    reused(mp, recipe, out)
    other = write(CHAIN[0], ("y", task("x", "e1", parameters={"lambda": 0.7})), CHAIN[2])
    assert mp.run("merge", other, out, cwd=mp.root).status == 2  # the result would be replaced
    assert reused(mp, other, out, "--force") == {"x"}
    fresh = mp.fresh("out")
    mp.ok("merge", other, fresh, cwd=mp.root)
    assert weights(out) == weights(fresh)


@pytest.mark.parametrize("what", ("values", "config"))
def test_an_input_that_changed_is_seen_although_its_header_did_not(what, mp, family, write):
    recipe, out = write(*CHAIN), mp.root / "out"
    reused(mp, recipe, out)
    if what == "values":
        checkpoints.save(family.experts[1], checkpoints.fine_tune(checkpoints.read_checkpoint(family.base), 77))
    else:
        config = family.base / "config.json"
        config.write_text(config.read_text().replace('"llama"', '"lllama"'))
    assert reused(mp, recipe, out, "--force") == ({"x"} if what == "values" else set())
    fresh = mp.fresh("out")
    mp.ok("merge", recipe, fresh, cwd=mp.root)
    assert weights(out) == weights(fresh)


@pytest.mark.parametrize("damage", ("a bit", "a missing file", "an edited config", "no manifest"))
def test_a_stage_that_was_touched_is_made_anew(damage, mp, family, write):
    recipe, out = write(*CHAIN), mp.root / "out"
    reused(mp, recipe, out)
    stage = mp.root / "out.stages/y"
    good = weights(stage)
    if damage == "a bit":
        data = bytearray((stage / "model.safetensors").read_bytes())
        data[-1] ^= 1
        (stage / "model.safetensors").write_bytes(data)
    elif damage == "a missing file":
        (stage / "model.safetensors").unlink()
    elif damage == "an edited config":
        (stage / "config.json").write_text("{}")
    else:
        shutil.rmtree(stage)
    assert reused(mp, recipe, out, "--force") == {"x"}
    assert weights(stage) == good


@pytest.mark.parametrize("flags", (("--budget", "50%"), ("--budget", "90KB"), ("--seed", "5"), ("--block-size", "16KiB"), ("--allow-nonfinite",), ("--no-lazy",)))
def test_other_choices_are_other_stages(flags, mp, family, write):
    recipe, out = write(*CHAIN), mp.root / "out"
    reused(mp, recipe, out)
    assert reused(mp, recipe, out, "--force", *flags) == set()
    if flags != ("--no-lazy",):
        assert reused(mp, recipe, out, *flags) == {"x", "y", None}
    assert reused(mp, recipe, out, "--force", *flags, "--no-lazy") == set()


def test_a_moved_folder_of_stages_is_used_again(mp, family, write):
    recipe = write(*CHAIN)
    reused(mp, recipe, mp.root / "out", "-I", "here")
    (mp.root / "here").rename(mp.root / "there")
    assert reused(mp, recipe, mp.root / "out2", "-I", "there") == {"x", "y"}


def test_a_folder_that_is_no_stage_is_not_replaced_unasked(mp, family, write):
    other = mp.root / "out.stages/x"
    checkpoints.save(other, checkpoints.llama(3))
    before = digests(other)
    run = mp.run("merge", write(*CHAIN), mp.root / "out", cwd=mp.root)
    assert run.status == 2 and "stage 'x'" in run.err and str(other) in run.err and "--force" in run.err
    assert digests(other) == before and not (mp.root / "out").exists()


# --- all faults at once, before any data -----------------------------------------------------------------------------


def refuse(mp, recipe, *words, flags=(), status=2):
    before = digests(mp.root, ignore=("cache",))
    run = mp.run("merge", recipe, mp.root / "out", *flags, cwd=mp.root)
    assert run.status == status, run.err
    assert [w for w in words if w not in run.err] == [], run.err
    assert digests(mp.root, ignore=("cache",)) == before
    return run


def test_faults_of_all_stages_are_told_together(mp, family, write):
    checkpoints.save(mp.root / "wide", checkpoints.llama(5, hidden=32))
    refuse(mp, write(
        ("x", task("base", "e0")),
        ("deep", recipes.sliced("passthrough", [[source("x", 0, 2)], [source("x", 0, 2)]])),
        ("a", recipes.sliced("passthrough", [[source("deep", 0, 5)]])),  # it will have 4 layers
        ("b", task("x", "wide")),
        ("c", models("ties", "x", ["nowhere"], {"weight": 1, "densty": 1})),
        ("d", models("linear", None, ["deep", "x"], W)),
        task("a", "b"),
    ), "stage 'a'", "[0, 5)", "[0, 4)", "stage 'b'", "shape", "wide", "stage 'c'", "nowhere", "densty", "stage 'd'", "layers.2.",
        "'a' has faults itself", "'b' has faults itself")


def test_the_seventh_input_is_looked_at_before_the_first_stage(mp, family, write):
    """Field report: six stages were done when the last input proved to be incomplete."""
    inputs = []
    for i in range(7):
        inputs.append(checkpoints.save(mp.root / f"m{i}", checkpoints.fine_tune(checkpoints.read_checkpoint(family.base), i)))
    stages = [(f"s{i}", task(f"s{i - 1}" if i else "base", f"m{i}")) for i in range(7)]
    file = inputs[6] / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    refuse(mp, write(*stages), "m6/model.safetensors", "s6")


GRAPHS = {
    "two without a name": ([task("base", "e0"), task("base", "e1")], ["name", "line 1"]),
    "a name twice": ([("x", task("base", "e0")), ("x", task("base", "e1")), task("x", "e2")], ["'x'", "line 1"]),
    "a circle": ([("x", task("y", "e0")), ("y", task("x", "e1"))], ["circle", "'x' needs 'y' needs 'x'"]),
    "itself": ([("x", task("x", "e0")), task("base", "e1")], ["circle", "'x' needs 'x'", "./x"]),
    "a name that is a path": ([("a/b", task("base", "e0")), task("base", "e1")], ["'a/b'", "folder"]),
    "a name that is above": ([("..", task("base", "e0")), task("base", "e1")], ["'..'"]),
    "a name that no reference can hold": ([("a+b", task("base", "e0")), task("base", "e1")], ["'a+b'"]),
    "a circle behind a sound part": ([("s", task("base", "e0")), ("x", task("y", "e0")), ("y", task("x", "s")), task("s", "y")], ["circle"]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_that_is_none_is_refused(name, mp, family, write):
    stages, words = GRAPHS[name]
    refuse(mp, write(*stages), *words)


def test_lines_and_columns_are_those_of_the_file(mp, family):
    text = "# all\n---\nname: x\nmerge_method: linear\nmodels:\n- {model: e0, parameters: {weight: 1}}\n--- # next\nmerge_method: linear\nmodels:\n- {modl: x}\n"
    refuse(mp, mp.recipe(text), ":10:4:", "'modl'")
    refuse(mp, mp.recipe(text.replace("modl: x", "model: x, parameters: {wight: 1}")), ":10:27:", "'wight'")
    refuse(mp, mp.recipe(text.replace("- {modl: x}", "- [")), ":11:")


def test_an_output_inside_the_graph_is_refused(mp, family, write):
    for flags in (("-I", "base"), ("-I", "out"), ("-I", "e2/deep")):
        refuse(mp, write(*CHAIN), flags[1].split("/")[0], flags=flags)
    refuse(mp, write(("out", task("base", "e0")), task("out", "e1")), "out", flags=("-I", "."))


def test_the_disk_must_hold_all_stages_together(mp, tmpfs, write):
    families.make(mp.root, hidden=128, vocab=4000)  # 4.5 MB each, and 4 MiB are kept free
    small = tmpfs("small", "size=16m")
    assert mp.run("merge", write(*CHAIN), small / "out", cwd=mp.root).status == 2
    assert os.listdir(small) == []
    mp.ok("merge", write(CHAIN[0], task("x", "e1")), small / "out", cwd=mp.root)


# --- documents -------------------------------------------------------------------------------------------------------


def test_comments_and_empty_documents_are_no_stages(mp, family):
    text = recipes.text(task("base", "e0"))
    for around in (f"# mine\n---\n{text}", f"{text}---\n# nothing\n", f"%YAML 1.1\n---\n{text}...\n", f"---\n---\n{text}---\n"):
        out = mp.merge(around, cwd=mp.root)
        assert (out / "mergekit_config.yml").read_text() == around
        assert not (out.parent / f"{out.name}.stages").exists()


def test_documents_may_begin_behind_their_mark(mp, family):
    text = "--- {name: x, merge_method: linear, models: [{model: e0, parameters: {weight: 1}}]}\n--- {merge_method: linear, models: [{model: x, parameters: {weight: 1}}]}\n"
    out = mp.merge(text, cwd=mp.root)
    got, want = checkpoints.read_checkpoint(out), checkpoints.read_checkpoint(family.experts[0])
    assert set(got) == set(want) and all(checkpoints.same_bits(got[n], want[n]) for n in got)


def test_text_that_looks_like_a_mark_is_none(mp, family):
    """Only at the start of a line, and followed by a space or nothing."""
    text = "merge_method: linear\nmodels:\n- {model: e0, parameters: {weight: 1}}\n- {model: ---x, parameters: {weight: 1}}\n"
    checkpoints.save(mp.root / "---x", checkpoints.read_checkpoint(family.base))
    mp.merge(text, cwd=mp.root)
    mp.merge("merge_method: linear # ---\nmodels: [\n {model: e0, parameters: {weight: 1}},\n  ---x\n]\n".replace("---x", "{model: ---x, parameters: {weight: 1}}"), cwd=mp.root)


def test_only_models_are_replaced_by_stages(mp, family, write):
    """mergekit-multi replaces every string: stages named like a method or a type break there."""
    out = mp.fresh("out")
    mp.ok("merge", write(("linear", task("base", "e0")), ("float16", models("linear", None, ["linear", "e1"], W, out_dtype="float16")),
                         models("linear", None, ["float16", {"model": "linear"}][:1], W, out_dtype="float32")), out, cwd=mp.root)
    assert {t.dtype for t in checkpoints.read_checkpoint(out).values()} == {"F32"}


def test_a_stage_comes_before_a_folder_of_its_name(mp, family, write):
    checkpoints.save(mp.root / "x", checkpoints.llama(9))
    out, plain = mp.fresh("out"), mp.fresh("out")
    mp.ok("merge", write(CHAIN[0], task("x", "e1")), out, cwd=mp.root)
    mp.ok("merge", write(("other", CHAIN[0][1]), task("other", "e1")), plain, cwd=mp.root)
    assert weights(out) == weights(plain)


def test_a_model_reference_with_a_revision_is_a_stage_too(mp, family, write):
    out = mp.fresh("out")
    mp.ok("merge", write(CHAIN[0], models("linear", None, ["x@main"], W), ), out, cwd=mp.root)
    assert weights(out) == weights(mp.root / f"{out.name}.stages/x")


def test_mergekit_multis_spelling_of_the_command(mp, family, write):
    mp.ok("merge", write(*CHAIN), "-I", "mid", "--out-path", "out", "--lazy", cwd=mp.root)
    assert {p.name for p in (mp.root / "mid").iterdir()} == {"x", "y"} and (mp.root / "out").is_dir()
    mp.ok("merge", write(*CHAIN[:2]), "-I", "mid2", cwd=mp.root)
    assert {p.name for p in (mp.root / "mid2").iterdir()} == {"x", "y"}
    run = mp.run("merge", write(*CHAIN), "-I", "mid3", cwd=mp.root)
    assert run.status == 2 and "OUT is missing" in run.err and not (mp.root / "mid3").exists()


def test_other_commands_say_that_they_take_one_recipe(mp, family, write):
    for command in (("sweep",), ("plan", "-o", "p.json")):
        run = mp.run(command[0], write(*CHAIN), *command[1:], cwd=mp.root)
        assert run.status == 2, run.err
    assert "max-deviation" in mp.run("plan", write(*CHAIN), "--max-deviation", "0.1", cwd=mp.root).err


# --- plans and budgets -----------------------------------------------------------------------------------------------


def test_a_plan_tells_every_stage_and_makes_nothing(mp, family, write):
    recipe, before = write(*CHAIN), digests(mp.root)
    report = mp.ok("plan", recipe, "out", "--json", cwd=mp.root).json
    assert digests(mp.root, ignore=("cache",)) == before | {recipe.name: digests(mp.root)[recipe.name]}
    merged = mp.ok("merge", recipe, "out", "--json", cwd=mp.root).json
    assert [s["stage"] for s in report["stages"]] == [s["stage"] for s in merged["stages"]] == ["x", "y", None]
    assert [s["plan_digest"] for s in report["stages"]] == [s["plan_digest"] for s in merged["stages"]]
    assert [s["reused"] for s in mp.ok("plan", recipe, "out", "--json", cwd=mp.root).json["stages"]] == [True] * 3
    text = mp.ok("plan", recipe, cwd=mp.root).out
    assert all(w in text for w in ("stage 'x'", "stage 'y'", "the result", "memory"))


def read_bytes(report):
    return [s["io"]["expert_read_bytes"] for s in report["stages"]]


def test_a_share_is_one_of_each_stage_and_a_size_is_for_all_together(mp, write):
    families.make(mp.root, hidden=64, vocab=2000)
    full = read_bytes(mp.ok("merge", write(*CHAIN), "full", "--json", cwd=mp.root).json)
    share = read_bytes(mp.ok("merge", write(*CHAIN), "share", "--json", "--budget", "40%", "--block-size", "16KiB", cwd=mp.root).json)
    assert all(0 < b <= 0.4 * f for b, f in zip(share, full))
    limit = sum(full) // 3
    size = read_bytes(mp.ok("merge", write(*CHAIN), "size", "--json", "--budget", str(limit), "--block-size", "16KiB", cwd=mp.root).json)
    assert sum(size) <= limit and all(b > 0 for b in size)
    plenty = mp.ok("merge", write(*CHAIN), "plenty", "--json", "--budget", str(sum(full)), cwd=mp.root).json
    assert read_bytes(plenty) == full and weights(mp.root / "plenty") == weights(mp.root / "full")


def test_a_recipes_own_budget_is_its_own(mp, write):
    families.make(mp.root, hidden=64, vocab=2000)
    recipe = write(("x", task("base", "e0", budget="30%")), task("x", "e1"))
    x, result = mp.ok("merge", recipe, "out", "--json", "--block-size", "16KiB", cwd=mp.root).json["stages"]
    assert x["io"]["expert_read_bytes"] <= 0.3 * x["full_expert_bytes"]
    assert result["io"]["expert_read_bytes"] == result["full_expert_bytes"]


def test_a_budget_that_one_stage_can_not_keep_is_told_before_the_first(mp, family, write):
    """The base has no layers 2 and 3 that could stand in for those of the stage."""
    refuse(mp, write(("deep", recipes.sliced("passthrough", [[source("e0", 0, 2)], [source("e1", 0, 2)]])),
                     recipes.sliced("passthrough", [[source("base", 0, 2)], [source("deep", 2, 4)]])), "the result", "budget", flags=("--budget", "1%"))


def test_the_same_bytes_for_any_number_of_threads(mp, family, write):
    outs = [mp.fresh("out") for _ in range(3)]
    for out, flags in zip(outs, (("--threads", "1"), ("--threads", "7"), ("--memory", "2MiB"))):
        mp.ok("merge", write(*CHAINS["a diamond"]), out, *flags, cwd=mp.root)
    assert len({json.dumps(weights(o)) for o in outs}) == 1


# --- interruption ----------------------------------------------------------------------------------------------------


def large(seed):
    random = np.random.default_rng(seed)
    bits = lambda shape: random.integers(0, 1 << 16, shape, np.uint16) & np.uint16(0x807F) | np.uint16(0x3D00)
    return {n: Tensor("BF16", bits(s)) for n, s in checkpoints.llama_shapes(layers=3, hidden=512, inner=1536, vocab=4096).items()}


@pytest.mark.parametrize("number, status", ((signal.SIGINT, 130), (signal.SIGKILL, 137)))
@pytest.mark.parametrize("flags", ((), ("--resume",)))
def test_an_interrupted_chain_goes_on_where_it_was(flags, number, status, mp, write):
    families.write(mp.root, large(0), [large(1), large(2), large(3)])
    each = {"weight": 0.5, "density": 0.5}
    recipe = write(("x", models("dare_ties", "base", ["e0"], each)), ("y", models("dare_ties", "x", ["e1"], each)), models("dare_ties", "y", ["e2"], each))
    with mp.start("merge", recipe, "out", "--threads", "1", cwd=mp.root, env={"MERGEPIPE_TARGET": "scalar"}) as process:
        end = time.monotonic() + 60
        while not (mp.root / "out.stages/x").exists():
            assert process.poll() is None and time.monotonic() < end
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode in (status, -number) and not (mp.root / "out").exists()
    assert "x" in reused(mp, recipe, mp.root / "out", *flags)
    fresh = mp.fresh("out")
    mp.ok("merge", recipe, fresh, cwd=mp.root)
    assert weights(mp.root / "out") == weights(fresh)
    assert not [p for p in mp.root.rglob(".*staging*")]


def test_a_vocabulary_that_a_stage_makes_is_the_next_ones(mp, write):
    """Tokens, rows and templates of a result are known before it is made; the chain gives what single merges give."""
    import vocabularies
    from vocabularies import BASE, CHAT

    vocabularies.model(mp.root / "base", BASE, 1)
    vocabularies.model(mp.root / "chat", BASE + CHAT, 2)
    vocabularies.model(mp.root / "more", BASE + ["extra"], 3)
    chain = [("x", models("linear", "base", ["base", "chat"], W, tokenizer={"source": "union"}, chat_template="chatml")),
             models("linear", "x", ["x", "more"], W, tokenizer={"source": "union"}, chat_template="auto")]
    out = mp.fresh("out")
    mp.ok("merge", write(*chain), out, cwd=mp.root)
    assert weights(out) == weights(by_hand(mp, chain))
    assert set(vocabularies.vocabulary(out)) == {*BASE, *CHAT, "extra"}
    assert "im_start" in (out / "chat_template.jinja").read_text()


def test_a_tokenizer_that_changed_is_felt(mp, write):
    """The second model's: it has a say in the vocabulary, though its files are not copied."""
    import vocabularies
    from vocabularies import BASE, CHAT

    vocabularies.model(mp.root / "base", BASE, 1)
    vocabularies.model(mp.root / "chat", BASE + CHAT, 2)
    recipe = write(("x", models("linear", "base", ["base", "chat"], W, tokenizer={"source": "union"})), models("linear", None, ["x"], W))
    reused(mp, recipe, mp.root / "out")
    assert reused(mp, recipe, mp.root / "out") == {"x", None}
    vocabularies.write_tokenizer(mp.root / "chat", [*BASE, *reversed(CHAT)])
    assert reused(mp, recipe, mp.root / "out", "--force") == set()
