"""``tf.IndexedSlices``, which embeddings have for gradients: rows of a large tensor, and which rows they are.

They are reduced by gathering everybody's rows and indices. Together those stand for the sum: TensorFlow adds up rows of
equal index wherever it uses them. That is after they are scaled, so integers that are averaged become real numbers, as
in Horovod: rounded one by one, they would not add up to the average.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hora.engine.process_set import ProcessSet
from hora.errors import UnsupportedError
from hora.tensorflow.adapter import plain
from hora.tensorflow.compression import Compressor
from hora.types import ReduceOp, Reduction

__all__ = ["Slices", "check_slices"]


def check_slices(how: Reduction) -> None:
    """Refuse operations that gathering does not do."""
    if how.op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise UnsupportedError(
            f"allreduce of tf.IndexedSlices with op={how.op.name.capitalize()}. Slices of different ranks are added up"
            " where their indices are equal. Use op=Sum or op=Average, or tf.convert_to_tensor(slices)"
            " (sparse_as_dense=True of an optimizer or a tape)."
        )


class Slices:
    """Several slices on their way: ``sent`` are the tensors to gather as one group."""

    def __init__(self, slices: Sequence[Any], compression: type[Compressor]) -> None:
        self._slices, self._compression = slices, compression
        packed = [compression.compress(plain(part.values)) for part in slices]
        self._contexts = [context for _, context in packed]
        self.sent = [*(values for values, _ in packed), *(plain(part.indices) for part in slices)]

    def combined(self, gathered: Sequence[Any], how: Reduction, process_set: ProcessSet) -> list[Any]:
        """The slices of all ranks together."""
        check_slices(how)
        factor = how.prescale * how.postscale / (process_set.size() if how.op is ReduceOp.AVERAGE else 1)
        n = len(self._slices)
        result = []
        for part, context, values, indices in zip(
            self._slices, self._contexts, gathered[:n], gathered[n:], strict=True
        ):
            whole = self._compression.decompress(values, context)
            if factor != 1:
                real = tf.truediv(whole, tf.ones([], whole.dtype))  # which type that is, TensorFlow knows
                whole = tf.cast(tf.cast(real, tf.float64) * factor, real.dtype)
            result.append(tf.IndexedSlices(whole, indices, dense_shape=part.dense_shape))
        return result
