"""``DistributedOptimizer``: any Keras optimizer, stepping on gradients that were reduced over the ranks.

The optimizer itself is changed: it gets a class of the same name, derived from its own, that reduces the gradients of
an update before Keras clips them, decays weights and steps. Its configuration, its variables and who holds it stay as
they are, and it is saved under the name of the class it was made of: what a run on many workers saves, plain Keras
loads, and ``load_model`` here makes distributed again.

Gradients that Keras accumulates (``gradient_accumulation_steps``, which is what ``backward_passes_per_step`` sets) are
reduced when they are used, and not before. An optimizer that hands its gradients to others (``LossScaleOptimizer``,
``MultiOptimizer``) reduces them first, so that all ranks find the same overflow and leave out the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras

from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UsageError
from hora.keras import compat
from hora.keras.adapter import allreduce_gradients, scaled
from hora.ops.compression import NoneCompressor
from hora.ops.gradients import GradientRule
from hora.ops.numbering import name_of
from hora.types import ReduceOp

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer", "innermost"]


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = ReduceOp.AVERAGE,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Any] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """The optimizer, which from now on steps with gradients that are reduced over the ranks.

    It is the same object, with its configuration and variables: give it to ``model.compile``, or call its ``apply``.

    Args:
        optimizer: Any Keras optimizer.
        name: What the gradients are called on all ranks; numbered unless given.
        device_dense: Taken for Horovod's sake; gradients are reduced where they are.
        device_sparse: The same.
        compression: ``Compression.none``, ``fp16`` or ``bf16``, or one with a memory (``hora.torch.Compression``).
        sparse_as_dense: Reduce sparse gradients as dense ones: faster where most rows are touched.
        gradient_predivide_factor: f divides by f before and by size/f after the summation; op=Average only.
        op: Average or Sum.
        backward_passes_per_step: How many batches' gradients are accumulated here before they are reduced and used. It
            sets ``gradient_accumulation_steps``, and is saved as that.
        average_aggregated_gradients: Divide accumulated gradients by their number. Without it they are summed.
        num_groups: Taken for Horovod's sake: all gradients of a step travel as one group.
        groups: The same.
        process_set: The ranks that take part; all of them unless given. The others' optimizers step by themselves.
        scale_local_gradients: Divide the gradients of local variables by the number of ranks, as an average would.

    >>> import hora.keras as hvd
    >>> hvd.init()
    >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size(), momentum=0.9))
    >>> type(optimizer).__name__, isinstance(optimizer, keras.optimizers.SGD), optimizer.get_config()["momentum"]
    ('SGD', True, 0.9)
    >>> hvd.shutdown()
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(
            f"DistributedOptimizer of a {type(optimizer).__name__}: {optimizer!r}. It takes an optimizer of Keras"
            f" {keras.__version__}. Give an object such as keras.optimizers.SGD(0.01); for an optimizer of another"
            " framework use that framework's front-end."
        )
    if isinstance(optimizer, _Distributed):
        raise UsageError(
            "DistributedOptimizer of a DistributedOptimizer. Gradients would be reduced twice. Give it the plain"
            " optimizer."
        )
    passes = _accumulate(optimizer, backward_passes_per_step)
    rule = GradientRule(
        name=name,
        op=ReduceOp(op),
        predivide=float(gradient_predivide_factor),
        factor=1.0 if average_aggregated_gradients else float(passes),
        compression=NoneCompressor if compression is None else compression,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        scale_local=scale_local_gradients,
    )
    rule.check(advice="Use op=Average or op=Sum; Adasum needs hora.torch.")
    compat.teach_keras(_Distributed, _take_over)
    return _distribute(optimizer, rule)


def PartialDistributedOptimizer(optimizer: Any, *args: Any, local_layers: Any = None, **kwargs: Any) -> Any:
    """A ``DistributedOptimizer``, with layers whose gradients stay on their rank.

    Args:
        optimizer: Any Keras optimizer.
        *args: As for ``DistributedOptimizer``.
        local_layers: A layer or several, whose variables are each rank's own.
        **kwargs: As for ``DistributedOptimizer``.
    """
    if local_layers is None:
        local_layers = ()
    elif isinstance(local_layers, keras.layers.Layer):
        local_layers = (local_layers,)
    layers = tuple(local_layers)
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer):
            raise UsageError(
                f"local_layers has a {type(layer).__name__}: {layer!r}. It says which layers' gradients stay on their"
                " rank. Give Keras layers; for single variables call register_local_var on the optimizer."
            )
    made = DistributedOptimizer(optimizer, *args, **kwargs)
    made._hora.local.extend(layers)
    return made


def innermost(optimizer: Any) -> Any:
    """The optimizer that has the learning rate and the momentum: not the one that scales the loss for it."""
    return getattr(optimizer, "inner_optimizer", optimizer)


# --- the classes that are put before an optimizer's own ---------------------------------------------------------------


class _Kept:
    """What a distributed optimizer remembers: in one object of no type that Keras would look into when it saves."""

    def __init__(self) -> None:
        self.local: list[Any] = []  # layers and variables whose gradients stay here
        self.variables: Sequence[Any] = ()  # of the gradients that are being applied
        self.resting = False


