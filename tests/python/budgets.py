"""Budgeted merges: how tests run them, what a block is, and what an omission means, from the definitions alone.

A mask is a tuple of booleans, one for each block of one tensor of one expert; True: it was read.
"""

import ctypes
import itertools
import json
import mmap
import os
import re
import subprocess
from pathlib import Path

import numpy as np

import checkpoints
import families
import oracle
import program
from checkpoints import Tensor

BLOCK = 16 << 10
BLOCKS = ("--block-size", "16KiB")
POLICIES = ("gram", "norm", "uniform", "fair", "random")
SIZE = dict(layers=2, hidden=64, inner=160, vocab=256)  # tensors of 1 to 4 blocks in F32, 0.5 MB in all
FAMILY = program.ROOT / "examples/family"
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


# --- families --------------------------------------------------------------------------------------------------------


def cuts(reference):
    """The blocks of a tensor as slices over its elements: 16 KiB of what the reference stores; the last is shorter."""
    step, n = BLOCK // BYTES[reference.dtype], reference.bits.size
    return [slice(i, min(i + step, n)) for i in range(0, n, step)]


def uneven_tune(base, seed, size=2e-3, dtype=None):
    """The base plus a delta whose size differs from block to block by powers of ten, as fine-tunes' do."""
    random, out = np.random.default_rng(seed), {}
    for name, t in base.items():
        delta = random.standard_normal(t.bits.size) * size
        for cut in cuts(t):
            delta[cut] *= random.pareto(1.2) + 0.05
        moved = t.values(np.float64) + delta.reshape(t.shape)
        out[name] = Tensor.of(checkpoints.dtype_of(name, dtype) if dtype else t.dtype, moved)
    return out


def make(root, dtype="F32", layout="single", experts=3, seed=1, expert_dtype=None, **size):
    """A random Llama-shaped base and uneven fine-tunes of it."""
    base = checkpoints.llama(seed, dtype, **(SIZE | size))
    tuned = [uneven_tune(base, 300 * seed + i, dtype=expert_dtype) for i in range(experts)]
    return families.write(root, base, tuned, layout)


def real():
    """The trained family of examples/family."""
    experts = [FAMILY / "experts" / n for n in ("manpages", "licences", "headers", "python", "perl")]
    return families.Family(FAMILY / "base", experts)


# --- running ---------------------------------------------------------------------------------------------------------


def analyze(mp, family, *flags):
    return mp.ok("analyze", family.base, *family.experts, *BLOCKS, *flags)


def plan(mp, recipe, *flags):
    return mp.ok("plan", mp.recipe(recipe), "--json", *BLOCKS, *flags).json


def whole(mp, recipe, *flags):
    """Expert bytes that the full read of a recipe fetches, nothing being known of the experts."""
    return plan(mp, recipe, "--catalog", mp.root / "nothing.db", *flags)["expert_read_bytes"]


def merge_to(mp, recipe, *flags):
    """Merges; yields the report and the output folder."""
    out = mp.fresh("out")
    return mp.ok("merge", mp.recipe(recipe), out, "--json", *BLOCKS, *flags).json, out


def merge(mp, recipe, *flags):
    """Merges; yields the report and the stored tensors."""
    told, out = merge_to(mp, recipe, *flags)
    return told, checkpoints.read_checkpoint(out)


def merge_watched(mp, recipe, *flags):
    """Merges under strace with the experts out of the page cache; yields the report and what was asked of each file: [(offset, bytes)]."""
    trace, out = mp.fresh("trace"), mp.fresh("out")
    calls = "trace=pread64,read,readv,preadv,preadv2"
    command = ["strace", "-ff", "-y", "-e", calls, "-o", trace, program.BINARY, "merge", mp.recipe(recipe), out, "--json", *BLOCKS, *flags]
    told = subprocess.run(list(map(str, command)), env=mp.env, cwd=mp.root, capture_output=True, text=True, timeout=300)
    assert told.returncode == 0, told.stderr
    asked = {}
    for part in trace.parent.glob(f"{trace.name}.*"):  # one file for each thread
        for path, offset, got in READ.findall(part.read_text(errors="replace")):
            asked.setdefault(Path(path), []).append((int(offset), int(got)))
    return json.loads(told.stdout), asked


READ = re.compile(r"pread64\(\d+<([^>]*)>.*, (\d+)\) += (\d+)$", re.MULTILINE)


