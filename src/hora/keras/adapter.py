"""Between Keras's tensors and Hora: the only file that knows which backend Keras runs on.

Values and variables go through the host as numpy arrays, on every backend alike. Gradients do not: they are handed to
the front-end of the framework that computed them (``hora.tensorflow``, ``hora.torch``, ``hora.jax``), which is imported
when the first of them comes. All gradients of a call travel as one group, so that no rank can wait for a gradient that
another has put behind one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from hora.errors import EnvironmentUnfit
from hora.ops.compression import NoneCompressor, has_memory
from hora.ops.gradients import GradientRule
from hora.ops.steps import step_of

__all__ = [
    "Array",
    "allreduce_gradients",
    "from_numpy",
    "is_tensor",
    "on_host",
    "scaled",
    "to_numpy",
]

Array = np.ndarray[Any, np.dtype[Any]]

BACKENDS = ("tensorflow", "torch", "jax")


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of Keras's backend or a variable."""
    return isinstance(value, keras.Variable) or bool(keras.ops.is_tensor(value))


def to_numpy(value: Any) -> Array:
    """Any tensor-compatible value as an array; its memory may be the tensor's."""
    array: Array = np.asarray(keras.ops.convert_to_numpy(value) if is_tensor(value) else value)
    return array


def from_numpy(array: Array) -> Any:
    """The array as a tensor of the backend."""
    return keras.ops.convert_to_tensor(array)


def on_host(array: Array) -> Array:
    """The same bytes in a type that collectives can move: of unsigned integers, the signed ones of their size.

    >>> on_host(np.zeros(2, "uint32")).dtype.name, on_host(np.zeros(2, "float32")).dtype.name
    ('int32', 'float32')
    """
    return array.view(f"int{8 * array.itemsize}") if array.dtype.kind == "u" and array.itemsize > 1 else array


def scaled(gradient: Any, factor: float) -> Any:
    """The gradient times a number; TensorFlow's sparse ones, which are no tensors, by their values."""
    if hasattr(gradient, "indices") and hasattr(gradient, "dense_shape"):
        return type(gradient)(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def allreduce_gradients(gradients: Sequence[Any], name: str, rule: GradientRule) -> list[Any]:
    """The gradients, combined over the ranks; also inside a compiled step. None of them may be None."""
    backend = keras.config.backend()
    try:
        carry = _CARRIERS[backend]
    except KeyError:
        raise EnvironmentUnfit(
            f"Keras runs on the backend {backend!r}, which computes no gradients that Hora could carry. Set"
            f" KERAS_BACKEND to one of {', '.join(BACKENDS)} before keras is imported."
        ) from None
    return carry(gradients, name, rule)


def _on_torch(gradients: Sequence[Any], name: str, rule: GradientRule) -> list[Any]:
    """In place, on the gradients themselves."""
    import torch

    import hora.torch as hvd

    how, ranks, compression = rule.how, rule.process_set, rule.compression
    with torch.no_grad(), step_of(name, done=True):
        dense = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in gradients]
        if has_memory(compression):
            finishes = [compression.start(f"{name}.{i}", gradient, how.op, ranks) for i, gradient in enumerate(dense)]
            return [finish() for finish in finishes]
        options: dict[str, Any] = {"op": how.op, "prescale_factor": how.prescale, "postscale_factor": how.postscale}
        if compression is NoneCompressor:
            return hvd.grouped_allreduce_(dense, name=name, process_set=ranks, **options)
        return hvd.grouped_allreduce(dense, name=name, process_set=ranks, compression=compression, **options)


def _on_tensorflow(gradients: Sequence[Any], name: str, rule: GradientRule) -> list[Any]:
    """Also inside ``tf.function``, where it is one operation of the graph."""
    from hora.tensorflow.reduce import reduce_gradients

    reduced: list[Any] = reduce_gradients(
        gradients, rule.how, name, rule.process_set, rule.compression, rule.sparse_as_dense
    )
    return reduced


def _on_jax(gradients: Sequence[Any], name: str, rule: GradientRule) -> list[Any]:
    """Also inside a compiled step, of which it is one call back to the host."""
    import hora.jax as hvd

    how = rule.how
    return hvd.grouped_allreduce(
        gradients, name=name, compression=rule.compression, op=how.op, prescale_factor=how.prescale,
        postscale_factor=how.postscale, process_set=rule.process_set,
    )  # fmt: skip


_CARRIERS: dict[str, Callable[[Sequence[Any], str, GradientRule], list[Any]]] = {
    "jax": _on_jax,
    "tensorflow": _on_tensorflow,
    "torch": _on_torch,
}
