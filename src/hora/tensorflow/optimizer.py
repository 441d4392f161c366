"""``DistributedOptimizer``: an optimizer that steps on gradients that were reduced over the ranks.

Optimizers of ``tf.compat.v1.train`` are wrapped here, for sessions, ``tf.function`` and eager code; Keras's by
``hora.keras``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UsageError
from hora.ops.gradients import GradientRule
from hora.tensorflow.compression import Compression, Compressor
from hora.tensorflow.functions import own_variable
from hora.tensorflow.reduce import apply
from hora.tensorflow.surface import plainly
from hora.types import ReduceOp

__all__ = ["DistributedOptimizer"]


@plainly
def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """The optimizer, with gradients that are reduced over the ranks before they are applied, all as one group.

    Args:
        optimizer: One of ``tf.compat.v1.train``, or of Keras: those are handed to ``hora.keras.DistributedOptimizer``.
        name: What the gradients are called; every rank must use the same.
        use_locking: Of the optimizers of ``tf.compat.v1``: see there.
        device_dense: Taken for Horovod's sake, as ``device_sparse``, ``num_groups`` and ``groups``.
        device_sparse: See above.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``, or one with a memory (``hora.torch.Compression``).
        sparse_as_dense: Reduce ``tf.IndexedSlices`` as dense gradients.
        backward_passes_per_step: How many calls accumulate gradients locally before they are reduced and applied.
        op: Average or Sum.
        gradient_predivide_factor: f divides by f before and by size/f after the summation; op=Average only.
        average_aggregated_gradients: Divide what was accumulated by ``backward_passes_per_step``.
        num_groups: See above.
        groups: See above.
        process_set: The ranks that take part; all of them unless given.
        scale_local_gradients: Divide the gradients of local variables (``register_local_var``) by the number of ranks.

    >>> import hora.tensorflow as hvd
    >>> hvd.init()
    >>> weight = tf.Variable(3.0)
    >>> optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.5))
    >>> _ = optimizer.minimize(lambda: weight * weight, var_list=[weight])
    >>> float(weight)
    0.0
    >>> hvd.shutdown()
    """
    op = ReduceOp(op)
    if backward_passes_per_step < 1:
        raise UsageError(
            f"backward_passes_per_step={backward_passes_per_step}. Gradients are applied after so many passes. Give 1"
            " or more."
        )
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _of_keras(
            optimizer, name=name, compression=compression, sparse_as_dense=sparse_as_dense,
            backward_passes_per_step=backward_passes_per_step, op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            average_aggregated_gradients=average_aggregated_gradients, num_groups=num_groups, groups=groups,
            process_set=process_set, scale_local_gradients=scale_local_gradients,
        )  # fmt: skip
    rule = GradientRule(
        op, float(gradient_predivide_factor), compression=compression, sparse_as_dense=sparse_as_dense,
        process_set=process_set, scale_local=scale_local_gradients,
    )  # fmt: skip
    rule.check(advice="Use op=Average or op=Sum; for Adasum of gradients, DistributedGradientTape(tape, op=Adasum).")
    divisor = backward_passes_per_step if average_aggregated_gradients else 1
    return _distributed_class()(optimizer, name, use_locking, rule, backward_passes_per_step, divisor)


def _of_keras(optimizer: Any, **options: Any) -> Any:
    try:
        import keras
    except ImportError:
        keras = None
    if keras is None or not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(
            f"DistributedOptimizer of a {type(optimizer).__module__}.{type(optimizer).__name__}. It is no optimizer of"
            " tf.compat.v1.train, nor of Keras 3. Give one of those, or reduce with DistributedGradientTape."
        )
    from hora.keras import DistributedOptimizer as keras_optimizer

    return keras_optimizer(optimizer, **options)


def _distributed_class() -> Any:
    """Made when first asked for: ``tf.compat.v1`` is not loaded by everybody."""
    global _class
    if _class is None:
        _class = type("DistributedOptimizer", (_Distributed, tf.compat.v1.train.Optimizer), {})
    return _class


_class: Any = None


class _Distributed:
    """What is put before ``tf.compat.v1.train.Optimizer``: everything but the gradients is the wrapped optimizer's."""

    def __init__(
        self, optimizer: Any, name: str | None, use_locking: bool, rule: GradientRule, passes: int, divisor: int
    ) -> None:
        shown = name or f"Distributed{type(optimizer).__name__}"
        super().__init__(name=shown, use_locking=use_locking)  # type: ignore[call-arg]
        self._optimizer, self._rule, self._passes, self._divisor = optimizer, rule, passes, divisor
        self._given_name = name
        self._local: dict[int, Any] = {}
        self._kept: _Kept | None = None

    def register_local_var(self, var: Any) -> None:
        """Leave the gradients of this variable on their rank."""
        own = own_variable(var)
        self._local[id(own)] = own

    @plainly
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The wrapped optimizer's gradients, reduced; while passes accumulate, what was accumulated so far."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        variables = [variable for _, variable in pairs]
        gradients = self._reduce([gradient for gradient, _ in pairs], variables)
        return list(zip(gradients, variables, strict=True))

    def _reduce(self, gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        local = [i for i, variable in enumerate(variables) if id(variable) in self._local]

        def reduced(found: Sequence[Any]) -> list[Any]:
            return apply(self._rule, found, local, self._given_name)

        if self._passes == 1:
            return reduced(gradients)
        if self._kept is None:
            self._kept = _Kept(gradients, variables, self._passes, self._divisor)
        return self._kept.add(gradients, reduced)

    @plainly
    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's; while passes accumulate, nothing."""
        pairs = list(grads_and_vars)
        if self._kept is None:
            return self._optimizer.apply_gradients(pairs, *args, **kwargs)
        # A session runs nothing in the order of the program: what was computed has to come before it is counted.
        with tf.control_dependencies([gradient for gradient, _ in pairs if gradient is not None]):
            return self._kept.when_full(lambda: self._optimizer.apply_gradients(pairs, *args, **kwargs))

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self) -> list[Any]:
        own = [] if self._kept is None else [self._kept.count, *self._kept.sums.values()]
        return [*self._optimizer.variables(), *own]


