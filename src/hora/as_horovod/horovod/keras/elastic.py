"""``horovod.keras.elastic``."""

from __future__ import annotations

from ..common.keras_elastic import *  # noqa: F403
from ..common.keras_elastic import __all__ as __all__
