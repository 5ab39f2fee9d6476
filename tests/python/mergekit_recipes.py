"""Recipes that mergekit 0.1.5 accepts, over the models base, a, b and c (Llama-shaped, 4 layers).

Randomness is left out: mergekit draws from one global stream, so the dares appear only with density 1.
"""

from recipes import models, sliced, source

W = {"weight": 0.5}
ABC = ["a", "b", "c"]


def each(*weights, **same):
    return [{"weight": w, **same} for w in weights]


LINEAR = {
    "linear": models("linear", None, ABC, each(0.2, 0.3, 0.9)),
    "linear not normalized": models("linear", None, ABC, each(0.2, 0.3, 0.9), {"normalize": False}),
    "linear with a negative weight": models("linear", None, ABC, each(1.2, -0.4, 0.3)),
    "linear with a base among the models": models("linear", "base", ["base", "a", "b"], each(1, 0.5, 0.25)),
    "linear with a base that joins": models("linear", "base", ["a", "b"], parameters={"weight": 0.3}),
    "linear with a gradient": models("linear", None, ["a", "b"], [{"weight": [0, 0.25, 1]}, {"weight": 1}]),
    "linear of one model": models("linear", None, ["a"], W),
    "linear with one weight for all": models("linear", None, ABC, parameters={"weight": 0.7}),
    "linear in slices": sliced("linear", [
        [source("a", 0, 2, weight=0.5), source("b", 1, 3, weight=0.7)],
        [source("c", 2, 4, weight=1.0), source("b", 0, 2, weight=[0.1, 0.9])],
    ]),
}

TASK_ARITHMETIC = {
    "task arithmetic": models("task_arithmetic", "base", ABC, each(0.2, 0.3, 0.4)),
    "task arithmetic normalized": models("task_arithmetic", "base", ABC, each(0.2, 0.3, 0.9), {"normalize": True}),
    "task arithmetic with weights that cancel": models("task_arithmetic", "base", ["a", "b"], each(0.5, -0.5), {"normalize": True}),
    "task arithmetic with lambda": models("task_arithmetic", "base", ABC, each(1, 1, 1), {"lambda": 0.3}),
    "task arithmetic with a base in the list": models("task_arithmetic", "base", ["a", "base", "b"], [W, None, {"weight": -0.3}]),
    "task arithmetic with int8 masks": models("task_arithmetic", "base", ["a"], W, {"int8_mask": True}),
    "task arithmetic with a density that it ignores": models("task_arithmetic", "base", ["a", "b"], each(0.5, 0.7, density=0.3)),
    "task arithmetic with filters": models("task_arithmetic", "base", ["a", "b"], [
        {"weight": [{"filter": "self_attn", "value": 0.2}, {"filter": "mlp", "value": [0.1, 0.9]}, {"value": 0.5}]}, W,
    ]),
    "task arithmetic with one filter outside a list": models(
        "task_arithmetic", "base", ["a"], {"weight": {"filter": "mlp", "value": 0.9}}, {"weight": 0.1}),
    "task arithmetic where a filter falls through": models("task_arithmetic", "base", ["a", "b"], [
        {"weight": [{"filter": "mlp", "value": 1}]}, {"weight": 0.3},
    ], {"weight": [{"filter": "q_proj", "value": 0.6}, {"value": [0, 1]}]}),
    "task arithmetic where an empty gradient falls through": models("task_arithmetic", "base", ["a"], {"weight": []}, {"weight": 0.4}),
    "task arithmetic with lambda by layer": models("task_arithmetic", "base", ["a", "b"], W, {"lambda": [0, 0.5, 1]}),
    "task arithmetic with numbers as strings": models("task_arithmetic", "base", ["a"], {"weight": "5e-1"}, {"lambda": "0.5"}),
    "task arithmetic with booleans as numbers": models("task_arithmetic", "base", ["a"], {"weight": True}, {"normalize": "yes"}),
    "task arithmetic with a star filter": models("task_arithmetic", "base", ["a"], {"weight": [{"filter": "*", "value": 0.25}]}),
    "task arithmetic with weights of zero": models("task_arithmetic", "base", ["a", "b"], each(0, 0.5), {"weight": 3}),
    "task arithmetic of a module": {
        "merge_method": "task_arithmetic", "base_model": "base", "parameters": {"weight": 0.9},
        "modules": {"default": {"parameters": {"weight": 0.4}, "models": [{"model": "a"}, {"model": "b", "parameters": {"weight": 0.1}}]}},
    },
    "task arithmetic in slices with levels": sliced("task_arithmetic", [
        {"sources": [source("base", 0, 2), source("a", 0, 2, weight=0.9), source("b", 0, 2)], "parameters": {"weight": 0.2}},
        {"sources": [source("base", 2, 4), source("a", 2, 4), source("b", 2, 4)]},
    ], "base", {"weight": [0.5, 1]}),
    "task arithmetic in slices, filters by source layer": sliced("task_arithmetic", [
        [source("base", 0, 2), source("a", 2, 4, weight=[{"filter": "layers.3.", "value": 1}, {"value": 0}])],
        [source("base", 2, 3), source("a", 0, 1, weight=0.5)],
    ], "base"),
    "task arithmetic with a base for one slice": sliced("task_arithmetic", [
        {"sources": [source("a", 0, 2), source("b", 0, 2, weight=0.5)], "base_model": "a"},
        {"sources": [source("base", 2, 4), source("b", 2, 4, weight=0.5)]},
    ], "base"),
}

