"""Horovod's names for Hora, for scripts that are not to be changed. Every module here only passes names on."""

from __future__ import annotations

from hora.launch.function import run

__version__ = "0.28.1"  # the release whose interface is offered

__all__ = ["__version__", "run"]
