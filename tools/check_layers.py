#!/usr/bin/env python3
"""Fails when a file includes a folder to its right: check_layers.py [ROOT]"""
import pathlib
import re
import sys

ORDER = "base kernels methods storage format tokenizer recipe catalog planner txn executor report api".split()
root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
faults = []
for path in sorted([*root.glob("src/**/*.h"), *root.glob("src/**/*.cc"), *root.glob("cli/*")]):
    folder = path.relative_to(root).parts[1] if path.relative_to(root).parts[0] == "src" else "cli"
    for included in re.findall(r'#include "([^"]+)"', path.read_text()):
        room = included.split("/")[0]
        allowed = room == "mergepipe" or room.endswith(".inc") or (folder == "cli" and "/" not in included)
        allowed = allowed or (room == "support" and path.stem.endswith("_test"))
        if not allowed and (folder == "cli" or room not in ORDER or ORDER.index(room) > ORDER.index(folder)):
            faults.append(f"{path}: {folder} may not include {included}")
HOMES = {"fmt/": "base", "xxhash.h": "base", "openssl/": "base", "nlohmann/": "format", "yaml-cpp/": "recipe", "sqlite3.h": "catalog", "CLI/": "cli"}
for path in sorted([*root.glob("src/**/*.h"), *root.glob("src/**/*.cc"), *root.glob("cli/*"), *root.glob("include/**/*.h")]):
    parts = path.relative_to(root).parts
    folder = parts[1] if parts[0] == "src" else parts[0]
    for included in re.findall(r"#include <([^>]+)>", path.read_text()):
        home = next((h for start, h in HOMES.items() if included.startswith(start)), folder)
        if home != folder:
            faults.append(f"{path}: <{included}> is included by {home} alone")
print("\n".join(faults) or "every include points to the left")
sys.exit(bool(faults))
