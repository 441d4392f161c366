"""Batch normalisation over the batches of all ranks together: a Keras layer, on TensorFlow.

Promises: in training, N ranks compute what one process would compute on the concatenation of their batches: outputs,
moving statistics and gradients, however uneven the batches are, down to an empty one. One small allreduce forward, one
backward. Otherwise it is Keras's own layer. To load a model that has it, import this module first; a process set is not
saved: a loaded layer takes all ranks.

The gradients of gamma and beta are those of this rank's batch, as with any other layer: the optimizer or tape reduces
them.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from hora.engine import session
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import EnvironmentUnfit, UsageError
from hora.ops.call import Call
from hora.ops.numbering import name_of
from hora.tensorflow import gradients
from hora.tensorflow.surface import plainly
from hora.types import Kind, ReduceOp, Reduction

__all__ = ["SyncBatchNormalization"]


@keras.saving.register_keras_serializable(package="hora")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc, unused-ignore]
    """Takes the place of ``keras.layers.BatchNormalization`` and takes its arguments.

    Args:
        process_set: The ranks whose batches are normalised together; all of them unless given.

    >>> import hora.tensorflow as hvd
    >>> hvd.init()
    >>> layer = hvd.SyncBatchNormalization(epsilon=0.0)
    >>> layer(tf.constant([[0.0], [2.0]]), training=True).numpy().tolist()
    [[-1.0], [1.0]]
    >>> hvd.shutdown()
    """

    def __init__(self, *args: Any, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        if kwargs.pop("fused", None):
            raise UsageError(
                "SyncBatchNormalization with fused=True. TensorFlow's fused operation computes statistics of one rank's"
                " batch. Leave it out."
            )
        if keras.config.backend() != "tensorflow":
            raise EnvironmentUnfit(
                f"hora.tensorflow.SyncBatchNormalization while Keras runs on {keras.config.backend()}. It computes on"
                " TensorFlow's tensors. Set KERAS_BACKEND=tensorflow before keras is imported."
            )
        super().__init__(*args, **kwargs)
        self._hora_process_set = process_set

    def _moments(self, inputs: Any, mask: Any) -> Any:
        process_set = self._hora_process_set
        known = session.is_initialized() and not isinstance(inputs, keras.KerasTensor)
        if not known or (process_set.size() == 1 and not session.may_grow()):
            return super()._moments(inputs, mask)
        return _moments(inputs, mask, self._reduction_axes, name_of(self, "sync_batch_norm", process_set), process_set)


@plainly
def _moments(inputs: Any, mask: Any, axes: list[int], name: str, process_set: ProcessSet) -> tuple[Any, Any]:
    """Mean and variance per channel over all ranks, in the type of the inputs.

    What is summed over the ranks is [values, squares, count], in float64: of inputs of 32 bits that loses nothing. Of
    float64 inputs it loses what lies below mean² / 10^16.
    """
    if mask is None:
        weights = tf.ones_like(inputs)
    else:
        weights = tf.broadcast_to(tf.cast(mask, inputs.dtype)[..., tf.newaxis], tf.shape(inputs))
    count = tf.reduce_sum(weights, axes)
    own_mean = tf.math.divide_no_nan(tf.reduce_sum(inputs * weights, axes), count)
    around = tf.square(inputs - _spread(own_mean, inputs, axes)) * weights
    wide = tf.cast(tf.stack([own_mean, tf.math.divide_no_nan(tf.reduce_sum(around, axes), count), count]), tf.float64)
    mean, var, n = wide[0], wide[1], wide[2]
    own = tf.stack([mean * n, (var + tf.square(mean)) * n, n])
    call = Call(Kind.ALLREDUCE, name, process_set, Reduction(ReduceOp.SUM))
    (total,) = gradients.carry(call, [own]).tensors
    everything = tf.maximum(total[2], 1.0)
    mean = total[0] / everything
    variance = tf.maximum(total[1] / everything - tf.square(mean), 0.0)
    return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


def _spread(per_channel: Any, inputs: Any, axes: list[int]) -> Any:
    """One number a channel in a shape that can be combined with the inputs."""
    shape = [1 if axis in axes else -1 for axis in range(inputs.shape.rank)]
    return tf.reshape(per_channel, shape)
