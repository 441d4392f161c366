"""Collectives as a step of a compiled program: one JAX primitive, and what the transformations make of it.

When a program runs, XLA calls back into Python with the memory of the arguments and of the results
(``xla_buffer_python_cpu_callback``, which ``jax.experimental.buffer_callback`` is made of). Nothing is copied: what is
elementwise is written over its arguments, which XLA has copied beforehand if anybody else still needs them. No JAX
array is made inside, so a client with a single thread cannot wait for itself.

Collectives are an *ordered effect*: they run in the order of the source, one at a time, each exactly once, and are kept
even if nobody uses the result. Without that, two ranks could wait for one another, each inside another collective on
the only thread it has. On devices other than the CPU a callback with copies is used (``emit_python_callback``).

JAX has no public interface to effects; this is the only file that reaches into ``jax._src``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import batching, mlir

from hora.errors import UsageError
from hora.jax.adapter import adopt, view
from hora.jax.call import JaxCall
from hora.ops import host
from hora.types import Kind, ReduceOp

try:
    from jax._src import core, effects, ffi
    from jax._src.callback import emit_python_callback
    from jax._src.dispatch import runtime_tokens
except ImportError as reason:  # pragma: no cover
    raise ImportError(
        f"hora.jax does not know this JAX, {jax.__version__}: {reason}. Compiled programs could not be kept in order."
        " Use JAX 0.10, with which it was tried."
    ) from reason

__all__ = ["carry", "carry_now", "forget_failures", "lower_with_copies"]


class _Collectives(effects.Effect):
    def __str__(self) -> str:
        return "HoraCollectives"


_EFFECT = _Collectives()
for _allowed in (
    effects.lowerable_effects,
    effects.ordered_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.remat_allowed_effects,
):
    _allowed.add_type(_Collectives)

primitive = core.Primitive("hora_collective")
primitive.multiple_results = True


def carry(call: JaxCall, arrays: Sequence[Any]) -> list[Any]:
    """Record it; or do it now, if JAX finds that there are values."""
    results: list[Any] = primitive.bind(*arrays, call=call)
    return results


def carry_now(call: JaxCall, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Do it now."""
    results = call.start([view(array) for array in arrays]).wait()
    return adopt(host.flat(results), arrays[0])


primitive.def_impl(lambda *arrays, call: carry_now(call, arrays))


def _shapes(*arrays: Any, call: JaxCall) -> tuple[list[Any], set[_Collectives]]:
    shapes = call.shapes([array.shape for array in arrays])
    types = [array.dtype for array in arrays]
    if call.kind.gathers:
        types += [np.dtype("int32")] * len(arrays)
    return [core.ShapedArray(shape, dtype) for shape, dtype in zip(shapes, types, strict=True)], {_EFFECT}


primitive.def_effectful_abstract_eval(_shapes)


def _batch(arrays: Sequence[Any], axes: Sequence[int | None], *, call: JaxCall) -> tuple[list[Any], list[int | None]]:
    """``vmap``: the batched arrays are sent once, whole. Where rows matter, the batch becomes the second dimension."""
    if call.elementwise:
        if call.how.op is ReduceOp.ADASUM and call.kind is Kind.ALLREDUCE:
            raise UsageError(
                "vmap of allreduce with op=Adasum. It weighs arrays as a whole, and would weigh the batch as one. Call"
                " it on each, or use op=Average."
            )
        return carry(call, arrays), list(axes)
    moved = [a if axis is None else jnp.moveaxis(a, axis, 1) for a, axis in zip(arrays, axes, strict=True)]
    axes = [None if axis is None else 1 for axis in axes]
    return carry(call, moved), [*axes, *[None] * (len(axes) if call.kind.gathers else 0)]


batching.primitive_batchers[primitive] = _batch


def _lower(context: Any, *operands: Any, call: JaxCall) -> Any:
    """On the CPU: XLA hands over its own buffers. The first operand and the first result are the token of the order."""
    n = len(operands)

    def run(_: Any, *buffers: Any) -> tuple[()]:
        results = [np.asarray(buffer) for buffer in buffers[n + 2 :]]
        arguments = results if call.elementwise else [np.asarray(buffer) for buffer in buffers[1 : n + 1]]
        call.carry_out(arguments, results)
        return ()

    context.module_context.add_host_callback(run)
    rule = ffi.build_ffi_lowering_function(
        "xla_buffer_python_cpu_callback",
        has_side_effect=True,
        operand_output_aliases={i: i for i in range(1, n + 1)} if call.elementwise else None,
    )
    with_token = dataclasses.replace(
        context,
        avals_in=[core.abstract_token, *context.avals_in],
        avals_out=[core.abstract_token, *context.avals_out],
    )
    index = np.uint64(len(context.module_context.host_callbacks) - 1)
    token, *results = rule(with_token, context.tokens_in.get(_EFFECT), *operands, index=index).results
    context.set_tokens_out(context.tokens_in.update_tokens(mlir.TokenSet({_EFFECT: token})))
    return results


def lower_with_copies(context: Any, *operands: Any, call: JaxCall) -> Any:
    """On any device: the arguments are copied to the host, and the results back."""

    def run(*arrays: Any) -> tuple[Any, ...]:
        inputs = [np.asarray(array) for array in arrays]
        outputs = [np.empty(aval.shape, aval.dtype) for aval in context.avals_out]
        call.carry_out(inputs, outputs)
        return tuple(outputs)

    token = context.tokens_in.get(_EFFECT)
    results, token, _ = emit_python_callback(
        context, run, token, list(operands), context.avals_in, context.avals_out, has_side_effect=True
    )
    context.set_tokens_out(context.tokens_in.update_tokens(mlir.TokenSet({_EFFECT: token})))
    return results


mlir.register_lowering(primitive, lower_with_copies)
mlir.register_lowering(primitive, _lower, platform="cpu")


def forget_failures() -> None:
    """Wait for what was dispatched, and drop the order's token: one that failed would fail all that comes after it."""
    try:
        jax.effects_barrier()
    except Exception:
        pass  # it was raised where the result was asked for
    finally:
        runtime_tokens.clear()
