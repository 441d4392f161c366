"""``horovod.torch.compression``."""

from __future__ import annotations

from hora.torch.compression import *  # noqa: F403
from hora.torch.compression import Compression

__all__ = ["Compression"]
