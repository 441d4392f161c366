"""Packages that only some data sets need, imported when they are."""

from __future__ import annotations

import importlib
from typing import Any

from hora.errors import EnvironmentUnfit

__all__ = ["need"]


def need(module: str, purpose: str) -> Any:
    """The module; if it cannot be imported, what it is needed for and how to get it.

    >>> need("no_such_module", "to read minds")
    Traceback (most recent call last):
    hora.errors.EnvironmentUnfit: no_such_module is needed to read minds, but cannot be imported (No module named ...
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise EnvironmentUnfit(
            f"{module.partition('.')[0]} is needed {purpose}, but cannot be imported ({error}). Install it with: pip "
            "install hora[data]"
        ) from None
