"""``horovod.tensorflow.sync_batch_norm``."""

from __future__ import annotations

from hora.tensorflow import SyncBatchNormalization

__all__ = ["SyncBatchNormalization"]
