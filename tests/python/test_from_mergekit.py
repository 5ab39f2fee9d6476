"""Coming from mergekit: its flags after `merge`, and models that lie in a Hugging Face cache."""

import json
import os

import pytest

import checkpoints
import families
import recipes

W = {"weight": 0.5}
IDLE = ("allow-crimes", "trust-remote-code", "clone-tensors", "lazy-unpickle", "low-cpu-memory", "async-write", "cuda", "read-to-gpu", "multi-gpu", "gpu-rich")
IDLE_WITH_VALUE = {"write-threads": "4", "device": "cuda:0", "lora-merge-cache": "/tmp/x", "lora-merge-dtype": "float16"}
COMMIT = {"main": "a1b2c3d4" + "0" * 32, "v2": "a1b2ffff" + "1" * 32}


@pytest.fixture
def family(tmp_path):
    made = families.make(tmp_path, "BF16", "sharded", experts=2, layers=3)
    (made.base / "tokenizer.json").write_text('{"version": "1.0"}')
    (made.base / "tokenizer_config.json").write_text("{}")
    (made.base / "generation_config.json").write_text("{}")
    return made


def linear(family, **top):
    return recipes.models("linear", None, [family.base, *family.experts], W, **top)


# --- flags


@pytest.mark.parametrize("flag", IDLE)
@pytest.mark.parametrize("form", ("--", "--no-"))
def test_a_flag_without_a_meaning_says_why(flag, form, mp, family):
    run = mp.ok("merge", mp.recipe(linear(family)), mp.fresh("out"), form + flag, "--json")
    lines = [line for line in run.err.splitlines() if f"--{flag} has no effect: " in line]
    assert len(lines) == 1 and lines[0].removeprefix("warning: ") in run.json["warnings"]


@pytest.mark.parametrize("flag", IDLE_WITH_VALUE)
def test_so_does_one_that_takes_a_value(flag, mp, family):
    run = mp.ok("merge", mp.recipe(linear(family)), mp.fresh("out"), f"--{flag}", IDLE_WITH_VALUE[flag])
    assert run.err.count(f"--{flag} has no effect: ") == 1


def test_all_that_people_type_at_once(mp, family):
    run = mp.ok("merge", mp.recipe(linear(family)), mp.fresh("out"), "--cuda", "--copy-tokenizer", "--allow-crimes", "--out-shard-size", "1B",
                "--lazy-unpickle", "--low-cpu-memory", "--safe-serialization", "--write-model-card", "-v", "-j", "1", "--random-seed", "7", "--no-quiet")
    assert run.err.count("has no effect") == 5


def test_a_remark_of_a_recipe_of_stages_is_told_once(mp, family):
    text = recipes.text(linear(family) | {"name": "one"}) + "---\n" + recipes.text(recipes.models("linear", None, ["one", family.base], W))
    assert mp.ok("merge", mp.recipe(text), mp.fresh("out"), "--cuda").err.count("--cuda has no effect") == 1


def test_the_seed_has_two_names(mp, family):
    recipe = recipes.models("dare_linear", family.base, family.experts, {"weight": 0.5, "density": 0.5})
    made = [checkpoints.digests(mp.merge(recipe, flag, "9"), ignore=("mergepipe_manifest.json",)) for flag in ("--seed", "--random-seed")]
    other = checkpoints.digests(mp.merge(recipe, "--seed", "8"))
    weights = [{k: v for k, v in m.items() if k.endswith(".safetensors")} for m in (*made, other)]
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize("flag,hint", (("--no-safe-serialization", "safetensors"), ("--unsafe-truncate-embeddings", "tokenizer_source")))
def test_what_can_not_be_done_is_refused_with_advice(flag, hint, mp, family):
    out = mp.fresh("out")
    run = mp.run("merge", mp.recipe(linear(family)), out, flag)
    assert run.status == 2 and flag in run.err and hint in run.err and not out.exists()