TIES = {
    "ties": models("ties", "base", ABC, each(0.2, 0.3, 0.9, density=0.3)),
    "ties with its defaults": models("ties", "base", ABC, each(0.2, 0.3, 0.9)),
    "ties not normalized": models("ties", "base", ABC, each(0.2, 0.3, 0.9, density=0.5), {"normalize": False}),
    "ties rescaled": models("ties", "base", ABC, each(0.5, 0.5, 0.5, density=0.4), {"rescale": True, "lambda": 0.8}),
    "ties with densities of its own": models("ties", "base", ABC, [{"weight": 1, "density": d} for d in (0.1, 1, 0.7)]),
    "ties with a density of zero": models("ties", "base", ["a", "b"], [{"weight": 1, "density": 0}, {"weight": 0.5, "density": 0.5}]),
    "ties with the least density": models("ties", "base", ["a", "b"], {"weight": 1, "density": 1e-9}),
    "ties with a negative weight": models("ties", "base", ABC, each(0.6, -0.7, 0.4, density=0.6)),
    "ties with int8 masks": models("ties", "base", ABC, each(0.2, 0.3, 0.9, density=0.5), {"int8_mask": True}),
    "ties with a gradient of densities": models("ties", "base", ["a", "b"], [{"weight": 0.4, "density": [1, 0.7, 0.1]}, {"weight": [0, 0.3, 0.7, 1], "density": 0.5}]),
    "ties with densities above one": models("ties", "base", ["a", "b"], [{"weight": 1, "density": 1.5}, {"weight": 0.5, "density": 7}]),
    "ties with a negative lambda": models("ties", "base", ["a", "b"], {"weight": 1, "density": 0.5}, {"lambda": -0.7}),
    "ties with large weights": models("ties", "base", ["a", "b"], each(1000, -250, density=0.5)),
    "ties of one expert": models("ties", "base", ["a"], {"weight": 0.5, "density": 0.5}),
    "ties in slices": sliced("ties", [
        [source("base", 0, 3), source("a", 0, 3, weight=0.5, density=0.5), source("b", 1, 4, weight=0.4, density=[0.2, 0.8])],
    ], "base"),
    "dare_ties of everything": models("dare_ties", "base", ABC, each(0.2, 0.3, 0.9, density=1)),
    "dare_ties normalized": models("dare_ties", "base", ABC, each(0.2, -0.3, 0.9), {"normalize": True, "lambda": 1.1}),
    "dare_linear of everything": models("dare_linear", "base", ABC, each(0.2, 0.3, 0.9, density=1)),
    "dare_linear normalized": models("dare_linear", "base", ABC, each(0.2, 0.3, 0.9), {"normalize": True}),
}

SLERP = {
    "slerp": models("slerp", "base", ["a"], parameters={"t": 0.35}),
    "slerp with the base listed second": models("slerp", "base", ["a", "base"], parameters={"t": 0.35}),
    "slerp outside the arc": models("slerp", "base", ["far"], parameters={"t": 1.3}),
    "slerp at the base": models("slerp", "base", ["far"], parameters={"t": 0}),
    "slerp of unlike models": models("slerp", "base", ["far"], parameters={"t": 0.6}),
    "slerp with the usual filters": models("slerp", "base", ["far"], parameters={
        "t": [{"filter": "self_attn", "value": [0, 0.5, 0.3, 0.7, 1]}, {"filter": "mlp", "value": [1, 0.5, 0.7, 0.3, 0]}, {"value": 0.5}],
    }),
    "slerp in slices": sliced("slerp", [[source("base", 0, 4), source("far", 0, 4)]], "base", {"t": [0.1, 0.9]}),
}

