"""Gradients of the collectives, as ``ops.table`` has them; the scales are those of ``hora.torch.autograd``.

Reverse mode only (``jax.grad``, ``jax.vjp``). The gradient's operation is named after the forward one, and is itself
differentiable.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hora.engine import session
from hora.errors import UsageError
from hora.jax import compiled
from hora.jax.adapter import is_traced
from hora.jax.call import JaxCall
from hora.ops.resolve import scattered_rows
from hora.types import Kind, ReduceOp, Reduction

__all__ = ["carry"]

_SMOOTH = (ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM)
_AVERAGE = Reduction(ReduceOp.AVERAGE)

Rows = tuple[tuple[int, ...], ...]


def carry(call: JaxCall, arrays: Sequence[Any]) -> list[Any]:
    """Carry it out, or record it together with its gradient if JAX is tracing."""
    if not any(is_traced(array) for array in arrays):
        return compiled.carry_now(call, arrays)
    shapes = tuple(array.shape for array in arrays)
    call.check(shapes)
    recorded: list[Any] = _recorded(call, shapes, list(arrays))
    return recorded


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _recorded(call: JaxCall, shapes: Sequence[tuple[int, ...]], arrays: list[Any]) -> list[Any]:
    return compiled.carry(call, arrays)


def _forward(call: JaxCall, shapes: Any, arrays: list[Any]) -> tuple[list[Any], list[Any]]:
    results = _recorded(call, shapes, arrays)
    return results, results[1::2] if call.gathers else []


def _backward(call: JaxCall, shapes: Sequence[tuple[int, ...]], rows: list[Any], grads: list[Any]) -> tuple[list[Any]]:
    """``rows``, of collectives that gather, are those that came from each rank."""
    if call.gathers:
        grads = grads[::2]
    # Integers have no gradient; JAX stands a type of its own in for it, which is not to be sent.
    places = [i for i, grad in enumerate(grads) if grad.dtype != jax.dtypes.float0]
    result: list[Any] = [np.zeros(shape, jax.dtypes.float0) for shape in shapes]
    if places:
        sent = [grads[i] for i in places]
        rule = _RULES[call.kind]
        back = rule(call, [shapes[i] for i in places], [rows[i] for i in places] if rows else [], sent)
        for i, grad in zip(places, back, strict=True):
            result[i] = grad
    return (result,)


_recorded.defvjp(_forward, _backward)


def _allreduce(call: JaxCall, shapes: Any, rows: Any, grads: list[Any]) -> list[Any]:
    if call.how.op not in _SMOOTH:
        raise UsageError(
            f"grad through allreduce with op={call.how.op.name.capitalize()} ({call.line}). No gradient is defined for"
            " it. Put jax.lax.stop_gradient around its argument, or use op=Sum or op=Average."
        )
    return carry(call.named("grad"), grads)


def _broadcast(call: JaxCall, shapes: Any, rows: Any, grads: list[Any]) -> list[Any]:
    averaged = carry(call.named("grad", kind=Kind.ALLREDUCE, how=_AVERAGE), grads)
    return averaged if session.engine().rank == call.root else [jnp.zeros_like(grad) for grad in averaged]


def _allgather(call: JaxCall, shapes: Any, rows: list[Any], grads: list[Any]) -> list[Any]:
    averaged = carry(call.named("grad", kind=Kind.ALLREDUCE, how=_AVERAGE), grads)
    mine = call.process_set.rank()
    return [
        jax.lax.dynamic_slice_in_dim(grad, jnp.sum(counts[:mine]), shape[0])
        for grad, counts, shape in zip(averaged, rows, shapes, strict=True)
    ]


def _alltoall(call: JaxCall, shapes: Any, rows: list[Any], grads: list[Any]) -> list[Any]:
    # In a compiled program all ranks send equally many, so what came back is as much as was sent.
    splits = None if is_traced(rows[0]) else tuple(int(n) for n in rows[0])
    sent_back, _ = carry(call.named("grad", splits=splits), grads)
    stayed = shapes[0][0] - len(sent_back)  # rows beyond the splits went nowhere: their gradient is zero
    return [jnp.pad(sent_back, [(0, stayed)] + [(0, 0)] * (sent_back.ndim - 1)) if stayed else sent_back]


def _reducescatter(call: JaxCall, shapes: Any, rows: Any, grads: list[Any]) -> list[Any]:
    size = call.process_set.size()
    factor = call.how.prescale * call.how.postscale * (size if call.how.op is ReduceOp.SUM else 1)
    scaled = [grad * factor for grad in grads] if factor != 1 else grads
    dealt: Rows = tuple(tuple(scattered_rows(shape[0], size, rank) for rank in range(size)) for shape in shapes)
    return carry(call.named("grad", kind=Kind.ALLGATHER, rows=dealt), scaled)[::2]


_RULES = {
    Kind.ALLREDUCE: _allreduce,
    Kind.BROADCAST: _broadcast,
    Kind.ALLGATHER: _allgather,
    Kind.ALLTOALL: _alltoall,
    Kind.REDUCESCATTER: _reducescatter,
}