def test_without_the_tokenizer(mp, family):
    names = set(os.listdir(mp.merge(linear(family), "--no-copy-tokenizer")))
    assert not names & {"tokenizer.json", "tokenizer_config.json"} and {"generation_config.json", "config.json"} <= names
    assert {"tokenizer.json", "tokenizer_config.json"} <= set(os.listdir(mp.merge(linear(family), "--no-copy-tokenizer", "--copy-tokenizer")))


def test_a_chat_template_without_the_tokenizer_is_a_warning(mp, family):
    out = mp.fresh("out")
    run = mp.ok("merge", mp.recipe(linear(family, chat_template="chatml")), out, "--no-copy-tokenizer")
    assert "chat template is not written" in run.err and not (out / "chat_template.jinja").exists()


def test_without_the_card(mp, family):
    out = mp.merge(linear(family), "--no-write-model-card")
    assert not (out / "README.md").exists() and (out / "mergekit_config.yml").exists()
    mp.ok("verify", out)


# --- shards



def stored_bytes(folder):
    return sum(os.path.getsize(p) - 8 - int.from_bytes(p.read_bytes()[:8], "little") for p in folder.glob("*.safetensors"))


@pytest.mark.parametrize("size,most", (("5K", 5000), ("2KiB", 2048), ("1", 1), ("4kb", 4000)))
def test_shards_of_a_size(size, most, mp, family):
    out, whole = mp.merge(linear(family), "--out-shard-size", size), mp.merge(linear(family))
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(p.name for p in out.glob("*.safetensors"))
    n = len(files)
    assert files == [f"model-{i:05}-of-{n:05}.safetensors" for i in range(1, n + 1)] and n > 1
    held = {f: set(checkpoints.read_file(out / f)) for f in files}
    assert index["weight_map"] == {name: f for f in files for name in held[f]}
    assert index["metadata"]["total_size"] == stored_bytes(out) == stored_bytes(whole)
    for f in files:
        assert len(held[f]) == 1 or stored_bytes_of(out / f) <= most
    a, b = checkpoints.read_checkpoint(out), checkpoints.read_checkpoint(whole)
    assert a.keys() == b.keys() and all(checkpoints.same_bits(a[k], b[k]) for k in a)


def stored_bytes_of(path):
    return os.path.getsize(path) - 8 - int.from_bytes(path.read_bytes()[:8], "little")


@pytest.mark.parametrize("size", ("5B", "0", "-1", "1GiB"))
def test_what_fits_into_one_file_has_no_index(size, mp, family):
    out = mp.merge(linear(family), "--out-shard-size", size)
    assert [p.name for p in out.glob("*.safetensors*")] == ["model.safetensors"]


@pytest.mark.parametrize("size", ("1.5B", "5G", "B", "x", "99999999999B", "5BB", ""))
def test_a_size_that_is_none_is_refused(size, mp, family):
    run = mp.run("merge", mp.recipe(linear(family)), mp.fresh("out"), "--out-shard-size", size)
    assert run.status == 2 and "out-shard-size" in run.err


def test_the_form_of_the_output_is_replayed(mp, family):
    flags = ("--out-shard-size", "3K", "--no-copy-tokenizer", "--no-write-model-card")
    out, again, run, plan = mp.merge(linear(family), *flags), mp.fresh("again"), mp.fresh("run"), mp.fresh("plan", ".json")
    mp.ok("replay", out, again)
    mp.ok("plan", mp.recipe(linear(family)), *flags, "-o", plan)
    mp.ok("run", plan, run)
    made = [checkpoints.digests(x, ignore=("mergepipe_manifest.json", "mergekit_config.yml")) for x in (out, again, run)]
    assert made[0] == made[1] == made[2] and "README.md" not in made[0]


# --- the Hugging Face cache