PASSTHROUGH = {
    "passthrough": models("passthrough", None, ["a"]),
    "passthrough scaled": models("passthrough", None, ["a"], {"scale": 0.5}),
    "passthrough with filtered scales": models("passthrough", None, ["a"], {"scale": [{"filter": "o_proj", "value": 0}, {"value": 1}]}),
    "a stack of two models": sliced("passthrough", [[source("a", 0, 3)], [source("b", 1, 4)]]),
    "a stack of one model twice": sliced("passthrough", [[source("a", 0, 4)], [source("a", 0, 4)]]),
    "a stack of single layers": sliced("passthrough", [[source("a", i, i + 1)] for i in (0, 1, 1, 2, 2, 3)]),
    "a stack with scaled projections": sliced("passthrough", [
        [source("a", 0, 2)],
        [source("b", 0, 2, scale=[{"filter": "o_proj", "value": 0.0}, {"filter": "down_proj", "value": [0.0, 0.5]}, {"value": 1.0}])],
        [source("a", 2, 4)],
    ]),
    "fewer layers": sliced("passthrough", [[source("a", 0, 1)], [source("a", 3, 4)]]),
    "layers in another order": sliced("passthrough", [[source("a", 2, 4)], [source("b", 0, 2)]], "base"),
}

RECIPES = LINEAR | TASK_ARITHMETIC | TIES | SLERP | PASSTHROUGH

# The same recipe in the spellings of YAML that people use.
SPELLINGS = {
    "flow style": "{merge_method: ties, base_model: base, models: [{model: a, parameters: {weight: 0.5, density: 0.4}}], parameters: {normalize: false}}",
    "comments and a document start": "# mine\n---\nmerge_method: linear  # mean\nmodels:\n- model: a\n  parameters: {weight: 1.}\n- {model: b, parameters: {weight: .5}}\n",
    "quotes": "\"merge_method\": 'linear'\n'models':\n  - \"model\": \"a\"\n    'parameters': {'weight': '0.5'}\n  - model: 'b'\n    parameters: {weight: \"1e-1\"}\n",
    "anchors": "merge_method: linear\nmodels:\n  - {model: a, parameters: &w {weight: 0.5}}\n  - {model: b, parameters: *w}\n  - {model: c, parameters: {weight: 2}}\n",
    "merge keys": "merge_method: linear\nmodels:\n  - {model: a, parameters: &w {weight: 0.5}}\n  - {model: b, parameters: {<<: *w}}\n  - {model: c, parameters: {<<: *w, weight: 2}}\n",
    "numbers of every kind": "merge_method: task_arithmetic\nbase_model: base\nmodels:\n  - {model: a, parameters: {weight: +.5}}\n  - {model: b, parameters: {weight: 2.5e-1}}\n  - {model: c, parameters: {weight: -1e-1}}\n",
    "booleans of every kind": "merge_method: ties\nbase_model: base\nmodels:\n  - {model: a, parameters: {weight: 0.5}}\n  - {model: b, parameters: {weight: 0.25}}\nparameters: {normalize: off, rescale: No, int8_mask: on}\n",
    "line ends of another system": "merge_method: linear\r\nmodels:\r\n  - model: a\r\n    parameters:\r\n      weight: 0.5\r\n  - model: b\r\n    parameters:\r\n      weight: 1.5\r\n",
    "a byte order mark": "\ufeffmerge_method: linear\nmodels:\n  - {model: a, parameters: {weight: 1}}\n",
    "values that are null": "merge_method: linear\nbase_model: null\ndtype: ~\nslices:\ntokenizer_source: null\nmodels:\n  - {model: a, parameters: {weight: 1}}\n  - {model: b, parameters: {weight: 2}}\nparameters:\n",
    "a block list of a gradient": "merge_method: linear\nmodels:\n- model: a\n  parameters:\n    weight:\n    - 0\n    - 0.5\n    - 1\n- model: b\n  parameters:\n    weight:\n    - filter: mlp\n      value:\n      - 1\n      - 0.25\n    - value: 0.75\n",
    "model mappings": "merge_method: task_arithmetic\nbase_model: {model: base}\nmodels:\n  - model: {model: {path: a}}\n    parameters: {weight: 0.5}\n  - model: {model: b, lora: null}\n    parameters: {weight: 0.5}\n",
    "torch names of dtypes": "merge_method: linear\ndtype: torch.float32\nmodels:\n  - {model: a, parameters: {weight: 1}}\n",
}
