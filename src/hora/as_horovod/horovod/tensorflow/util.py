"""``horovod.tensorflow.util``: the helper that Horovod's TensorFlow tests import."""

from __future__ import annotations

import tensorflow as tf

__all__: list[str] = []


def _executing_eagerly() -> bool:
    """Whether operations run at once, instead of being put into a graph."""
    return bool(tf.executing_eagerly())
