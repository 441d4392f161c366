"""Between Keras's tensors and Hora: the only file that knows which backend Keras runs on.

Values and variables go through the host as numpy arrays, on every backend alike. Gradients do not: they are handed to
the front-end of the framework that computed them (``hora.tensorflow``, ``hora.torch``, ``hora.jax``), which is imported
when the first of them comes. All gradients of a call travel as one group, so that no rank can wait for a gradient that
another has put behind one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from hora.engine.process_set import ProcessSet
from hora.errors import EnvironmentUnfit, UsageError
from hora.ops.resolve import Reduction

__all__ = [
    "Array",
    "Journey",
    "allreduce_gradients",
    "from_numpy",
    "is_tensor",
    "on_host",
    "scaled",
    "to_numpy",
]

Array = np.ndarray[Any, np.dtype[Any]]

BACKENDS = ("tensorflow", "torch", "jax")


class Journey(NamedTuple):
    """How gradients travel: under which name, how they are combined, with whom, in which form."""

    name: str
    how: Reduction
    process_set: ProcessSet
    compression: Any = None  # a compressor of the backend's front-end; None: as they are
    sparse_as_dense: bool = False


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


def allreduce_gradients(gradients: Sequence[Any], journey: Journey) -> list[Any]:
    """The gradients, combined over the ranks; also inside a compiled step. None of them may be None."""
    backend = keras.config.backend()
    try:
        carry = _CARRIERS[backend]
    except KeyError:
        raise EnvironmentUnfit(
            f"Keras runs on the backend {backend!r}, which computes no gradients that Hora could carry. Set"
            f" KERAS_BACKEND to one of {', '.join(BACKENDS)} before keras is imported."
        ) from None
    return carry(gradients, journey)


def _on_torch(gradients: Sequence[Any], journey: Journey) -> list[Any]:
    """In place, on the gradients themselves."""
    import torch

    import hora.torch as hvd
    from hora.torch.compression import GradientCompressor

    name, how, process_set = journey.name, journey.how, journey.process_set
    compression = hvd.Compression.none if journey.compression is None else journey.compression
    with torch.no_grad():
        dense = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in gradients]
        if isinstance(compression, GradientCompressor):
            if how.prescale != 1.0 or how.postscale != 1.0:
                raise UsageError(
                    f"gradient_predivide_factor or backward_passes_per_step with compression={compression!r}. It"
                    " has a memory of what it left out, which must not be scaled. Leave one of them out."
                )
            finishes = [
                compression.start(f"{name}.{i}", gradient, how.op, process_set) for i, gradient in enumerate(dense)
            ]
            return [finish() for finish in finishes]
        if compression is hvd.Compression.none:
            return hvd.grouped_allreduce_(
                dense, name=name, op=how.op, prescale_factor=how.prescale, postscale_factor=how.postscale,
                process_set=process_set,
            )  # fmt: skip
        return hvd.grouped_allreduce(
            dense, name=name, compression=compression, op=how.op, prescale_factor=how.prescale,
            postscale_factor=how.postscale, process_set=process_set,
        )  # fmt: skip


def _on_tensorflow(gradients: Sequence[Any], journey: Journey) -> list[Any]:
    """Also inside ``tf.function``, where it is one operation of the graph."""
    from hora.tensorflow.compression import Compression
    from hora.tensorflow.reduce import reduce_gradients

    compression = Compression.none if journey.compression is None else journey.compression
    reduced: list[Any] = reduce_gradients(
        gradients, journey.how, journey.name, journey.process_set, compression, journey.sparse_as_dense
    )
    return reduced


def _on_jax(gradients: Sequence[Any], journey: Journey) -> list[Any]:
    """Also inside a compiled step, of which it is one call back to the host."""
    import hora.jax as hvd

    how = journey.how
    compression = hvd.Compression.none if journey.compression is None else journey.compression
    return hvd.grouped_allreduce(
        gradients, name=journey.name, compression=compression, op=how.op, prescale_factor=how.prescale,
        postscale_factor=how.postscale, process_set=journey.process_set,
    )  # fmt: skip


_CARRIERS: dict[str, Callable[[Sequence[Any], Journey], list[Any]]] = {
    "jax": _on_jax,
    "tensorflow": _on_tensorflow,
    "torch": _on_torch,
}
