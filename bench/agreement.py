"""Compares a few tensors of two merges of one base: agreement.py BASE OURS THEIRS

Prints one JSON object: the share of stored values that differ, the share that differ by more than neighbouring
bfloat16 values do, the largest difference, and the deviation relative to the update, |ours - theirs| / |ours - base|.
"""
import json
import os
import sys

import torch
from safetensors import safe_open

SAMPLE = [
    "model.embed_tokens.weight",
    "model.layers.0.input_layernorm.weight",
    "model.layers.3.self_attn.q_proj.weight",
    "model.layers.5.mlp.down_proj.weight",
    "model.layers.8.self_attn.v_proj.weight",
    "lm_head.weight",
]


def find(folder, name):
    for file in sorted(os.listdir(folder)):
        if file.endswith(".safetensors"):
            with safe_open(os.path.join(folder, file), framework="pt") as shard:
                if name in shard.keys():
                    return shard.get_tensor(name)
    raise SystemExit(f"{folder}: has no tensor '{name}'")


def rank(stored):
    """Position among all bfloat16 values, so that neighbours differ by one."""
    bits = stored.contiguous().view(torch.int16).to(torch.int32)
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def main():
    base_folder, ours_folder, theirs_folder = sys.argv[1:]
    count = differing = apart = 0
    largest = distance = update = 0.0
    for name in SAMPLE:
        base, ours, theirs = (find(folder, name) for folder in (base_folder, ours_folder, theirs_folder))
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            raise SystemExit(f"tensor '{name}': {ours.dtype} {ours.shape} beside {theirs.dtype} {theirs.shape}")
        steps = (rank(ours) - rank(theirs)).abs()
        count += steps.numel()
        differing += int((steps > 0).sum())
        apart += int((steps > 1).sum())
        difference = ours.float() - theirs.float()
        largest = max(largest, float(difference.abs().max()))
        distance += float(difference.square().sum(dtype=torch.float64))
        update += float((ours.float() - base.float()).square().sum(dtype=torch.float64))
    print(
        json.dumps(
            {
                "values": count,
                "differing_share": differing / count,
                "apart_share": apart / count,
                "largest_difference": largest,
                "relative_to_update": (distance / update) ** 0.5,
            }
        )
    )


main()
