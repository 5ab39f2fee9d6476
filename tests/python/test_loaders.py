"""What other programs make of an output: Python safetensors, transformers."""

import json
import os
from pathlib import Path

import pytest

import families
import program
import recipes
from checkpoints import read_checkpoint

FAMILY = program.ROOT / "examples/family"


@pytest.fixture(scope="module")
def torch():
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    import torch

    torch.set_num_threads(1)
    return torch


@pytest.fixture(scope="module")
def transformers(torch):
    import transformers

    return transformers


@pytest.mark.parametrize("layout", ("single", "sharded"))
@pytest.mark.parametrize("dtype", ("F32", "F16", "BF16", "mixed", "F64"))
def test_python_safetensors_opens_the_output(dtype, layout, mp, torch):
    from safetensors import safe_open

    family = families.make(mp.root, dtype, layout)
    out = mp.merge(families.smallest("ties", family))
    want = read_checkpoint(out)
    for path in out.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            assert file.metadata()["format"] == "pt"
            for name in file.keys():
                got = file.get_tensor(name)
                assert torch.equal(got.double(), torch.from_numpy(want.pop(name).values("f8")))
    assert not want


def tiny_llama(torch, transformers, seed, tied, like=None):
    """A random Llama of transformers; like: a fine-tune of that one."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, tie_word_embeddings=tied, initializer_range=0.2)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    if like is not None:
        model.load_state_dict(like.state_dict())
        with torch.no_grad():
            for p in model.parameters():
                p += (torch.randn_like(p.float()) * 0.02).to(p.dtype)
    return model


def save_family(mp, torch, transformers, tied, shard_size="5GB"):
    base = tiny_llama(torch, transformers, 0, tied)
    models = {"base": base, "e0": tiny_llama(torch, transformers, 1, tied, base), "e1": tiny_llama(torch, transformers, 2, tied, base)}
    for name, model in models.items():
        model.save_pretrained(mp.root / name, max_shard_size=shard_size)
    return families.Family(mp.root / "base", [mp.root / "e0", mp.root / "e1"])


def load(transformers, path):
    """A model for causal language modelling; nothing missing, nothing unexpected."""
    model, told = transformers.AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"] and not told["mismatched_keys"]
    return model.eval()


def generate(torch, model, prompt=(1, 2, 3)):
    with torch.no_grad():
        return model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0)[0].tolist()


@pytest.mark.parametrize("shard_size", ("5GB", "20KB"))
@pytest.mark.parametrize("method, tied", recipes.rotate(recipes.METHODS, (True, False)))
def test_transformers_loads_the_output_and_generates(method, tied, shard_size, mp, torch, transformers):
    """With the values that are stored: each parameter of the loaded model is the output's tensor."""
    family = save_family(mp, torch, transformers, tied, shard_size)
    out = mp.merge(families.smallest(method, family))
    model, stored = load(transformers, out), read_checkpoint(out)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert ("lm_head.weight" in stored) == (not tied)
    for name, t in stored.items():
        assert torch.equal(model.get_parameter(name).double(), torch.from_numpy(t.values("f8"))), name
    assert len(generate(torch, model)) > 3


def test_a_merge_in_torch_generates_the_same_text(mp, torch, transformers):
    """Task arithmetic written with the loaded models themselves."""
    family = save_family(mp, torch, transformers, tied=True)
    out = mp.merge(recipes.models("task_arithmetic", family.base, family.experts, {"weight": 0.6}))
    base, *experts = (load(transformers, p) for p in (family.base, *family.experts))
    deltas = [{n: p.float() - dict(base.named_parameters())[n].float() for n, p in e.named_parameters()} for e in experts]
    with torch.no_grad():
        for name, p in base.named_parameters():
            p.copy_(p.float() + sum(0.6 * d[name] for d in deltas))
    assert generate(torch, load(transformers, out)) == generate(torch, base)


def test_transformers_loads_a_stack_of_layers(mp, torch, transformers):
    family = save_family(mp, torch, transformers, tied=False)
    out = mp.merge(recipes.sliced("passthrough", [[recipes.source(family.base, 0, 2)], [recipes.source(family.experts[0], 1, 3)]]))
    model = load(transformers, out)
    assert model.config.num_hidden_layers == 4 and len(generate(torch, model)) > 3


