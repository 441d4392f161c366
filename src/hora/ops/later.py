"""Names of a package that are imported when they are first asked for, because not every script uses them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["later"]


def later(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package that has ``names`` in the modules they are mapped to.

    A module is named as from inside the package (".optimizer"), or in full. A name that is the module itself is mapped
    to that module: {"elastic": ".elastic"}. The package shows a type checker imports of its own, which never run.
    """

    def __getattr__(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(names[name], package)
        value = module if names[name] == f".{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__, lambda: [*vars(sys.modules[package]), *names]