def download(hub, name, tensors, ref="main", layout="sharded"):
    """A model as hf download leaves it: blobs, and links to them for each revision."""
    commit, root = COMMIT[ref], hub / ("models--" + name.replace("/", "--"))
    plain = checkpoints.save(hub / "plain", tensors, layout)
    (root / "blobs").mkdir(parents=True, exist_ok=True)
    (root / "refs").mkdir(exist_ok=True)
    snapshot = root / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file in sorted(plain.iterdir()):
        blob = f"{ref}-{file.name}"
        file.rename(root / "blobs" / blob)
        (snapshot / file.name).symlink_to(f"../../blobs/{blob}")
    (root / "refs" / ref).write_text(commit)
    plain.rmdir()
    return snapshot


@pytest.fixture
def hub(tmp_path):
    """A cache with org/base and org/tuned, the latter in two revisions."""
    folder = tmp_path / "hub"
    folder.mkdir()
    base = checkpoints.llama(1, "BF16", layers=3)
    download(folder, "org/base", base)
    download(folder, "org/tuned", checkpoints.fine_tune(base, 2))
    download(folder, "org/tuned", checkpoints.fine_tune(base, 3), "v2")
    return folder


def tuned(revision=""):
    return recipes.models("task_arithmetic", "org/base", ["org/tuned" + revision], W)


