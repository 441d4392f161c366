"""``horovod.runner``: run a function in workers."""

from __future__ import annotations

from hora.launch.function import run

__all__ = ["run"]
