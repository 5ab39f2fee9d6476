"""The real mergekit, run in this process."""

import contextlib
import json
import os

import yaml

import checkpoints
import randomness
import recipes

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

import torch  # noqa: E402
from click.testing import CliRunner  # noqa: E402
from mergekit.config import MergeConfiguration  # noqa: E402
from mergekit.io.tasks import LoaderCache  # noqa: E402
from mergekit.merge import run_merge  # noqa: E402
from mergekit.merge_methods import generalized_task_arithmetic as task_vectors  # noqa: E402
from mergekit.options import MergeOptions  # noqa: E402
from mergekit.scripts import multimerge  # noqa: E402

torch.set_num_threads(1)


def merge(folder, recipe, out, **options):
    """Merges a recipe whose paths are relative to folder; yields the stored tensors and config.json."""
    LoaderCache().loaders.clear()  # it knows models by their relative names only
    with contextlib.chdir(folder), our_random_numbers(options.get("random_seed", 0)):
        config = MergeConfiguration.model_validate(yaml.safe_load(recipes.text(recipe)))
        defaults = dict(quiet=True, copy_tokenizer=False, write_model_card=False, random_seed=0)
        run_merge(config, str(out), MergeOptions(**defaults | options))
    return checkpoints.read_checkpoint(out), json.loads((out / "config.json").read_text())


def merge_stages(folder, text, out, named):
    """Merges a stream of recipes with mergekit-multi; named stages go below `named`."""
    LoaderCache().loaders.clear()
    flags = ["-I", str(named), "--out-path", str(out), "--no-copy-tokenizer", "--no-write-model-card", "--quiet"]
    with contextlib.chdir(folder), our_random_numbers():
        out.parent.mkdir(parents=True, exist_ok=True)
        recipe = out.parent / "stages.yml"
        recipe.write_text(text)
        run = CliRunner().invoke(multimerge.main, [str(recipe), *flags], catch_exceptions=False)
    assert run.exit_code == 0, run.output


@contextlib.contextmanager
def our_random_numbers(seed=0):
    """mergekit draws from mergepipe's numbers (docs/design.md) instead of one stream in the order of its work.

    It decides by itself with which chance each element stays, so ranks, masks and all that follows can be compared.
    """
    tensor, expert = [""], [0]
    merge_group = task_vectors.GeneralizedTaskArithmeticMerge.merge_group
    sparsify, bernoulli = task_vectors.sparsify, torch.bernoulli

    def noted_group(self, group, **parameters):
        tensor[0], expert[0] = group.metadata.name, 0
        return merge_group(self, group, **parameters)

    def noted_sparsify(*args, **kwargs):
        result = sparsify(*args, **kwargs)
        expert[0] += 1
        return result

    def drawn(chances, **_):
        if not ((chances >= 0) & (chances <= 1)).all():
            raise RuntimeError("a chance lies between 0 and 1")  # as torch says
        numbers = randomness.uniform(randomness.stream(seed, expert[0], tensor[0]), tuple(chances.shape))
        return (torch.from_numpy(numbers) < chances).to(chances.dtype)

    task_vectors.GeneralizedTaskArithmeticMerge.merge_group = noted_group
    task_vectors.sparsify, torch.bernoulli = noted_sparsify, drawn
    try:
        yield
    finally:
        task_vectors.GeneralizedTaskArithmeticMerge.merge_group = merge_group
        task_vectors.sparsify, torch.bernoulli = sparsify, bernoulli