def forget_pages(path):
    """Takes a file out of the page cache."""
    with open(path, "rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident_bytes(path):
    """How much of a file is in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = path.stat().st_size
    with open(path, "rb") as f, mmap.mmap(f.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as pages:
        pages_of = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        if libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), pages_of):
            raise OSError(ctypes.get_errno(), "mincore")
        return sum(p & 1 for p in pages_of) * mmap.PAGESIZE


def weights(out):
    return {n: d for n, d in checkpoints.digests(out).items() if n.endswith((".safetensors", ".index.json"))}


def ledger_faults(told, limit):
    """What is wrong with the ledger of a merge that may read so many bytes, as lines."""
    read, sampled = told["io"]["expert_read_bytes"], told["io"]["sample_read_bytes"]
    experts = told["experts"]
    laws = {
        f"{read} bytes read, {limit} allowed": read <= limit,
        f"budget_bytes is {told['budget_bytes']}, {limit} allowed": told["budget_bytes"] is not None and told["budget_bytes"] <= limit,
        f"{sampled} bytes sampled, {read} read in all": 0 <= sampled <= read,
        f"the experts' read bytes {[e['read_bytes'] for e in experts]} are not {read}": sum(e["read_bytes"] for e in experts) == read,
        "the experts' samples are not those of the merge": sum(e["sample_read_bytes"] for e in experts) == sampled,
        "the checkpoints' bytes are not those of the merge": sum(c["expert_read_bytes"] for c in told["io"]["checkpoints"]) == read,
        "an expert's omitted share of error is no share": all(
            e["omitted_error_share"] is None or -1e-9 <= e["omitted_error_share"] <= 1 + 1e-9 for e in experts
        ),
    }
    return [fault for fault, holds in laws.items() if not holds]


# --- deviations ------------------------------------------------------------------------------------------------------


def flat(tensors):
    """All values of a checkpoint as one vector."""
    return np.concatenate([tensors[n].values(np.float64).ravel() for n in sorted(tensors)])


def distance(a, b):
    return float(np.linalg.norm(flat(a) - flat(b)))


def deviation(got, full, base):
    """Relative to the update: 1 is no better than the base."""
    return distance(got, full) / distance(full, base)


# --- masks -----------------------------------------------------------------------------------------------------------


def omit(expert, base, mask):
    """An expert's tensor as a merge under a mask sees it: the base's values where nothing was read."""
    values, own = base.values().ravel().copy(), expert.values().ravel()
    for cut, read in zip(cuts(base), mask):
        if read:
            values[cut] = own[cut]
    return Tensor.of("F32", values.reshape(base.shape))


def masks_of(reference):
    """All masks of one tensor of one expert."""
    return list(itertools.product((True, False), repeat=len(cuts(reference))))


def bytes_of(mask, reference, expert):
    return sum((c.stop - c.start) * BYTES[expert.dtype] for c, read in zip(cuts(reference), mask) if read)


class Search:
    """Looks for the masks of a budgeted merge by trying all of them against the oracle, tensor by tensor.

    `see` makes of (expert's index, its tensor, the base's tensor, mask) what the merge sees; omit() where nothing else is given.
    Only for few blocks: a tensor of n blocks has 2^n masks for each expert.
    """

    def __init__(self, family, recipe, see=lambda i, expert, base, mask: omit(expert, base, mask)):
        self.family, self.recipe, self.see = family, recipe, see

    def matches(self, name, got):
        """Every combination of masks (one for each expert) under which the oracle gives what is stored."""
        base = self.family.load(self.family.base)[name]
        experts = [self.family.load(e)[name] for e in self.family.experts]
        seen = [{m: self.see(i, t, base, m) for m in masks_of(base)} for i, t in enumerate(experts)]
        found = []
        for masks in itertools.product(*seen):
            inputs = {str(self.family.base): {name: base}}
            inputs |= {str(e): {name: seen[i][m]} for i, (e, m) in enumerate(zip(self.family.experts, masks))}
            want = oracle.merge(self.recipe, lambda path: inputs[str(path)])[name]
            if oracle.fault(got[name], want) is None:
                found.append(masks)
        return found

    def all(self, got):
        return {name: self.matches(name, got) for name in got}

    def read_bytes(self, name, masks):
        base = self.family.load(self.family.base)[name]
        return sum(bytes_of(m, base, self.family.load(e)[name]) for m, e in zip(masks, self.family.experts))