def test_transformers_loads_a_stack_of_a_model_with_layer_types(mp, torch, transformers):
    """Qwen2 lists the kind of each layer in its config; the list follows the layers."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    transformers.Qwen2ForCausalLM(config).save_pretrained(mp.root / "m")
    assert "layer_types" in json.loads((mp.root / "m/config.json").read_text())
    out = mp.merge(recipes.sliced("passthrough", [[recipes.source(mp.root / "m", 0, 3)], [recipes.source(mp.root / "m", 1, 3)]]))
    model = load(transformers, out)
    assert model.config.num_hidden_layers == 5 and len(model.config.layer_types) == 5


# --- tied heads: flag true or false, head absent, equal or different -------------------------------------------------


def tie(mp, path, torch, transformers, flag, head):
    """A saved base whose config says flag and whose file has the head that is asked for."""
    from safetensors.torch import load_file, save_file

    tiny_llama(torch, transformers, 0, tied=True).save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    if head != "absent":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone() + (head == "different")
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": flag}))


@pytest.mark.parametrize("head", ("absent", "equal", "different"))
@pytest.mark.parametrize("flag", (True, False))
@pytest.mark.parametrize("method", ("linear", "task_arithmetic", "ties", "slerp"))
def test_a_head_is_stored_in_the_output_as_in_the_inputs(method, flag, head, mp, torch, transformers):
    """Absent stays absent, equal to the embeddings stays equal, different stays different; the flag is not touched."""
    family = families.Family(mp.root / "base", [mp.root / "e0", mp.root / "e1"])
    for path in (family.base, *family.experts):
        tie(mp, path, torch, transformers, flag, head)
    shift(family.experts, torch)
    out = mp.merge(families.smallest(method, family))
    got = read_checkpoint(out)
    assert ("lm_head.weight" in got) == (head != "absent")
    if head != "absent":
        same = got["lm_head.weight"].raw == got["model.embed_tokens.weight"].raw
        assert same == (head == "equal")
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is flag


def shift(paths, torch):
    """Fine-tunes saved files in place: every tensor of model i moves by the same rule, so equal tensors stay equal."""
    from safetensors.torch import load_file, save_file

    for i, path in enumerate(paths):
        tensors = load_file(path / "model.safetensors")
        save_file({n: t * (1 + 0.1 * (i + 1)) for n, t in tensors.items()}, path / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("head", ("equal", "different"))
def test_a_head_that_only_an_expert_stores_is_never_lost_silently(head, mp, torch, transformers):
    """Either it is refused by name, or (equal to the embeddings, so tied all the same) it is counted as dropped or taken as tied."""
    family = families.Family(mp.root / "base", [mp.root / "e0"])
    tie(mp, family.base, torch, transformers, True, "absent")
    tie(mp, family.experts[0], torch, transformers, True, head)
    recipe = recipes.models("task_arithmetic", family.base, family.experts, {"weight": 1.0})
    run = mp.run("merge", mp.recipe(recipe), mp.root / "out", "--json")
    if run.status == 0:
        assert head == "equal" and "lm_head.weight" in json.dumps(run.json["warnings"])
    else:
        assert run.status == 2 and "lm_head.weight" in run.err + run.out


# --- the trained family that the project ships -----------------------------------------------------------------------

needs_family = pytest.mark.skipif(not FAMILY.is_dir(), reason="examples/family is not there")


def trained():
    """The base and the experts of examples/family: every folder (or folder below) with a config.json."""
    models = sorted(p.parent for p in FAMILY.rglob("config.json"))
    base = next(m for m in models if m.name == "base")
    return families.Family(base, [m for m in models if m != base])


@needs_family
def test_the_shipped_family_has_its_promised_variety():
    family = trained()
    assert len(family.experts) >= 4
    assert any(len(list(e.glob("*.safetensors"))) > 1 for e in family.experts), "one expert is sharded"
    assert any({t.dtype for t in read_checkpoint(e).values()} == {"F32"} for e in family.experts), "one expert is in float32"
    assert "lm_head.weight" not in read_checkpoint(family.base), "the base ties its embeddings"
    assert sum(p.stat().st_size for p in FAMILY.rglob("*") if p.is_file()) <= 40 * 2**20


@needs_family
@pytest.mark.parametrize("method", recipes.METHODS)
def test_a_merge_of_the_shipped_family_speaks(method, mp, torch, transformers):
    """It loads with its tokenizer and continues a text, and its loss on that text is that of a trained model."""
    family = trained()
    out = mp.merge(recipes.smallest(method, family.base, family.experts[:3]))
    model, tokenizer = load(transformers, out), transformers.AutoTokenizer.from_pretrained(out)
    text = "The license of this program is the GNU General Public License. This is free software; you may "
    ids = tokenizer(text, return_tensors="pt").input_ids
    with torch.no_grad():
        loss = float(model(ids, labels=ids).loss)
        said = tokenizer.decode(model.generate(ids, max_new_tokens=20, do_sample=False)[0])
    assert loss < 5.0, f"{loss:.2f} nats per token: no better than chance (5.5)"
    assert len(said) > len(text)


@needs_family
def test_the_shipped_family_merges_to_its_formula(mp):
    family = trained()
    for method in ("task_arithmetic", "ties"):
        assert families.faults(mp, family, families.smallest(method, family)) == []


def test_no_weight_file_of_another_kind_is_in_the_output(mp):
    """vLLM loads every *.safetensors, llama.cpp every model*: nothing but the shards may have such a name."""
    family = families.make(mp.root, layout="sharded")
    out = mp.merge(families.smallest("ties", family))
    names = {p.name for p in Path(out).rglob("*") if p.name.startswith("model") or "safetensors" in p.name}
    assert names == {f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)} | {"model.safetensors.index.json"}
