"""What a recipe says in vain is told, with what it may have meant; what it says is shown for every tensor."""

import pytest

import families
import recipes

W = {"weight": 0.5}


@pytest.fixture
def family(tmp_path):
    return families.make(tmp_path, "F32", experts=2, layers=4)


def ties(family, **parameters):
    return recipes.models("ties", family.base, family.experts, {"weight": 0.5, "density": 0.5} | parameters)


def fault(mp, recipe):
    run = mp.run("plan", mp.recipe(recipe))
    assert run.status == 2, run.out
    return run.err


# --- filters


@pytest.mark.parametrize("filter,meant", (("self_atn", "self_attn"), ("qproj", "q_proj"), ("mpl.up_proj", "mlp.up_proj"), ("lm_haed", "lm_head"), ("layers.4.mlp", "layers.0.mlp")))
def test_a_filter_that_matches_nothing_names_the_nearest(filter, meant, mp, family):
    text = fault(mp, ties(family, weight=[{"filter": filter, "value": 1}, {"value": 0.5}]))
    assert f"the filter '{filter}' of 'weight' matches no tensor of the merge (did you mean '{meant}'?)" in text


def test_where_nothing_is_near_the_parts_are_listed(mp, family):
    text = fault(mp, ties(family, weight=[{"filter": "completely_else", "value": 1}]))
    assert all(part in text for part in ("self_attn", "q_proj", "mlp", "embed_tokens"))


def test_all_filters_are_told_at_once(mp, family):
    text = fault(mp, ties(family, weight=[{"filter": "self_atn", "value": 1}, {"value": 1}], density=[{"filter": "mpl", "value": 1}, {"value": 1}]))
    assert "self_attn" in text and "'mlp'" in text


# --- layers


def test_a_layer_range_that_does_not_exist_names_the_layers(mp, family):
    recipe = recipes.sliced("passthrough", [[recipes.source(family.base, 2, 7)]])
    assert "reaches beyond" in (text := fault(mp, recipe)) and "[0, 4)" in text


# --- keys


KEYS = {
    "at the top": (lambda r: r | {"merge_metod": "x"}, "merge_method"),
    "of a model": (lambda r: r | {"models": [m | {"paramters": {}} for m in r["models"]]}, "parameters"),
    "of a reference": (lambda r: r | {"models": [{"model": {"model": str(m["model"]), "loar": None}, "parameters": m["parameters"]} for m in r["models"]]}, "lora"),
    "of a path": (lambda r: r | {"models": [{"model": {"model": {"path": str(m["model"]), "revison": "x"}}, "parameters": m["parameters"]} for m in r["models"]]}, "revision"),
    "of a conditional entry": (lambda r: r | {"parameters": {"lambda": [{"fliter": "mlp", "value": 1}]}}, "filter"),
    "a parameter": (lambda r: r | {"parameters": {"desnity": 1}}, "density"),
}
SLICED = {
    "of a slice": ({"paramters": {}}, {}, "parameters"),
    "of a source": ({}, {"layer_rang": [0, 1]}, "layer_range"),
}


@pytest.mark.parametrize("level", KEYS)
def test_an_unknown_key_names_the_nearest(level, mp, family):
    change, meant = KEYS[level]
    assert f"did you mean '{meant}'" in fault(mp, change(ties(family)))


@pytest.mark.parametrize("level", SLICED)
def test_an_unknown_key_in_slices_names_the_nearest(level, mp, family):
    of_slice, of_source, meant = SLICED[level]
    recipe = {"merge_method": "passthrough", "slices": [{"sources": [{"model": str(family.base), "layer_range": [0, 2]} | of_source]} | of_slice]}
    assert f"did you mean '{meant}'" in fault(mp, recipe)


def test_an_unknown_key_of_a_module_names_the_nearest(mp, family):
    recipe = {"merge_method": "linear", "modules": {"layers": {"models": [{"model": str(family.base), "parameters": W}], "paramters": {}}}}
    assert "did you mean 'parameters'" in fault(mp, recipe)


def test_a_parameter_of_another_method_is_a_warning(mp, family):
    assert "does not use 't'" in mp.ok("plan", mp.recipe(ties(family) | {"parameters": {"t": 0.5}})).err


# --- --explain-parameters


def groups(mp, recipe):
    return mp.ok("plan", mp.recipe(recipe), "--explain-parameters", "--json").json["tensor_parameters"]


def expanded(patterns):
    """The names that patterns such as a.{0-2,5}.b stand for."""
    for p in patterns:
        if "{" not in p:
            yield p
            continue
        before, rest = p.split("{")
        ranges, after = rest.split("}")
        for r in ranges.split(","):
            first, _, last = r.partition("-")
            yield from (f"{before}{i}{after}" for i in range(int(first), int(last or first) + 1))


def test_every_tensor_is_explained_once(mp, family):
    found = [n for g in groups(mp, ties(family, weight=[0, 1])) for n in expanded(g["tensors"])]
    assert sorted(found) == sorted(family.load(family.base))


def test_equal_values_are_one_group(mp, family):
    (group,) = groups(mp, ties(family))
    assert group["count"] == len(family.load(family.base)) and "model.layers.{0-3}.self_attn.q_proj.weight" in group["tensors"]
    assert group["parameters"] == {"int8_mask": False, "lambda": 1.0, "normalize": True} | group["parameters"]
    assert [m["parameters"] for m in group["models"]] == [{"density": 0.5, "weight": 0.5}] * 2
    assert [m["model"] for m in group["models"]] == [str(e) for e in family.experts]


def test_gradients_and_filters_show_their_values(mp, family):
    recipe = recipes.models("task_arithmetic", family.base, family.experts[:1], {"weight": [{"filter": "mlp", "value": [0, 0.9]}, {"value": 0.5}]})
    weight = {}
    for group in groups(mp, recipe):
        for name in expanded(group["tensors"]):
            weight[name] = group["models"][0]["parameters"]["weight"]
    for i, want in enumerate((0, 0.3, 0.6, 0.9)):
        assert weight[f"model.layers.{i}.mlp.up_proj.weight"] == pytest.approx(want)
        assert weight[f"model.layers.{i}.self_attn.q_proj.weight"] == 0.5


def test_the_text_says_the_same(mp, family):
    text = mp.ok("plan", mp.recipe(ties(family)), "--explain-parameters").out
    assert "model.layers.{0-3}.mlp.up_proj.weight\n" in text and "density 0.5, weight 0.5" in text


def test_copies_name_their_source(mp, family):
    (group,) = groups(mp, recipes.models("passthrough", None, family.experts[:1]))
    assert not group["merged"] and group["model"] == str(family.experts[0])


def test_stages_are_explained_each(mp, family):
    text = recipes.text(ties(family) | {"name": "one"}) + "---\n" + recipes.text(recipes.models("linear", None, ["one", family.base], W))
    stages = mp.ok("plan", mp.recipe(text), "--explain-parameters", "--json").json["stages"]
    assert [len(s["tensor_parameters"]) for s in stages] == [1, 1]
