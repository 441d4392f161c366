"""Between TensorFlow's tensors and numpy arrays over the same memory: the only file that knows both.

Promises: a tensor in host memory is read where it lies, and a result becomes a tensor without being copied. A tensor of
another device is copied to the host, and its result back to that device. What cannot be carried is refused before
anything is sent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from hora.errors import UsageError
from hora.ops import host
from hora.ops.host import ALIGNMENT, Array, address_of
from hora.types import DType

__all__ = ["as_array", "as_tensor", "dtype_of", "like", "plain"]

DTYPES: dict[Any, DType] = {getattr(tf, dtype.name.lower()): dtype for dtype in DType}
DTYPES |= {dtype: host.dtype_of(np.empty(0, dtype.as_numpy_dtype)) for dtype in (tf.uint16, tf.uint32)}

_BITS_OF_BFLOAT16 = np.dtype("uint16")


def plain(tensor: Any) -> Any:
    """What was given as a tensor: variables, arrays and numbers are turned into one.

    >>> plain([1.0, 2.0]).dtype.name
    'float32'
    """
    if isinstance(tensor, tf.Tensor):
        return tensor
    try:
        return tf.convert_to_tensor(tensor)
    except (TypeError, ValueError) as reason:
        raise UsageError(
            f"a {type(tensor).__name__} was given where a tf.Tensor is needed. Collectives carry tensors. Use"
            " broadcast_object or allgather_object for other objects."
        ) from reason


def dtype_of(tensor: Any) -> DType:
    """The engine's element type of a tensor, or the one that it is reduced in; refuses what it cannot carry.

    >>> dtype_of(tf.zeros(3, tf.bfloat16)).name
    'BFLOAT16'
    """
    try:
        return DTYPES[tensor.dtype]
    except KeyError:
        pass
    if tensor.dtype.is_complex:
        fix = "Use tf.math.real and tf.math.imag"
    elif tensor.dtype.is_integer:
        fix = "Convert with tf.cast(tensor, tf.int64) to reduce it, or tf.bitcast it to a signed type of its size"
    elif tensor.dtype.is_floating:
        fix = "Convert with tf.cast(tensor, tf.bfloat16) to reduce it, or tf.bitcast it to tf.uint8 to move it"
    else:
        fix = "Use broadcast_object or allgather_object"
    known = ", ".join(dtype.name for dtype in DTYPES)
    raise UsageError(f"a tensor of {tensor.dtype.name} was given. Hora carries {known}. {fix}.")


def as_array(tensor: Any) -> Array:
    """The tensor's own memory, if it is the host's; not to be written to.

    >>> tensor = tf.constant([1.0, 2.0])
    >>> as_array(tensor).ctypes.data == as_array(tensor).ctypes.data
    True
    """
    array = tensor.__array__()
    return array if isinstance(array, np.ndarray) else np.asarray(array)  # a tensor without dimensions gives a number


def as_tensor(array: Array) -> Any:
    """A tensor over the array's memory, which it keeps alive; a copy, if that does not begin at a multiple of 64.

    TensorFlow takes other memory as well, and ends the process when it comes to use it.

    >>> as_tensor(np.array([1.5, 2.5], "float32")).numpy().tolist()
    [1.5, 2.5]
    """
    if address_of(array) % ALIGNMENT:
        return tf.convert_to_tensor(array)
    if array.dtype.name == "bfloat16":  # numpy's DLPack does not know it
        return tf.bitcast(_adopt(array.view(_BITS_OF_BFLOAT16)), tf.bfloat16)
    return _adopt(array)


def _adopt(array: Array) -> Any:
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def like(result: Any, given: Any) -> Any:
    """The result on the device of what was given."""
    device = given.device
    if "GPU" not in device and "TPU" not in device:
        return result
    with tf.device(device):
        return tf.identity(result)
