"""``horovod.tensorflow.keras.elastic``."""

from __future__ import annotations

from ...keras.elastic import *  # noqa: F403
from ...keras.elastic import __all__ as __all__
