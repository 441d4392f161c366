"""Whole trees at once: the gradients of a step, the parameters of a model; and the beginning and end of it all.

JAX's arrays cannot be changed, so everything is returned. A tree is any pytree: nested dicts, lists, tuples, and what
is registered with ``jax.tree_util``.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hora.engine import session
from hora.engine.core import source_line
from hora.engine.process_set import ProcessSet, global_process_set
from hora.jax import compiled, gradients
from hora.jax.adapter import adopt, is_traced
from hora.jax.call import JaxCall
from hora.jax.collectives import grouped_allreduce
from hora.jax.compression import Compression
from hora.ops.objects import broadcast_object
from hora.types import DType, Kind, ReduceOp

__all__ = ["allreduce_gradients", "broadcast_parameters", "init", "shutdown"]


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Start Hora in this process; returns once all workers have called it. Called again while it runs, does nothing.

    ``jax.distributed`` is neither needed nor touched.

    Args:
        comm: all workers (None), a list of the ranks that form a world of their own, or an mpi4py communicator.
        process_sets: sets to make known, the same on all ranks.
    """
    session.init(comm, process_sets)
    atexit.unregister(compiled.forget_failures)
    atexit.register(compiled.forget_failures)  # before Hora's own: programs that still run need it


def shutdown() -> None:
    """Leave in good order, once compiled programs have finished. Ranks that still need this one get an error."""
    compiled.forget_failures()
    session.shutdown()


def allreduce_gradients(
    gradients: Any,
    op: ReduceOp = ReduceOp.AVERAGE,
    compression: Any = Compression.none,
    name: str = "gradients",
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Combine the gradients of all ranks: a tree in, a tree out, one group on the way.

    >>> import jax.numpy as jnp
    >>> init()
    >>> allreduce_gradients({"w": jnp.ones(2), "b": None})
    {'b': None, 'w': Array([1., 1.], dtype=float32)}
    >>> shutdown()

    Args:
        gradients: A tree of arrays, what ``jax.grad`` returns; of the same form on all ranks.
        op: Average or Sum.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``: reduce in fewer bits.
        name: What the operation is called; every rank must use the same.
        prescale_factor: Multiplies each rank's values before they are combined.
        postscale_factor: Multiplies the combined values.
        process_set: The ranks that take part; all of them unless given.
    """
    leaves, form = jax.tree.flatten(gradients)
    # jax.grad(allow_int=True) gives integers a gradient without values.
    places = [i for i, leaf in enumerate(leaves) if getattr(leaf, "dtype", None) != jax.dtypes.float0]
    if places:
        results = grouped_allreduce(
            [leaves[i] for i in places], None, name, compression, op, prescale_factor, postscale_factor, process_set
        )
        for i, result in zip(places, results, strict=True):
            leaves[i] = result
    return jax.tree.unflatten(form, leaves)


def broadcast_parameters(params: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """The root's tree on every rank: parameters, the state of an optimizer, or both in one tuple.

    Arrays of all types are carried, random keys too; numpy arrays and numbers stay what they are; other leaves are sent
    as objects. The tree must have the same form and shapes on all ranks.

    >>> import jax.numpy as jnp
    >>> init()
    >>> broadcast_parameters({"w": jnp.ones(2), "step": 3})
    {'step': 3, 'w': Array([1., 1.], dtype=float32)}
    >>> shutdown()

    Args:
        params: A tree; it may stand under ``jit`` if all its leaves are arrays.
        root_rank: The rank to copy from: its rank among all, also within a process set.
        process_set: The ranks that take part; all of them unless given.
    """
    leaves, form = jax.tree.flatten(params)
    call = JaxCall(Kind.BROADCAST, "parameters", process_set, root=root_rank)
    arrays = [i for i, leaf in enumerate(leaves) if isinstance(leaf, (jax.Array, np.ndarray))]
    if any(is_traced(leaves[i]) for i in arrays):
        received = gradients.carry(call.placed(source_line()), [leaves[i] for i in arrays]).tensors
    elif arrays:
        results = call.start([_bits(leaves[i]) for i in arrays]).wait()
        received = [_as(result, leaves[i]) for result, i in zip(results.tensors, arrays, strict=True)]
    else:
        received = []
    for i, value in zip(arrays, received, strict=True):
        leaves[i] = value
    others = {i: leaf for i, leaf in enumerate(leaves) if i not in set(arrays)}
    if others:
        for i, value in broadcast_object(others, root_rank, "parameters.objects", process_set).items():
            leaves[i] = value
    return jax.tree.unflatten(form, leaves)


_CARRIED = frozenset(dtype.name.lower() for dtype in DType)


def _bits(leaf: Any) -> Any:
    """An array's memory under an element type that can be moved."""
    array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    if array.dtype.name in _CARRIED:
        return array
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8)


def _as(received: Any, leaf: Any) -> Any:
    """What was received, as ``leaf`` was."""
    if _is_key(leaf):
        data = jax.random.key_data(leaf)
        return jax.random.wrap_key_data(_as(received, data), impl=jax.random.key_impl(leaf))
    array = received if received.dtype == leaf.dtype else received.view(leaf.dtype).reshape(leaf.shape)
    return array if isinstance(leaf, np.ndarray) else adopt([array], leaf)[0]


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
