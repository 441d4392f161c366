"""``DistributedOptimizer`` for optax: a gradient transformation that combines the ranks' gradients first.

Its state is the wrapped transformation's own, so checkpoints look plain; only with ``backward_passes_per_step`` is
there more to keep. It works inside and outside of ``jit``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UsageError
from hora.jax.compression import Compression
from hora.jax.functions import allreduce_gradients
from hora.ops.gradients import GradientRule
from hora.types import ReduceOp

__all__ = ["Accumulated", "DistributedOptimizer"]


class Accumulated(NamedTuple):
    """The state of an optimizer that steps every few passes."""

    passes: Any  # since the last step
    gradients: Any  # their sum
    inner: Any  # the wrapped optimizer's state


def DistributedOptimizer(  # Horovod's name for it
    optimizer: Any,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    name: str = "gradients",
) -> Any:
    """An optax optimizer that averages gradients over the ranks before it uses them.

    >>> import hora.jax as hvd
    >>> hvd.init()
    >>> optimizer = DistributedOptimizer(optax.sgd(0.5))
    >>> updates, state = optimizer.update({"w": jnp.ones(2)}, optimizer.init({"w": jnp.zeros(2)}))
    >>> updates
    {'w': Array([-0.5, -0.5], dtype=float32)}
    >>> hvd.shutdown()

    Args:
        optimizer: Any ``optax.GradientTransformation``.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``: reduce in fewer bits. Or one with a memory, such as
            those of ``hora.torch.Compression``.
        backward_passes_per_step: Add up the gradients of so many calls of ``update`` before they are combined; the
            calls between give updates of zero. As in Horovod, they are added, not averaged.
        op: Average or Sum of the gradients; Adasum combines the updates of each rank's own step instead.
        gradient_predivide_factor: f divides by f before the sum and by size/f after it. With Average only.
        average_aggregated_gradients: Divide by ``backward_passes_per_step``, too.
        process_set: The ranks that take part; all of them unless given. Others step by themselves.
        name: What the operation is called. Two optimizers that work at the same time need two names.
    """
    if backward_passes_per_step < 1:
        raise UsageError(
            f"backward_passes_per_step={backward_passes_per_step}. It says how many gradients make a step. Give 1 or"
            " more."
        )
    rule = GradientRule(ReduceOp(op), gradient_predivide_factor, compression=compression, process_set=process_set)
    rule.check(ReduceOp.ADASUM, advice="Use Average, Sum or Adasum.")  # here, and not in the first step

    def reduce(tree: Any) -> Any:
        if not process_set.included():
            return tree
        how = rule.how
        return allreduce_gradients(tree, how.op, compression, name, how.prescale, how.postscale, process_set)

    def step(gradients: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if op is ReduceOp.ADASUM:
            updates, state = inner.update(gradients, state, params, **extra)
            return reduce(updates), state
        return inner.update(reduce(gradients), state, params, **extra)  # type: ignore[no-any-return]

    inner = optax.with_extra_args_support(optimizer)
    if backward_passes_per_step == 1:
        return optax.GradientTransformationExtraArgs(inner.init, step)

    def init(params: Any) -> Accumulated:
        return Accumulated(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params), inner.init(params))

    def update(gradients: Any, state: Accumulated, params: Any = None, **extra: Any) -> tuple[Any, Accumulated]:
        total = jax.tree.map(jnp.add, state.gradients, gradients)
        passes = state.passes + 1

        def last() -> tuple[Any, Accumulated]:
            divisor = backward_passes_per_step if average_aggregated_gradients else 1
            mean = jax.tree.map(lambda gradient: gradient / divisor, total) if divisor > 1 else total
            updates, after = step(mean, state.inner, params, **extra)
            return updates, Accumulated(jnp.zeros_like(passes), jax.tree.map(jnp.zeros_like, total), after)

        def not_yet() -> tuple[Any, Accumulated]:
            return jax.tree.map(jnp.zeros_like, gradients), Accumulated(passes, total, state.inner)

        result: tuple[Any, Accumulated] = jax.lax.cond(passes == backward_passes_per_step, last, not_yet)
        return result

    return optax.GradientTransformationExtraArgs(init, update)
