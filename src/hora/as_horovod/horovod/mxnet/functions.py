"""``horovod.mxnet.functions``."""

from __future__ import annotations

from hora.mxnet import allgather_object, broadcast_object

__all__ = ["allgather_object", "broadcast_object"]