class _Kept:
    """Gradients that are summed over several passes, in variables, so that it works in a graph too."""

    def __init__(self, gradients: Sequence[Any], variables: Sequence[Any], passes: int, divisor: int) -> None:
        self.passes, self._divisor = passes, divisor
        self.count = _variable(tf.zeros([], tf.int32), "passes")
        self.sums = {
            i: _variable(tf.zeros(variable.shape, gradient.dtype), f"sum_{i}")
            for i, (gradient, variable) in enumerate(zip(gradients, variables, strict=True))
            if gradient is not None
        }

    def add(self, gradients: Sequence[Any], reduce: Callable[[Sequence[Any]], list[Any]]) -> list[Any]:
        places = list(self.sums)
        added = [self.sums[i].assign_add(tf.convert_to_tensor(gradients[i])) for i in places]
        with tf.control_dependencies([self.count.assign_add(1), *added]):
            sums = [self.sums[i].read_value() for i in places]
            full = self._full()

        def spread(values: Sequence[Any]) -> list[Any]:
            by_place = dict(zip(places, values, strict=True))
            return [by_place.get(i) for i in range(len(gradients))]

        def combined() -> list[Any]:
            found = reduce(spread([total / self._divisor if self._divisor > 1 else total for total in sums]))
            return [found[i] for i in places]

        return spread(tf.cond(full, combined, lambda: [tf.identity(total) for total in sums]))

    def when_full(self, apply: Callable[[], Any]) -> Any:
        def step() -> Any:
            done = apply()
            with tf.control_dependencies([] if done is None else [done]):
                cleared = [kept.assign(tf.zeros_like(kept)) for kept in (self.count, *self.sums.values())]
            with tf.control_dependencies(cleared):
                return tf.constant(True)

        return tf.cond(self._full(), step, lambda: tf.constant(False))

    def _full(self) -> Any:
        return tf.equal(self.count.read_value(), self.passes)


def _variable(value: Any, name: str) -> Any:
    return tf.compat.v1.Variable(value, trainable=False, use_resource=True, name=f"hora/{name}")
