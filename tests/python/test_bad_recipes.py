"""Recipes that cannot be meant: exit status 2, a message that helps, nothing written."""

import pytest

import checkpoints
import families
from recipes import models, sliced, source, text

W = {"weight": 0.5}


def expert(**parameters):
    return models("ties", "base", ["e0"], parameters)


# fault -> (recipe, words that the message needs)
FAULTS = {
    # words that nobody knows, with the nearest one that is known
    "unknown method": (models("tise", "base", ["e0"], W), ["tise", "ties"]),
    "method with a dash": (models("dare-ties", "base", ["e0"], W), ["dare-ties", "dare_ties"]),
    "mistyped top-level key": (text(models("ties", "base", ["e0"], W)).replace("base_model", "base_modle"), ["base_modle", "base_model"]),
    "mistyped models": ({"merge_method": "linear", "modells": []}, ["modells", "models"]),
    "mistyped parameters": ({"merge_method": "linear", "models": [{"model": "e0", "paramters": W}]}, ["paramters", "parameters"]),
    "mistyped weight": (expert(wieght=1), ["wieght", "weight"]),
    "mistyped density": (expert(weight=1, densty=1), ["densty", "density"]),
    "mistyped global parameter": (models("ties", "base", ["e0"], W, {"lamda": 1}), ["lamda", "lambda"]),
    "mistyped layer_range": ({"merge_method": "passthrough", "slices": [{"sources": [{"model": "e0", "layer_rnage": [0, 1]}]}]}, ["layer_rnage", "layer_range"]),
    "mistyped sources": ({"merge_method": "passthrough", "slices": [{"source": []}]}, ["source", "sources"]),
    "mistyped filter": (expert(weight=[{"fliter": "mlp", "value": 1}, {"value": 0}]), ["fliter", "filter"]),
    "mistyped dtype key": (models("ties", "base", ["e0"], W, out_dytpe="float16"), ["out_dytpe", "out_dtype"]),
    "one module under two names": ({"merge_method": "linear", "modules": {m: {"models": [{"model": "e0", "parameters": W}]} for m in ("layers", "model.layers")}}, ["model.layers.0"]),
    "unknown module": ({"merge_method": "linear", "modules": {"vision": {"models": [{"model": "e0", "parameters": W}]}}}, ["vision"]),
    # values of the wrong kind
    "YAML that does not parse": ("merge_method: [ties\n", ["recipe"]),
    "YAML with a tab": ("merge_method:\n\tties\n", ["recipe"]),
    "empty": ("", ["recipe"]),
    "only a comment": ("# nothing\n", ["recipe"]),
    "a list": ("- merge_method: ties\n", ["recipe"]),
    "a word": ("ties\n", ["recipe"]),
    "bytes": ("\x00\x01\x02", ["recipe"]),
    "an HTML page": ("<html><body>404</body></html>\n", ["recipe"]),
    "method that is a list": ({"merge_method": ["ties"], "models": [{"model": "e0"}]}, ["merge_method"]),
    "no method": ({"models": [{"model": "e0", "parameters": W}]}, ["merge_method"]),
    "models that is a word": ({"merge_method": "linear", "models": "e0"}, ["models"]),
    "model without its name": ({"merge_method": "linear", "models": [{"parameters": W}]}, ["model"]),
    "weight that is no number": (expert(weight="much"), ["weight", "much"]),
    "weight that is null": (expert(weight=None), ["weight"]),
    "weight that is not a number": (expert(weight=float("nan")), ["weight"]),
    "weight that is infinite": (expert(weight=float("inf")), ["weight"]),
    "weight that mixes forms": (expert(weight=[0.5, {"filter": "mlp", "value": 1}]), ["weight"]),
    "normalize that is 2": (models("ties", "base", ["e0"], W, {"normalize": 2}), ["normalize"]),
    "normalize that is maybe": (models("ties", "base", ["e0"], W, {"normalize": "maybe"}), ["normalize", "maybe"]),
    "dtype that is unknown": (models("ties", "base", ["e0"], W, out_dtype="float12"), ["float12"]),
    "dtype that no tensor here can have": (models("ties", "base", ["e0"], W, dtype="int8"), ["int8"]),
    # structure
    "both models and slices": (models("linear", None, ["e0"], W) | {"slices": [{"sources": [source("e0", 0, 1)]}]}, ["models", "slices"]),
    "neither models nor slices": ({"merge_method": "linear"}, ["models", "slices"]),
    "no models in the list": ({"merge_method": "linear", "models": []}, ["models"]),
    "no sources in a slice": ({"merge_method": "passthrough", "slices": [{"sources": []}]}, ["sources"]),
    "source without its range": ({"merge_method": "passthrough", "slices": [{"sources": [{"model": "e0"}]}]}, ["layer_range"]),
    "both tokenizer forms": (models("linear", None, ["e0"], W, tokenizer_source="base", tokenizer={"source": "base"}), ["tokenizer"]),
    "the same model twice": (models("linear", None, ["e0", "e0"], W), ["e0", "twice"]),
    "reference with two adapters": (models("linear", None, ["a+b+c"], W), ["a+b+c"]),
    "reference with two revisions": (models("linear", None, ["a@b@c"], W), ["a@b@c"]),
    # what a method needs
    "ties without base": (models("ties", None, ["e0"], W), ["base_model"]),
    "task_arithmetic without weight": (models("task_arithmetic", "base", ["e0"]), ["weight", "e0"]),
    "linear without weight": (models("linear", None, ["e0"]), ["weight", "e0"]),
    "weights for some tensors only": (models("linear", None, ["e0"], {"weight": [{"filter": "mlp", "value": 1}]}), ["weight", "e0"]),
    "an empty gradient and no other": (models("linear", None, ["e0"], {"weight": []}), ["weight"]),
    "slerp without t": (models("slerp", "base", ["e0"]), ["t"]),
    "slerp without base": (models("slerp", None, ["base", "e0"], parameters={"t": 0.5}), ["base_model"]),
    "slerp of three": (models("slerp", "base", ["e0", "e1"], parameters={"t": 0.5}), ["slerp", "2"]),
    "slerp of one": (models("slerp", "base", ["base"], parameters={"t": 0.5}), ["slerp", "2"]),
    "passthrough of two": (models("passthrough", None, ["e0", "e1"]), ["passthrough", "1"]),
    "passthrough with a base beside": (models("passthrough", "base", ["e0"]), ["passthrough", "1"]),
    "a slice without the base": (sliced("ties", [[source("e0", 0, 2, weight=1)]], "base"), ["base"]),
    "linear whose base has no weight": (models("linear", "base", ["e0"], W), ["weight", "base"]),
    # layers and filters
    "layers beyond the model": (sliced("passthrough", [[source("e0", 0, 3)]]), ["layer_range", "3", "2"]),
    "layers that select nothing": (sliced("passthrough", [[source("e0", 1, 1)]]), ["layer_range"]),
    "layers that run backwards": (sliced("passthrough", [[source("e0", 2, 1)]]), ["layer_range"]),
    "layers beyond all counting": (sliced("passthrough", [[source("e0", 0, 2**64 - 1)]]), ["layer_range"]),
    "layers below zero": (sliced("passthrough", [[source("e0", -1, 1)]]), ["layer_range"]),
    "a range of one number": ({"merge_method": "passthrough", "slices": [{"sources": [{"model": "e0", "layer_range": [1]}]}]}, ["layer_range"]),
    "a range of three numbers": ({"merge_method": "passthrough", "slices": [{"sources": [{"model": "e0", "layer_range": [0, 1, 2]}]}]}, ["layer_range"]),
    "a range of words": ({"merge_method": "passthrough", "slices": [{"sources": [{"model": "e0", "layer_range": ["a", "b"]}]}]}, ["layer_range"]),
    "sources of unlike length": (sliced("linear", [[source("e0", 0, 1, weight=1), source("e1", 0, 2, weight=1)]]), ["layer_range"]),
    "a filter that matches nothing": (expert(weight=[{"filter": "nothing_like_it", "value": 1}, {"value": 0}]), ["nothing_like_it"]),
    "a filter with a wildcard": (expert(weight=[{"filter": "layers.*.mlp", "value": 1}, {"value": 0}]), ["layers.*.mlp"]),
    "a global filter that matches nothing": (models("ties", "base", ["e0"], W, {"lambda": [{"filter": "Mlp", "value": 1}, {"value": 0}]}), ["Mlp"]),
    # not yet
    "a union of tokenizers that are not there": (models("linear", None, ["e0"], W, tokenizer_source="union"), ["has no tokenizer", "tokenizer.json"]),
    "a tokenizer that a model does not have": (models("linear", None, ["e0"], W, tokenizer={"source": "e0"}), ["has no tokenizer", "tokenizer.json"]),
    "a chat template that is a typing error": (models("linear", None, ["e0"], W, chat_template="chatlm"), ["chat_template", "'chatml'"]),
    "a chat template without a field": (models("linear", None, ["e0"], W, chat_template="x" * 40), ["chat_template", "Jinja"]),
    "a chat template that is too short": (models("linear", None, ["e0"], W, chat_template="{{ messages }}"), ["chat_template", "20"]),
    # models that are not there
    "a base that is missing": (models("ties", "nowhere", ["e0"], W), ["nowhere"]),
    "an expert that is missing": (models("ties", "base", ["e0", "nowhere"], W), ["nowhere"]),
    "a model name from a hub": (models("ties", "base", ["some-org/some-model"], W), ["some-org/some-model"]),
    "an adapter": (models("linear", None, ["e0+lora"], W), ["e0", "lora"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_recipe_that_cannot_be_meant_is_refused_with_a_hint(fault, mp):
    families.make(mp.root, experts=2)
    recipe, words = FAULTS[fault]
    mp.refuse(recipe, *words, cwd=mp.root)


def test_all_faults_of_a_recipe_are_told_at_once(mp):
    families.make(mp.root, experts=2)
    recipe = models("ties", "base", ["e0", "e1"], [{"wieght": 1}, {"weight": 1, "densty": 0.5}], {"lamda": 2}, dtyp="float32")
    run = mp.refuse(recipe, "wieght", "densty", "lamda", "dtyp", flags=["--json"], cwd=mp.root)
    assert len(run.json["error"]["faults"]) >= 4


def test_faults_of_the_recipe_and_of_the_files_are_told_together(mp):
    """One run is enough to learn of a mistyped parameter, a cut file and a missing model."""
    family = families.make(mp.root, experts=2)
    path = family.experts[1] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    mp.refuse(models("ties", "base", ["e0", "e1", "nowhere"], {"weight": 1, "densty": 0.5}), "densty", "e1/model.safetensors", "nowhere", cwd=mp.root)


def test_a_message_tells_where_in_the_recipe(mp):
    """The line number, for a file of any length."""
    families.make(mp.root, experts=1)
    recipe = "merge_method: linear\nmodels:\n  - model: e0\n    parameters:\n      weight: 1\n      wieght: 2\n"
    mp.refuse(recipe, "6", cwd=mp.root)


def test_what_mergekit_accepts_as_base_tokenizer_is_accepted(mp):
    families.make(mp.root, experts=1)
    for top in ({"tokenizer_source": "base"}, {"tokenizer": {"source": "base"}}):
        mp.merge(models("task_arithmetic", "base", ["e0"], W, **top), cwd=mp.root)


def test_a_filter_that_only_another_slice_uses_is_a_warning(mp):
    """layers.1. is no layer of the first slice, but of the second: accepted, and told."""
    families.make(mp.root, experts=1)
    setting = {"weight": [{"filter": "layers.1.", "value": 1.0}, {"value": 0.0}]}
    recipe = sliced("task_arithmetic", [
        {"sources": [source("base", i, i + 1), source("e0", i, i + 1)], "parameters": setting} for i in range(2)
    ], "base")
    report = mp.report(recipe, cwd=mp.root)
    assert any("layers.1." in w for w in report["warnings"]), report["warnings"]


@pytest.mark.parametrize("name", ("nowhere.yml", "."))
def test_a_recipe_that_is_no_file_is_refused(name, mp):
    run = mp.run("merge", name, "out")
    assert run.status == 2 and run.err and not (mp.root / "out").exists()


def test_a_recipe_that_expands_without_end_is_refused_quickly(mp):
    """Aliases of aliases: 10^9 nodes when followed."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    mp.refuse("\n".join(lines) + "\n", timeout=20)


def test_a_recipe_nested_too_deep_is_refused(mp):
    mp.refuse("merge_method: " + "[" * 100_000 + "]" * 100_000 + "\n", timeout=20)


# --- inputs that do not fit each other -------------------------------------------------------------------------------


def odd_one(mp, change):
    """A family whose last expert is changed by a function of its tensors."""
    base = checkpoints.llama(1)
    tuned = [checkpoints.fine_tune(base, i) for i in range(2)]
    change(tuned[1])
    return families.write(mp.root, base, tuned)


def test_every_shape_mismatch_is_told_with_both_shapes(mp):
    def change(t):
        t["lm_head.weight"] = checkpoints.Tensor.of("F32", t["lm_head.weight"].values()[:39])
        t["model.norm.weight"] = checkpoints.Tensor.of("F32", t["model.norm.weight"].values()[:15])
        t["model.layers.1.mlp.up_proj.weight"] = checkpoints.Tensor.of("F32", t["model.layers.1.mlp.up_proj.weight"].values().reshape(16, 24))

    family = odd_one(mp, change)
    words = ["lm_head.weight", "39", "40", "model.norm.weight", "15", "model.layers.1.mlp.up_proj.weight", "24", "e1"]
    run = mp.refuse(families.smallest("ties", family), *words, flags=["--json"])
    assert len(run.json["error"]["faults"]) >= 3


def test_every_missing_tensor_is_told(mp):
    def change(t):
        del t["model.norm.weight"], t["model.layers.0.self_attn.q_proj.weight"]

    mp.refuse(families.smallest("ties", odd_one(mp, change)), "e1", "model.norm.weight", "model.layers.0.self_attn.q_proj.weight", "--missing base")


def test_every_tensor_that_the_base_lacks_is_told(mp):
    """An extra tensor of an expert would be lost: it is an error, not a silence."""
    def change(t):
        t["tts.a.weight"] = t["tts.b.weight"] = t["model.norm.weight"]

    mp.refuse(families.smallest("ties", odd_one(mp, change)), "e1", "tts.a.weight", "tts.b.weight")


@pytest.mark.parametrize("method", ("linear", "task_arithmetic", "ties"))
def test_missing_base_takes_the_bases_tensor_for_an_experts(method, mp):
    """--missing base: the same as if the expert had stored the base's tensor."""
    name = "model.layers.1.mlp.down_proj.weight"
    family = odd_one(mp, lambda t: t.pop(name))
    recipe = models(method, family.base, [family.base, *family.experts] if method == "linear" else family.experts, W)
    got = mp.merged(recipe, "--missing", "base")
    checkpoints.save(family.experts[1], family.load(family.experts[1]) | {name: family.load(family.base)[name]})
    assert {n: t.raw for n, t in got.items()} == {n: t.raw for n, t in mp.merged(recipe).items()}


@pytest.mark.parametrize("flag", (None, "true", 1, []))
def test_an_odd_flag_for_tied_embeddings_is_no_flag(flag, mp):
    """A head that only the base lacks is told by name, whatever its config says."""
    family = odd_one(mp, lambda t: None)
    base = family.load(family.base)
    del base["lm_head.weight"]
    checkpoints.save(family.base, base, config={"model_type": "llama", "tie_word_embeddings": flag})
    mp.refuse(families.smallest("ties", family), "lm_head.weight", str(family.base))


def test_models_of_unlike_depth_are_refused(mp):
    checkpoints.save(mp.root / "two", checkpoints.llama(1, layers=2))
    checkpoints.save(mp.root / "three", checkpoints.llama(1, layers=3))
    for base, other in (("two", "three"), ("three", "two")):
        mp.refuse(models("task_arithmetic", base, [other], W), "model.layers.2.", other, cwd=mp.root)
