"""The chat template of the output, as transformers reads it; the built-in ones against mergekit's."""

import importlib.resources
import json

import pytest

import checkpoints
import families
import recipes
from test_loaders import torch, transformers  # noqa: F401  (fixtures)

W = {"weight": 0.5}
NAMES = ("alpaca", "chatml", "exaone", "llama3", "mistral")
LITERAL = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %} "
CONVERSATIONS = {
    "one turn": ["user: hi ", "assistant: yo\n"],
    "two turns": ["user:hi", "assistant:yo", "user: more\n", "assistant:\nend"],
    "a question": ["user:hi"],
    "a system": ["system: be kind ", "user:hi", "assistant:yo", "user:more"],
    "a system alone": ["system:be kind", "user: hi"],
    "a system that comes late": ["user:a", "system:late", "user:b"],
    "two systems": ["system:one", "system:two", "user:a"],
    "a tool": ["user:a", "assistant:b", "tool:t"],
    "no question": ["assistant:first", "user:x"],
    "two questions": ["user:a", "user:b"],
    "an unknown role": ["user:a", "model:b"],
}


def render(template, conversation, prompt):
    from transformers.utils.chat_template_utils import _compile_jinja_template

    messages = [dict(zip(("role", "content"), m.split(":", 1))) for m in conversation]
    try:
        return _compile_jinja_template(template).render(
            messages=messages, add_generation_prompt=prompt, bos_token="<s>", eos_token="</s>")
    except Exception as error:
        return type(error).__name__


def tokenizer(folder, torch, transformers, template=None, **more):
    """A small tokenizer that transformers opens; template: of its chat."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {w: i + 3 for i, w in enumerate("abcdefghi")}
    fast = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=fast, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    made.chat_template = template
    made.save_pretrained(folder, **more)


def merged_template(mp, family, transformers, chat_template, base=True):
    recipe = recipes.models("linear", family.base if base else None, [family.base, *family.experts][not base:], W, chat_template=chat_template)
    return transformers.AutoTokenizer.from_pretrained(mp.merge(recipe)).chat_template


@pytest.fixture
def family(mp, torch, transformers):  # noqa: F811
    made = families.make(mp.root, experts=3)
    for path in (made.base, *made.experts):
        tokenizer(path, torch, transformers)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_a_built_in_template_renders_what_mergekits_does(name, mp, family, transformers):  # noqa: F811
    ours = merged_template(mp, family, transformers, name)
    theirs = importlib.resources.files("mergekit._data.chat_templates").joinpath(f"{name}.jinja").read_text()
    assert ours != theirs
    for conversation in CONVERSATIONS.values():
        for prompt in (False, True):
            assert render(ours, conversation, prompt) == render(theirs, conversation, prompt), conversation


def test_a_literal_template_is_taken_as_it_stands(mp, family, transformers):  # noqa: F811
    assert merged_template(mp, family, transformers, LITERAL) == LITERAL


@pytest.mark.parametrize("old", ({"save_jinja_files": False}, {"save_jinja_files": True}))
@pytest.mark.parametrize("theirs", ("{{ old }}", {"default": "{{ old }}", "tool_use": "{{ tools }}"}))
def test_the_donors_own_template_is_replaced_wherever_it_lies(theirs, old, mp, family, torch, transformers):  # noqa: F811
    tokenizer(family.base, torch, transformers, theirs, **old)
    (family.base / "chat_template.json").write_text(json.dumps({"chat_template": "{{ old }}"}))
    recipe = recipes.models("linear", family.base, family.experts, W, chat_template=LITERAL, parameters=W)
    out = mp.merge(recipe)
    assert transformers.AutoTokenizer.from_pretrained(out).chat_template == LITERAL
    assert json.loads((out / "tokenizer_config.json").read_text())["chat_template"] == LITERAL
    assert not any("old" in p.read_text() for p in out.glob("chat*"))
    mp.ok("verify", out)
    mp.ok("replay", out, mp.root / "again")
    assert checkpoints.digests(out, ignore=("mergepipe_manifest.json",)) == checkpoints.digests(mp.root / "again", ignore=("mergepipe_manifest.json",))


def test_without_the_key_the_donors_template_stays(mp, family, torch, transformers):  # noqa: F811
    tokenizer(family.base, torch, transformers, "{{ old }}")
    assert merged_template(mp, family, transformers, None) == "{{ old }}"


def test_auto_takes_the_most_common_template(mp, family, torch, transformers):  # noqa: F811
    for path, template in zip((family.base, *family.experts), ("{{ a }}", " {{ b }}", {"default": "{{ b }}\n", "x": "{{ a }}"}, "{{ c }}")):
        tokenizer(path, torch, transformers, template, save_jinja_files=path != family.experts[1])
    assert merged_template(mp, family, transformers, "auto") == "{{ b }}"


def test_auto_takes_the_first_of_equally_common_ones(mp, family, torch, transformers):  # noqa: F811
    for path, template in zip(family.experts, ("{{ b }}", "{{ a }}", "{{ c }}")):
        tokenizer(path, torch, transformers, template)
    assert merged_template(mp, family, transformers, "auto", base=False) == "{{ b }}"


def test_auto_without_any_template_leaves_the_tokenizer_alone(mp, family):
    report = mp.report(recipes.models("linear", family.base, family.experts, W, chat_template="auto", parameters=W))
    assert "no model has a chat template" in json.dumps(report["warnings"])
    assert not (mp.root / "out1/chat_template.jinja").exists()


def test_a_template_is_part_of_the_plan(mp, family):
    digests = {mp.report(recipes.models("linear", None, family.experts, W, chat_template=t))["plan_digest"] for t in (None, "chatml", "llama3")}
    assert len(digests) == 3


def test_a_model_without_a_tokenizer_config_gets_the_file_and_a_warning(mp):
    family = families.make(mp.root)
    out = mp.fresh("out")
    report = mp.ok("merge", mp.recipe(recipes.models("linear", None, family.experts, W, chat_template="chatml")), out, "--json").json
    assert "tokenizer_config.json" in json.dumps(report["warnings"]) and (out / "chat_template.jinja").exists()


def test_a_single_file_has_no_chat(mp):
    family = families.make(mp.root, layout="file")
    mp.refuse(recipes.models("linear", None, family.experts, W, chat_template="chatml"), "chat_template", "one file")
