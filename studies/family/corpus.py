"""Real text that a Debian machine has, as five domains with a held-out part.

Each domain is a sorted list of files.  Whether a file is held out depends only
on a hash of its name below the domain's root (version numbers removed), so the
split is the same on every machine that has the file.  A small sample of the
held-out files is kept in `heldout/`, one text per domain; losses are measured
on it, and no paragraph of it is ever trained on.

Run as a program, this module draws that sample anew.  Training does not: it
uses the sample that is there.
"""

import argparse
import glob
import gzip
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HELDOUT_DIR = Path(__file__).resolve().parent / "heldout"
HELDOUT_SHARE = 10  # one file in ten is held out
SAMPLE_BYTES = 64 * 1024  # size of a domain's held-out sample
SLICE_BYTES = 4 * 1024  # at most this much of the sample from one file
MAX_FILE_BYTES = 200_000  # larger files are tables, not text
MIN_BLOCK_CHARS = 40  # shorter blocks may repeat

BOS, EOS, PAD = 256, 257, 258
SPECIAL_TOKENS = {"<s>": BOS, "</s>": EOS, "<pad>": PAD}
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)

EMAIL = re.compile(r"[\w.+-]+@[\w-]+(\.[\w-]+)+")
VERSION = re.compile(r"-?\d[\d.]*")
BLANK_LINES = re.compile(r"\n\s*\n")


@dataclass(frozen=True)
class Source:
    """Files of one domain: patterns below a root, less what `skip` matches."""

    root: str
    patterns: tuple[str, ...]
    skip: str = r"(?!)"

    def files(self):
        """Yield (name, path) of every file, sorted by name."""
        found = {}
        for root in sorted(glob.glob(self.root)):
            for pattern in self.patterns:
                for path in Path(root).glob(pattern):
                    name = path.relative_to(root).as_posix()
                    if not re.search(self.skip, name):
                        found[name] = path
        for name, path in sorted(found.items()):
            if path.is_file() and not path.is_symlink():
                yield name, path


DOMAINS = {
    "manpages": Source("/usr/share/man", ("man[2-8]/*.[2-8].gz",)),
    "licences": Source("/usr/share", ("common-licenses/*", "doc/*/copyright")),
    "headers": Source(
        "/usr/include",
        ("*.h", "linux/**/*.h", "asm-generic/*.h", "net*/*.h",
         "*-linux-gnu/bits/**/*.h", "*-linux-gnu/sys/*.h"),
    ),
    "python": Source(
        "/usr/lib/python3.*", ("**/*.py",),
        skip=r"(^|/)(dist-packages|tests?|idlelib|lib2to3)/|encodings/",
    ),
    "perl": Source(
        "/usr/share/perl/5.*.*", ("**/*.pm",),
        skip=r"^(unicore|Unicode/Collate|Module/CoreList|pod)",
    ),
}


def read_text(path):
    """Return a file's text without e-mail addresses, "" if it is no text."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        return ""
    try:
        return EMAIL.sub("user@example.org", data.decode("utf-8"))
    except UnicodeDecodeError:
        return ""


def is_held_out(name):
    """Say whether the file of this name belongs to the held-out part."""
    digest = hashlib.sha256(VERSION.sub("", name).encode()).digest()
    return digest[0] % HELDOUT_SHARE == 0


def block_key(block):
    """Return what makes two blocks of text the same: words, not spacing."""
    return " ".join(block.split())


def without_repeats(text, seen):
    """Drop the blocks of `text` that are in `seen`, and add the others to it.

    Blocks are separated by blank lines.  Short ones are always kept.
    """
    kept = []
    for block in BLANK_LINES.split(text):
        key = block_key(block)
        if len(key) >= MIN_BLOCK_CHARS:
            if key in seen:
                continue
            seen.add(key)
        kept.append(block)
    return "\n\n".join(kept)


def middle_slice(text):
    """Return whole lines from the second quarter of a text on."""
    start = text.find("\n", len(text) // 4) + 1
    stop = text.rfind("\n", start, start + SLICE_BYTES) + 1
    return text[start:stop]


def draw_heldout(domain):
    """Return (text, file names) of a fresh held-out sample of one domain."""
    names, text, seen = [], "", set()
    files = [f for f in DOMAINS[domain].files() if is_held_out(f[0])]
    by_hash = sorted(files, key=lambda f: hashlib.md5(f[0].encode()).digest())
    for name, path in by_hash:
        piece = middle_slice(without_repeats(read_text(path), seen))
        if len(piece) < SLICE_BYTES // 4:
            continue
        text += piece
        names.append(name)
        if len(text.encode()) >= SAMPLE_BYTES:
            break
    return text.encode()[:SAMPLE_BYTES].decode(errors="ignore"), names


def write_heldout(directory=HELDOUT_DIR):
    """Draw the sample of every domain and write it, with its sources."""
    directory.mkdir(parents=True, exist_ok=True)
    sources = []
    for domain, source in DOMAINS.items():
        text, names = draw_heldout(domain)
        (directory / f"{domain}.txt").write_bytes(text.encode())
        sources += [f"{domain} ({source.root})"]
        sources += [f"  {name}" for name in names] + [""]
    (directory / "SOURCES").write_text("\n".join(sources))


def load_heldout(directory=HELDOUT_DIR):
    """Return {domain: bytes} of the held-out samples, in order."""
    return {d: (directory / f"{d}.txt").read_bytes() for d in DOMAINS}


def training_streams(heldout):
    """Return {domain: array of token ids}, documents between BOS and EOS.

    Held-out files, blocks that occur in the held-out sample and blocks that
    occurred before are left out.
    """
    seen = set()
    for sample in heldout.values():
        without_repeats(sample.decode(), seen)
    streams = {}
    for domain, source in DOMAINS.items():
        tokens = []
        for name, path in source.files():
            if is_held_out(name):
                continue
            text = without_repeats(read_text(path), seen).strip()
            if text:
                data = np.frombuffer(text.encode(), np.uint8)
                tokens += [[BOS], data.astype(np.int64), [EOS]]
        streams[domain] = np.concatenate(tokens)
    return streams


def main():
    parser = argparse.ArgumentParser(description="Draw the held-out sample.")
    parser.add_argument("--heldout", type=Path, default=HELDOUT_DIR)
    write_heldout(parser.parse_args().heldout)


if __name__ == "__main__":
    main()
