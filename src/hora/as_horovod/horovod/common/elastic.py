"""``horovod.common.elastic``."""

from __future__ import annotations

from hora.elastic.run import run_fn
from hora.elastic.state import ObjectState, State

__all__ = ["ObjectState", "State", "run_fn"]
