"""Gradients of the collectives in JAX, by ``ops.backward``.

Reverse mode only (``jax.grad``, ``jax.vjp``).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hora.jax import compiled
from hora.jax.adapter import is_traced
from hora.jax.call import JaxCall
from hora.ops.backward import Gradients
from hora.ops.call import Call, Results
from hora.ops.resolve import scattered_rows
from hora.types import Rows

__all__ = ["carry"]


def carry(call: JaxCall, arrays: Sequence[Any]) -> Results[Any]:
    """Carry it out, or record it together with its gradient if JAX is tracing."""
    if not any(is_traced(array) for array in arrays):
        results = compiled.carry_now(call, arrays)
    else:
        shapes = tuple(array.shape for array in arrays)
        call.check(shapes)
        results = _recorded(call, shapes, list(arrays))
    return Results(results[: len(arrays)], results[len(arrays) :])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _recorded(call: JaxCall, shapes: Sequence[tuple[int, ...]], arrays: list[Any]) -> list[Any]:
    return compiled.carry(call, arrays)


def _forward(call: JaxCall, shapes: Any, arrays: list[Any]) -> tuple[list[Any], list[Any]]:
    results = _recorded(call, shapes, arrays)
    return results, results[len(arrays) :]


def _backward(call: JaxCall, shapes: Sequence[tuple[int, ...]], rows: list[Any], grads: list[Any]) -> tuple[list[Any]]:
    # Integers have no gradient; JAX stands a type of its own in for it, which is not to be sent.
    places = [i for i in range(len(shapes)) if grads[i].dtype != jax.dtypes.float0]
    result: list[Any] = [np.zeros(shape, jax.dtypes.float0) for shape in shapes]
    if places:
        name = None if call.name is None else f"{call.name}.grad"
        sent, given = [grads[i] for i in places], [shapes[i] for i in places]
        back = _GRADIENTS.of(call, name, sent, given, [rows[i] for i in places] if rows else [])
        for i, grad in zip(places, back, strict=True):
            result[i] = grad
    return (result,)


_recorded.defvjp(_forward, _backward)


class _Gradients(Gradients[Any]):
    """``given`` are the shapes."""

    advice = "Put jax.lax.stop_gradient around its argument"

    def carry(self, call: Any, grads: list[Any]) -> Results[Any]:
        return carry(call, grads)

    def call(self, call: Call, given: Sequence[tuple[int, ...]], **changed: Any) -> Call:
        """In a compiled program it must be known how many rows each rank brings: as many as were dealt out to it."""
        if changed["kind"].rows is Rows.ALL:
            size = call.process_set.size()
            changed["rows"] = tuple(tuple(scattered_rows(own[0], size, rank) for rank in range(size)) for own in given)
        return super().call(call, given, **changed)

    def where(self, call: Any) -> str:
        return f" ({call.line})"

    def splits(self, rows: Any) -> tuple[int, ...] | None:
        """In a compiled program all ranks send equally many, so what came back is as much as was sent."""
        return None if is_traced(rows) else tuple(int(n) for n in rows)

    def zeros(self, like: Any) -> Any:
        return jnp.zeros_like(like)

    def own_rows(self, grad: Any, rows: Any, mine: int, given: tuple[int, ...]) -> Any:
        return jax.lax.dynamic_slice_in_dim(grad, jnp.sum(rows[:mine]), given[0])

    def returned(self, grad: Any, given: tuple[int, ...]) -> Any:
        missing = given[0] - len(grad)
        return jnp.pad(grad, [(0, missing)] + [(0, 0)] * (grad.ndim - 1)) if missing else grad


_GRADIENTS = _Gradients()
