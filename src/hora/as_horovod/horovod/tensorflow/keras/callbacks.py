"""``horovod.tensorflow.keras.callbacks``."""

from __future__ import annotations

from ...keras.callbacks import *  # noqa: F403
from ...keras.callbacks import __all__ as __all__