class _Distributed:
    """What all of them have."""

    _hora_rule: ClassVar[GradientRule]
    _hora_base: ClassVar[type]  # the class that it was

    @property
    def _hora(self) -> _Kept:
        kept = self.__dict__.get("_hora_kept")
        if kept is None:  # set past the setter, in which TensorFlow tracks
            kept = self.__dict__["_hora_kept"] = _Kept()
        return kept

    def register_local_var(self, var: Any) -> None:
        """Let the gradient of this variable stay on its rank."""
        self._hora.local.append(var)

    def rest(self, resting: bool) -> None:
        """Step on this rank's own gradients, as without Hora, until told otherwise; all ranks do so between the same
        steps. For measuring what communication costs. A step that is compiled has to be compiled again."""
        self._hora.resting = resting

    def _hora_reduced(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        if self._hora.resting:
            return list(gradients)
        rule = self._hora_rule

        def reduce(own: list[Any]) -> list[Any]:
            name = rule.name or name_of(self, "keras.gradients", rule.process_set)
            return allreduce_gradients(own, name, rule)

        return rule.apply(gradients, reduce, scaled, self._hora_places(variables))

    def _hora_places(self, variables: Sequence[Any]) -> frozenset[int]:
        """Where the local ones are among them."""
        if not self._hora.local:
            return frozenset()
        key: Callable[[Any], Any] = self._var_key  # type: ignore[attr-defined]  # an optimizer's
        keys = {key(v) for kept in self._hora.local for v in getattr(kept, "trainable_variables", [kept])}
        return frozenset(i for i, variable in enumerate(variables) if key(variable) in keys)


class _Stepping(_Distributed):
    """An optimizer that steps itself: reduces what it is about to use."""

    def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> None:
        self._hora.variables = trainable_variables
        super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        """Keras's first act with the gradients of an update, accumulated or not."""
        return super()._clip_gradients(self._hora_in_time(grads))  # type: ignore[misc]

    def _hora_in_time(self, grads: Sequence[Any]) -> Sequence[Any]:
        steps = self.gradient_accumulation_steps  # type: ignore[attr-defined]
        if not steps or self._hora.resting or keras.config.backend() != "jax":
            return self._hora_reduced(grads, self._hora.variables)
        # On JAX, Keras computes an update in every step and throws away those that it did not mean.
        used = (self._iterations + 1) % steps == 0  # type: ignore[attr-defined]
        chosen: Sequence[Any] = keras.ops.cond(
            used, lambda: self._hora_reduced(grads, self._hora.variables), lambda: list(grads)
        )
        return chosen


class _Handing(_Distributed):
    """An optimizer that hands gradients to others: reduces what it is given."""

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)  # type: ignore[attr-defined]
        super().apply(self._hora_reduced(grads, variables), trainable_variables)  # type: ignore[misc]


class _LossScaling(_Handing):
    """``LossScaleOptimizer``, which has a way of its own for compiled steps."""

    def stateless_apply(
        self, optimizer_variables: Sequence[Any], grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> Any:
        reduced = self._hora_reduced(grads, self._trainable_variables)  # type: ignore[attr-defined]
        return super().stateless_apply(optimizer_variables, reduced, trainable_variables)  # type: ignore[misc]


def _distribute(optimizer: Any, rule: GradientRule) -> Any:
    """Give the optimizer its new class."""
    base = type(optimizer)
    first: type[_Distributed] = _Stepping
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        first = _LossScaling
    elif hasattr(optimizer, "optimizers"):  # MultiOptimizer
        first = _Handing
    body = {"_hora_rule": rule, "_hora_base": base, "__module__": base.__module__, "__doc__": base.__doc__}
    cls: Any = type(base.__name__, (first, base), {**body, "__qualname__": base.__qualname__})
    compat.share_name(base, cls)
    optimizer.__class__ = cls
    return optimizer


def _accumulate(optimizer: Any, passes: int) -> int:
    """Let Keras accumulate the gradients of so many batches; how many it was told to by this."""
    if not isinstance(passes, int) or passes < 1:
        raise UsageError(
            f"backward_passes_per_step={passes!r}: must be > 0. A step needs at least one backward pass. Give a whole"
            " number from 1."
        )
    if passes == 1:
        return 1
    inner = innermost(optimizer)
    if inner.gradient_accumulation_steps or inner.built or hasattr(inner, "optimizers"):
        found = f"accumulates {inner.gradient_accumulation_steps} steps already"
        if not inner.gradient_accumulation_steps:
            found = "has variables already" if inner.built else "is made of several"
        raise UsageError(
            f"backward_passes_per_step={passes} for an optimizer that {found}. It has to make room for the gradients"
            " when its variables are made. Give it to a new optimizer, or leave it out and set"
            " gradient_accumulation_steps of the optimizer."
        )
    inner.gradient_accumulation_steps = passes
    return passes


def _take_over(optimizer: Any, inner: Any) -> None:
    """Whoever scales the loss for a distributed optimizer reduces gradients in its place."""
    rule, kept = inner._hora_rule, inner._hora
    inner.__class__ = inner._hora_base
    _distribute(optimizer, rule).__dict__["_hora_kept"] = kept
