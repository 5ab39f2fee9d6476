"""explain: what it tells is what the plan's own numbers add up to, and what the merge then does."""

import hashlib
import json
import re
import struct

import pytest

import budgets
import families

COLUMNS = ("available_bytes", "read_bytes", "lossless_skipped_bytes", "shared_bytes", "left_out_bytes")


def saved(mp, family, method, *flags):
    """A saved plan: its file and its JSON."""
    path = mp.fresh("plan", ".json")
    mp.ok("plan", mp.recipe(families.smallest(method, family)), "-o", path, *budgets.BLOCKS, *flags)
    return path, json.loads(path.read_text())


def explain(mp, place, *flags):
    return mp.ok("explain", place, "--json", *flags).json


def states(row):
    """The states of all blocks of a mask's row."""
    return [state for count, state in zip(row[::2], row[1::2]) for _ in range(count)]


def sizes(tensor, available):
    """Bytes of all blocks of one source."""
    whole, step = tensor["elements"], tensor["block_elements"]
    return [(min(i + step, whole) - i) * available // whole for i in range(0, whole, step)]


def account(tensor, source):
    """What becomes of one source of one tensor: bytes by column, blocks by state, error, energy."""
    available, read, lossless, error, energy = tensor["reads"][source]
    blocks = sizes(tensor, available) if available else []
    own = source + 1
    row = states(tensor["mask"]["rows"][source - 1]) if "mask" in tensor and source else [own] * len(blocks)
    assert not available or len(row) == len(blocks)
    split = lambda fits: sum(size for size, state in zip(blocks, row) if fits(state))
    assert split(lambda state: state == own) == read
    shared = split(lambda state: state not in (0, own))
    return dict(zip(COLUMNS, (available, read, lossless, shared, split(lambda state: state == 0) - lossless))) | {
        "row": row if available else [], "error": error, "energy": energy,
    }


def accounts(plan):
    """(tensor, model's name, account) of every source."""
    names = [m["name"] for m in plan["models"]]
    return [(t["name"], names[m], account(t, s)) for t in plan["tensors"] for s, m in enumerate(t["models"])]


def check_rows(rows, key, of, accounts):
    """Every row is the sum of its accounts, and no account is in no row."""
    whole = sum(a["error"] for _, _, a in accounts)
    left = {column: sum(a[column] for _, _, a in accounts) for column in COLUMNS}
    for row in rows:
        mine = [a for t, m, a in accounts if of(t, m) == key(row)]
        for column in COLUMNS:
            assert row[column] == sum(a[column] for a in mine), (key(row), column)
            left[column] -= row[column]
        assert row["available_bytes"] == sum(row[column] for column in COLUMNS[1:])
        if whole:
            assert row["omitted_error_share"] == pytest.approx(sum(a["error"] for a in mine) / whole, abs=1e-12)
        else:
            assert row["omitted_error_share"] == (None if row["left_out_bytes"] else 0)
    assert not any(left.values()), left


def layer_of(tensor):
    """As people read names: the number between two dots; embeddings stand before all layers."""
    found = re.search(r"^(.*?)\.(\d+)\.", tensor)
    if found:
        return ("layer", found[1], int(found[2]))
    return ("before" if "embed" in tensor else "behind", None, None)


def check(told, plan):
    every = accounts(plan)
    assert {(m["name"]) for m in plan["models"] if m["role"] == "expert"} == {e["model"] for e in told["experts"]}
    check_rows(told["experts"], lambda row: row["model"], lambda t, m: m, every)
    check_rows(told["tensors"], lambda row: row["name"], lambda t, m: t, every)
    check_rows(told["layers"], lambda row: (row["place"], row["prefix"], row["layer"]), lambda t, m: layer_of(t), every)
    check_rows([told], lambda row: 0, lambda t, m: 0, every)
    for key in ("budget_bytes", "policy", "statistics", "sample_read_bytes", "complete", "predicted_deviation", "certificate", "cut_rate"):
        assert told[key] == plan["budget"][key], key
    assert told["lossless_skipped_bytes"] == plan["budget"]["lossless_skipped_bytes"]
    assert told["method"] == plan["method"] and told["plan_digest"] == plan["plan_digest"]


def check_why(why, plan):
    """The blocks of one tensor, by expert."""
    tensor = next(t for t in plan["tensors"] if t["name"] == why["tensor"])
    names = [plan["models"][m]["name"] for m in tensor["models"]]
    roles = [plan["models"][m]["role"] for m in tensor["models"]]
    assert [e["model"] for e in why["experts"]] == [n for n, r in zip(names, roles) if r == "expert"]
    for expert in why["experts"]:
        source = names.index(expert["model"])
        mine = account(tensor, source)
        assert {column: expert[column] for column in COLUMNS} == {column: mine[column] for column in COLUMNS}
        assert expert["blocks"] == len(mine["row"])
        assert expert["read_blocks"] == mine["row"].count(source + 1)
        assert expert["lossless_blocks"] + expert["left_out_blocks"] == mine["row"].count(0)
        for holder in expert["shared_blocks"]:
            assert holder["blocks"] == mine["row"].count(names.index(holder["model"]) + 1)
        assert expert["left_out_energy"] == mine["error"]
        assert expert["read_energy"] == pytest.approx(mine["energy"] - mine["error"], abs=1e-12 * mine["energy"])
        if mine["left_out_bytes"]:
            assert expert["left_out_gain_per_byte"] == pytest.approx(mine["error"] / mine["left_out_bytes"])


# --- numbers ---------------------------------------------------------------------------------------------------------

KNOWN = {"unknown": None, "analysed": (), "densities": ("--density", "0.5")}


def prepared(mp, known, **size):
    family = budgets.make(mp.root, **size)
    if KNOWN[known] is not None:
        budgets.analyze(mp, family, *KNOWN[known])
    return family



@pytest.mark.parametrize("budget", ("0", "30%", "100%", None))
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("method", ("task_arithmetic", "ties"))
def test_tables_are_the_sums_of_the_plan(method, known, budget, mp):
    family = prepared(mp, known)
    path, plan = saved(mp, family, method, *(("--budget", budget) if budget else ()))
    told = explain(mp, path)
    check(told, plan)
    assert told["kind"] == "plan" and told["why"] is None
    text = mp.ok("explain", path).out
    assert "?" not in text and method in text and plan["plan_digest"][:16] in text
    for tensor in [t["name"] for t in plan["tensors"]][::3]:
        check_why(explain(mp, path, "--why", tensor)["why"], plan)
        assert "?" not in mp.ok("explain", path, "--why", tensor).out


@pytest.mark.parametrize("policy", budgets.POLICIES)
def test_every_policy_is_explained(policy, mp):
    family = prepared(mp, "analysed")
    path, plan = saved(mp, family, "task_arithmetic", "--budget", "40%", "--policy", policy)
    check(explain(mp, path), plan)
    assert policy in mp.ok("explain", path).out
    why = mp.ok("explain", path, "--why", plan["tensors"][0]["name"]).out
    assert ("the order was cut at a gain of" in why) == (policy in ("gram", "norm"))


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("budget", ("0", "30%", "100%", None))
def test_an_output_is_explained_like_its_plan(budget, known, mp):
    family = prepared(mp, known)
    path, plan = saved(mp, family, "ties", *(("--budget", budget) if budget else ()))
    out = mp.fresh("out")
    report = mp.ok("run", path, out, "--json").json
    of_plan, of_output = explain(mp, path), explain(mp, out)
    assert of_output["kind"] == "output"
    assert report["io"]["expert_read_bytes"] == of_output["read_bytes"] + of_output["sample_read_bytes"]
    whole = {t["name"]: t["thresholds"] for t in of_plan["tensors"]}
    for tensor in of_output["tensors"]:
        if known == "densities":
            assert tensor["thresholds"] == whole[tensor["name"]]
        else:
            assert whole[tensor["name"]] == [], "nobody knows thresholds before data is read"
        for threshold in tensor["thresholds"]:
            expert = next(a for t, m, a in accounts(plan) if (t, m) == (tensor["name"], threshold["model"]))
            assert threshold["of_whole_delta"] == (known == "densities" or expert["left_out_bytes"] == 0)
    for told in (of_plan, of_output):
        told.pop("kind"), told.pop("path")
        for tensor in told["tensors"]:
            tensor.pop("thresholds")
    assert of_output == of_plan


def test_thresholds_are_the_numbers_of_the_catalog(mp):
    family = prepared(mp, "densities")
    path, plan = saved(mp, family, "ties", "--budget", "30%")
    assert any("constants" in t for t in plan["tensors"])
    told = {t["name"]: t["thresholds"] for t in explain(mp, path)["tensors"]}
    for tensor in plan["tensors"]:
        rows = tensor.get("constants", {"thresholds": []})["thresholds"]
        names = [plan["models"][tensor["models"][s]]["name"] for s in tensor["inputs"]]
        want = [
            {"model": n, "magnitude": struct.unpack("<f", struct.pack("<I", key))[0], "equals": equals, "equals_kept": kept, "of_whole_delta": True}
            for n, (key, equals, kept, _) in zip(names, rows)
            if equals
        ]
        assert told[tensor["name"]] == want


def test_equal_experts_are_shared_and_copies_of_the_base_are_lossless(mp):
    """The same expert under two names, and one that is the base."""
    family = budgets.make(mp.root, experts=1)
    twin, same = mp.root / "twin", mp.root / "same"
    for copy, of in ((twin, family.experts[0]), (same, family.base)):
        copy.mkdir()
        for file in of.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
    family = families.Family(family.base, [family.experts[0], twin, same])
    budgets.analyze(mp, family)
    path, plan = saved(mp, family, "task_arithmetic", "--budget", "100%")
    told = explain(mp, path)
    check(told, plan)
    one, two, none = told["experts"]
    assert one["read_bytes"] == one["available_bytes"] == two["shared_bytes"] and two["read_bytes"] == 0
    assert none["lossless_skipped_bytes"] == none["available_bytes"]
    tensor = plan["tensors"][0]["name"]
    check_why(explain(mp, path, "--why", tensor)["why"], plan)
    text = mp.ok("explain", path, "--why", tensor).out
    assert "with the same bytes as those of" in text and "change" in text


def test_the_text_shows_those_that_lose_most_and_says_how_many_more(mp):
    family = prepared(mp, "analysed")
    path, plan = saved(mp, family, "task_arithmetic", "--budget", "30%")
    tensors = sorted(explain(mp, path)["tensors"], key=lambda t: -t["omitted_error_share"])
    table = mp.ok("explain", path).out.split("of error  tensor\n")[1].splitlines()
    assert [line.split()[-1] for line in table[:3]] == [t["name"] for t in tensors[:3]]
    assert f"and {len(tensors) - 12} more tensors" in table[-1] and len(table) == 13


# --- what is wrong ---------------------------------------------------------------------------------------------------


def refuse(mp, *args):
    run = mp.run("explain", *args, "--json")
    assert run.status == 2 and run.json["error"]["kind"] in ("usage", "invalid_input"), run
    assert "json.exception.type" not in run.err and "json.exception.out" not in run.err, run.err
    return run.err


def reseal(plan):
    """A plan that was changed by somebody who knows how its digest is made."""
    plan = {k: v for k, v in plan.items() if k != "digest"}
    text = json.dumps(plan, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return json.dumps(plan | {"digest": hashlib.sha256(text.encode()).hexdigest()})


def test_unknown_places_and_tensors_are_told(mp):
    family = prepared(mp, "unknown")
    path, plan = saved(mp, family, "task_arithmetic")
    assert "nothing.json" in refuse(mp, mp.root / "nothing.json")
    assert "manifest" in refuse(mp, family.base)
    refuse(mp, family.base / "model.safetensors")
    name = plan["tensors"][0]["name"]
    assert f"did you mean '{name}'?" in refuse(mp, path, "--why", name[:-1])


def test_changed_files_are_refused(mp):
    family = prepared(mp, "unknown")
    path, plan = saved(mp, family, "task_arithmetic", "--budget", "30%")
    text = path.read_text()
    changed = mp.root / "changed.json"
    for damage in (text.replace("gram", "norm"), text[: len(text) // 2], "", "[]", "{}", "null", text.replace("mergepipe.plan/1", "mergepipe.plan/9")):
        changed.write_text(damage)
        assert "changed.json" in refuse(mp, changed)
    out = mp.fresh("out")
    mp.ok("run", path, out)
    manifest = out / "mergepipe_manifest.json"
    text = manifest.read_text()
    for damage in (text.replace('"gram"', '"norm"'), text[: len(text) // 2], "{}"):
        manifest.write_text(damage)
        assert manifest.name in refuse(mp, out)


FORGERIES = {
    "no tensors": lambda p: p.pop("tensors"),
    "no budget": lambda p: p.pop("budget"),
    "a model without a name": lambda p: p["models"][1].pop("name"),
    "a model that is not there": lambda p: p["tensors"][0]["models"].__setitem__(1, 99),
    "a negative count": lambda p: p["tensors"][0]["reads"][1].__setitem__(0, -5),
    "a broken count": lambda p: p["tensors"][0]["reads"][1].__setitem__(1, 1.5),
    "more than there is": lambda p: p["tensors"][0]["reads"][1].__setitem__(1, 2**63),
    "text for a number": lambda p: p["tensors"][0]["reads"][1].__setitem__(3, "much"),
    "blocks of nothing": lambda p: p["tensors"][0].update(block_elements=0),
    "a policy that is none": lambda p: p["budget"].update(policy="?"),
    "a row that is short": lambda p: masked(p)["rows"].__setitem__(0, [1, 0]),
    "a row that is long": lambda p: masked(p)["rows"].__setitem__(0, [2**63, 0, 2**63, 0]),
    "a row of a model that is not there": lambda p: masked(p)["rows"].__setitem__(0, [1, 77]),
    "no rows": lambda p: masked(p).pop("rows"),
}


def masked(plan):
    return next(t for t in plan["tensors"] if "mask" in t)["mask"]


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_plans_are_refused(forgery, mp):
    """With a digest that fits."""
    family = prepared(mp, "unknown")
    _, plan = saved(mp, family, "task_arithmetic", "--budget", "30%", "--policy", "random")
    forged = mp.root / "forged.json"
    FORGERIES[forgery](plan)
    forged.write_text(reseal(plan))
    assert "forged.json" in refuse(mp, forged)
