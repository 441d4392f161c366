"""``horovod.tensorflow.keras`` is ``hora.keras``: Keras 3 is one package, whichever name it is imported by."""

from __future__ import annotations

import hora.keras as _hora
from hora.keras import *  # noqa: F403

from ...keras import older
from . import callbacks, elastic  # type: ignore[no-redef]  # reached as attributes by scripts

__all__ = [*_hora.__all__, "callbacks", "elastic"]

older.understand()
