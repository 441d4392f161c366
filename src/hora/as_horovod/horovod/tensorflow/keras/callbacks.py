"""``horovod.tensorflow.keras.callbacks``."""

from __future__ import annotations

from ...common.keras_callbacks import *  # noqa: F403
from ...common.keras_callbacks import __all__ as __all__
