"""One word an idea: no two public classes of Hora share a name."""

from __future__ import annotations

import ast
import collections
from pathlib import Path

_SOURCES = Path(__file__).parents[2] / "src" / "hora"
# Horovod's names, which every front-end has, and the class by which a workload's options are found.
_MAY_BE_SHARED = {"BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor", "Options"}


def test_no_two_public_classes_share_a_name() -> None:
    found: dict[str, list[str]] = collections.defaultdict(list)
    for path in _SOURCES.rglob("*.py"):
        if "as_horovod" in path.parts:
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in _MAY_BE_SHARED:
                found[node.name].append(str(path.relative_to(_SOURCES)))
    assert len(found) > 100
    shared = {name: where for name, where in found.items() if len(where) > 1}
    assert not shared, f"give each a name that says what it is (the glossary is in ARCHITECTURE.md): {shared}"
