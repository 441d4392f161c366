"""``horovod.keras`` is ``hora.keras``."""

from __future__ import annotations

import hora.keras as _hora
from hora.keras import *  # noqa: F403

from . import callbacks, elastic, older  # type: ignore[no-redef]  # reached as attributes by scripts

__all__ = [*_hora.__all__, "callbacks", "elastic", "older"]

older.understand()
