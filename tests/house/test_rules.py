"""The house rules that a linter does not know. Layers and pickles are import-linter's; these are about files."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "hora"
LONGEST_PYTHON_FILE = 500  # lines: what can be read in a sitting
LONGEST_C_FILE = 800
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
READS_ENVIRONMENT = {"config/env.py"}
# What stands in for Horovod has Horovod's module names, and its helpers that change the environment for a test.
SHIM = SOURCE / "as_horovod"


def modules() -> dict[str, Path]:
    return {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}


def test_every_module_says_what_it_owns() -> None:
    trees = {name: ast.parse(path.read_text()) for name, path in modules().items()}
    # An empty package file has nothing to say.
    assert [name for name, tree in trees.items() if tree.body and not ast.get_docstring(tree)] == []


def test_every_file_can_be_read_in_a_sitting() -> None:
    limits = dict.fromkeys(modules().values(), LONGEST_PYTHON_FILE)
    limits |= dict.fromkeys((ROOT / "native").rglob("*.[ch]"), LONGEST_C_FILE)
    lines = {path: len(path.read_text().splitlines()) for path in limits}
    assert {str(path.relative_to(ROOT)): n for path, n in lines.items() if n > limits[path]} == {}


def test_no_name_is_vague() -> None:
    ours = [path for path in modules().values() if SHIM not in path.parents]
    assert [path for path in ours if VAGUE_NAMES & {path.stem, *path.relative_to(SOURCE).parts}] == []


def test_only_one_module_reads_the_environment() -> None:
    found = []
    for name, path in modules().items():
        if SHIM in path.parents:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "environb" | "getenv" | "putenv"):
                    found.append(f"{name}:{node.lineno}")
                case ast.ImportFrom(module="os", names=names) if {"environ", "getenv"} & {
                    alias.name for alias in names
                }:
                    found.append(f"{name}:{node.lineno}")
    assert [place for place in found if place.rpartition(":")[0] not in READS_ENVIRONMENT] == []