PLACES = {
    "HF_HUB_CACHE": lambda hub: {"HF_HUB_CACHE": str(hub)},
    "HF_HOME": lambda hub: {"HF_HOME": str(hub.parent)},
    "a tilde": lambda hub: {"HF_HUB_CACHE": "~/hub", "HOME": str(hub.parent)},
    "a variable": lambda hub: {"HF_HUB_CACHE": "${SCRATCH}/hub", "SCRATCH": str(hub.parent)},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_model_is_found_in_the_cache(place, mp, hub):
    env = PLACES[place](hub)
    out = mp.merge(tuned(), env=env)
    assert [m["name"] for m in json.loads((out / "mergepipe_manifest.json").read_text())["envelope"]["models"]] == ["org/base", "org/tuned"]
    assert "org/tuned" in (out / "mergekit_config.yml").read_text()
    card = (out / "README.md").read_text()
    assert card.startswith('---\nbase_model:\n- "org/base"\n- "org/tuned"\n')
    assert str(hub) not in card
    assert not any(p.is_symlink() for p in out.rglob("*"))
    mp.ok("verify", out)
    mp.ok("replay", out, mp.fresh("again"))


@pytest.mark.parametrize("xdg,rest", (("XDG_CACHE_HOME", "huggingface/hub"), ("HOME", ".cache/huggingface/hub")))
def test_it_is_found_where_nothing_is_set(xdg, rest, mp, hub):
    usual = hub.parent / "place" / rest
    usual.parent.mkdir(parents=True)
    hub.rename(usual)
    mp.ok("plan", mp.recipe(tuned()), env={xdg: str(hub.parent / "place")})


def test_another_cache_is_looked_in_first(mp, hub):
    mp.ok("merge", mp.recipe(tuned()), mp.fresh("out"), "--transformers-cache", hub)


@pytest.mark.parametrize("revision,ref", (("", "main"), ("@main", "main"), ("@v2", "v2"), ("@" + COMMIT["v2"], "v2"), ("@" + COMMIT["v2"][:8], "v2")))
def test_a_revision_is_a_branch_a_tag_or_a_commit(revision, ref, mp, hub):
    report = mp.ok("plan", mp.recipe(tuned(revision)), "--transformers-cache", hub, "-o", mp.root / "plan.json")
    assert COMMIT[ref] in (mp.root / "plan.json").read_text() and "means nothing" not in report.err


@pytest.mark.parametrize("form", (
    {"model": "org/tuned"}, {"model": {"path": "org/tuned"}}, {"model": {"path": "org/tuned", "revision": "v2"}},
    {"model": "org/tuned", "lora": None, "override_architecture": None}, {"model": {"path": "org/tuned", "revision": None}},
))
def test_every_form_of_a_reference(form, mp, hub):
    recipe = tuned() | {"base_model": {"model": {"path": "org/base", "revision": "main"}}, "models": [{"model": form, "parameters": W}]}
    mp.ok("merge", mp.recipe(recipe), mp.fresh("out"), "--transformers-cache", hub)


@pytest.mark.parametrize("form", ("org/tuned+org/adapter", "gone/model+adapter@v1", {"model": "org/tuned", "lora": "org/adapter"}, {"model": "org/tuned", "lora": {"path": "org/adapter", "revision": "x"}}))
def test_adapters_are_refused_by_name(form, mp, hub):
    run = mp.run("merge", mp.recipe(tuned() | {"models": [{"model": form, "parameters": W}]}), mp.fresh("out"), "--transformers-cache", hub, "--json")
    assert run.status == 2 and run.json["error"]["kind"] == "unsupported"
    assert "adapter" in run.err and "adapters are not supported yet" in run.err


@pytest.mark.parametrize("text", ("a+b+c", "a@b@c", "a+b@c@d"))
def test_a_reference_that_means_nothing_is_refused(text, mp, hub):
    run = mp.run("plan", mp.recipe(recipes.models("linear", None, [text], W)))
    assert run.status == 2 and text in run.err and "no model reference" in run.err


def test_a_local_path_comes_first(mp, hub):
    checkpoints.save(mp.root / "org/tuned", checkpoints.fine_tune(checkpoints.llama(1, "BF16", layers=3), 5))
    out = mp.merge(tuned(), "--transformers-cache", hub)
    assert '- "org/base"\nlibrary' in (out / "README.md").read_text()


def fault(mp, hub, recipe):
    run = mp.run("merge", mp.recipe(recipe), mp.fresh("out"), env={"HF_HUB_CACHE": str(hub)})
    assert run.status == 2
    return run.err


@pytest.mark.parametrize("revision,command", (("", "hf download org/gone\n"), ("@v9", "hf download org/gone --revision v9\n")))
def test_a_model_that_is_not_there_names_the_command_and_the_folders(revision, command, mp, hub):
    text = fault(mp, hub, recipes.models("task_arithmetic", "org/base", ["org/gone" + revision], W))
    assert command in text and str(hub) in text


def test_a_revision_that_is_not_there_names_the_others(mp, hub):
    text = fault(mp, hub, tuned("@v3"))
    assert "hf download org/tuned --revision v3" in text and "main" in text and "v2" in text


def test_digits_that_begin_two_commits_are_too_few(mp, hub):
    assert "begins several commits" in fault(mp, hub, tuned("@a1b2"))


@pytest.mark.parametrize("damage", ("a shard", "the link to one", "everything but the config", "a shard without an index"))
def test_a_download_that_did_not_finish_is_told(damage, mp, hub):
    root = hub / "models--org--tuned"
    snapshot = root / "snapshots" / COMMIT["main"]
    victim = sorted(snapshot.glob("*.safetensors"))[-1]
    wanted = victim.name
    if damage == "a shard":
        victim.resolve().rename(root / "blobs" / "x.incomplete")
    elif damage == "the link to one":
        victim.unlink()
    elif damage == "everything but the config":
        [p.unlink() for p in snapshot.iterdir() if p.name != "config.json"]
        wanted = "*.safetensors"
    else:
        (snapshot / "model.safetensors.index.json").unlink()
        victim.unlink()
    text = fault(mp, hub, tuned())
    assert "is not complete" in text and wanted in text and "hf download org/tuned" in text and str(snapshot) in text
    assert ("did not finish" in text) == (damage == "a shard")


@pytest.mark.parametrize("command", (["inspect", "org/tuned@v2"], ["diff", "org/base", "org/tuned"], ["analyze", "org/base", "org/tuned@v2"]))
def test_other_commands_find_models_there_too(command, mp, hub):
    mp.ok(*command, env={"HF_HUB_CACHE": str(hub)})
    run = mp.run(*[w.replace("org/tuned", "org/gone") for w in command], env={"HF_HUB_CACHE": str(hub)})
    assert run.status == 2 and "hf download org/gone" in run.err and str(hub) in run.err


def test_the_cache_is_only_read(mp, hub):
    before = checkpoints.digests(hub)
    mp.merge(tuned(), "--transformers-cache", hub)
    assert checkpoints.digests(hub) == before
