"""``horovod.tensorflow.keras`` is ``hora.keras``: Keras 3 is one package, whichever name it is imported by."""

from __future__ import annotations

from importlib import import_module

import hora.keras as _hora
from hora.keras import *  # noqa: F403

from ...common import older
from ...common.basics import sycl_built

# Hora has modules of these names too, which an ordinary import would find in their place.
callbacks, elastic = (import_module(f"{__name__}.{name}") for name in ("callbacks", "elastic"))

__all__ = [*_hora.__all__, "callbacks", "elastic", "sycl_built"]

older.understand()
