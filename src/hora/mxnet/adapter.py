"""Between MXNet's arrays and numpy's over the same memory: the only file that knows both.

MXNet computes in the background: an array's memory may be read once everything that writes to it has finished, and
written to once everything that reads it has. Both are waited for here; what is done with the memory afterwards is done
before the collective returns, so MXNet need not know of it. Arrays on a GPU go through host memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call

from hora.errors import UsageError
from hora.ops import host

__all__ = ["check", "fresh", "like", "put_back", "view"]

Array = np.ndarray[Any, np.dtype[Any]]


def check(tensor: Any) -> None:
    """Refuse what is no dense array."""
    if not isinstance(tensor, mx.nd.NDArray):
        raise UsageError(
            f"a {type(tensor).__name__} was given where an mxnet.nd.NDArray is needed. Collectives carry arrays. Use"
            " mx.nd.array(...), or broadcast_object / allgather_object for other objects."
        )
    if tensor.stype != "default":
        raise UsageError(
            f"an array of storage type {tensor.stype} was given. Collectives carry dense memory only. Convert with"
            " .tostype('default'); of a layer, leave out sparse_grad=True."
        )


def view(tensor: Any, write: bool = False) -> Array:
    """The array's memory as numpy's, once MXNet has done with it; a copy of what lies on a GPU.

    >>> tensor = mx.nd.zeros((2, 3))
    >>> view(tensor, write=True)[1, 2] = 5
    >>> float(tensor[1, 2].asscalar())
    5.0
    """
    check(tensor)
    if tensor.context.device_type == "gpu":
        copied: Array = tensor.asnumpy()
        return copied
    wait = _LIB.MXNDArrayWaitToWrite if write else _LIB.MXNDArrayWaitToRead
    check_call(wait(tensor.handle))
    if not tensor.size:
        return np.empty(tensor.shape, tensor.dtype)
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(tensor.handle, ctypes.byref(address)))
    assert address.value is not None
    dtype = np.dtype(tensor.dtype)
    memory = (ctypes.c_uint8 * (tensor.size * dtype.itemsize)).from_address(address.value)
    array: Array = np.frombuffer(memory, np.uint8).view(dtype).reshape(tensor.shape)
    return array


def fresh(shape: Sequence[int], dtype: Any, like: Any) -> Any:
    """An array without values, of the kind and on the device of ``like``."""
    made = mx.nd.empty(tuple(shape), like.context, dtype)
    return made.as_np_ndarray() if type(like) is not mx.nd.NDArray and hasattr(like, "as_nd_ndarray") else made


def like(array: Array, tensor: Any) -> Any:
    """The array's values as an MXNet array of the kind of ``tensor``."""
    made = fresh(array.shape, array.dtype, tensor)
    put_back(made, array)
    return made


def put_back(tensor: Any, array: Array) -> None:
    """Write the values into the MXNet array, unless they are there already."""
    if tensor.context.device_type == "gpu":
        tensor[:] = mx.nd.array(array, dtype=array.dtype)
        return
    memory = view(tensor, write=True)
    if array.size and host.address_of(memory) != host.address_of(array):
        memory[...] = array
