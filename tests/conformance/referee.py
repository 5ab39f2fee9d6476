"""The real mergekit, run in this process."""

import contextlib
import json
import os

import yaml

import checkpoints
import recipes

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

import torch  # noqa: E402
from mergekit.config import MergeConfiguration  # noqa: E402
from mergekit.io.tasks import LoaderCache  # noqa: E402
from mergekit.merge import run_merge  # noqa: E402
from mergekit.merge_methods import generalized_task_arithmetic as task_vectors  # noqa: E402
from mergekit.options import MergeOptions  # noqa: E402

torch.set_num_threads(1)


def merge(folder, recipe, out, **options):
    """Merges a recipe whose paths are relative to folder; yields the stored tensors and config.json."""
    LoaderCache().loaders.clear()  # it knows models by their relative names only
    with contextlib.chdir(folder):
        config = MergeConfiguration.model_validate(yaml.safe_load(recipes.text(recipe)))
        defaults = dict(quiet=True, copy_tokenizer=False, write_model_card=False, random_seed=0)
        run_merge(config, str(out), MergeOptions(**defaults | options))
    return checkpoints.read_checkpoint(out), json.loads((out / "config.json").read_text())


@contextlib.contextmanager
def drawing(masks):
    """Random methods keep what `masks` says: by model and tensor, which elements stay.

    mergekit draws one global stream in the order of its work; here each draw is answered with the elements that the other side kept, so
    that the arithmetic can be compared exactly.
    """
    group_now, turn = [], []
    merge_group = task_vectors.GeneralizedTaskArithmeticMerge.merge_group
    sparsify = task_vectors.sparsify
    bernoulli = torch.bernoulli

    def noted_group(self, group, **parameters):
        group_now[:] = [group.metadata.name, [str(entry.id) for entry in group.non_base]]
        turn[:] = [0]
        return merge_group(self, group, **parameters)

    def noted_sparsify(*args, **kwargs):
        result = sparsify(*args, **kwargs)
        turn[0] += 1
        return result

    def drawn(probabilities, **_):
        name, models = group_now
        return torch.from_numpy(masks[models[turn[0]]][name]).to(probabilities.dtype)

    task_vectors.GeneralizedTaskArithmeticMerge.merge_group = noted_group
    task_vectors.sparsify = noted_sparsify
    torch.bernoulli = drawn
    try:
        yield
    finally:
        task_vectors.GeneralizedTaskArithmeticMerge.merge_group = merge_group
        task_vectors.sparsify = sparsify
        torch.bernoulli = bernoulli
