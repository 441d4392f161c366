"""Between JAX's arrays and numpy's over the same memory: the only file that knows both.

Promises: an array on the CPU is read where it lies, and a result becomes a JAX array where it lies; a test compares the
addresses. Arrays on another device go through host memory. Whatever else ``jax.numpy`` takes (numpy arrays, numbers) is
first made the array that JAX would make of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hora.errors import UsageError
from hora.ops import host
from hora.types import DType

__all__ = ["adopt", "as_array", "dtype_of", "is_traced", "view"]

Array = np.ndarray[Any, np.dtype[Any]]


def is_traced(value: Any) -> bool:
    """True if JAX is recording and there are no values yet: under ``jit``, ``grad`` or ``vmap``."""
    return isinstance(value, jax.core.Tracer)


def as_array(value: Any) -> jax.Array:
    """The value as a JAX array; refuses what is none and cannot be made one.

    >>> as_array(2.0).dtype.name, as_array(np.zeros(3, "int8")).dtype.name
    ('float32', 'int8')
    """
    if not isinstance(value, jax.Array):
        try:
            value = jnp.asarray(None if isinstance(value, (list, tuple, str)) else value)
        except (TypeError, ValueError):
            raise UsageError(
                f"a {type(value).__name__} was given where an array is needed. Collectives carry arrays. Use"
                " jax.numpy.asarray(...), a grouped form for several, or broadcast_object / allgather_object for other"
                " objects."
            ) from None
    if jnp.issubdtype(value.dtype, jax.dtypes.extended):
        raise UsageError(
            f"an array of {value.dtype} was given. Its elements are no numbers. Send jax.random.key_data(keys), and"
            " take them back with jax.random.wrap_key_data."
        )
    array: jax.Array = value
    return array


def dtype_of(array: Any) -> DType:
    """The engine's element type of an array; refuses what it cannot carry.

    >>> dtype_of(jnp.zeros(3, "bfloat16")).name
    'BFLOAT16'
    """
    return host.dtype_of(np.empty(0, array.dtype))


def view(array: jax.Array) -> Array:
    """The array as numpy's, over the same memory if that is the host's; not to be written to."""
    return np.asarray(array)


def adopt(arrays: Sequence[Array], like: jax.Array | None = None) -> list[jax.Array]:
    """JAX arrays over memory that nobody else will write to; on the device of ``like``, if given.

    >>> memory = host.empty((2, 3), np.dtype("float32"))
    >>> adopt([memory])[0].unsafe_buffer_pointer() == memory.ctypes.data
    True
    """
    where = None if like is None or like.sharding.device_set == {jax.local_devices()[0]} else like.sharding
    adopted: list[jax.Array] = jax.device_put(list(arrays), where, may_alias=True)
    return adopted
