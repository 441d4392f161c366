"""``horovod.tensorflow.compression``."""

from __future__ import annotations

from hora.tensorflow.compression import *  # noqa: F403
from hora.tensorflow.compression import Compression

__all__ = ["Compression"]
