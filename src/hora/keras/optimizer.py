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

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras

from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UsageError
from hora.keras.gradients import Gradients
from hora.transport.base import ReduceOp

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
        compression: ``Compression.none``, ``fp16`` or ``bf16``; on the torch backend also one with a memory.
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
    gradients = Gradients(
        name=name,
        op=ReduceOp(op),
        predivide_factor=float(gradient_predivide_factor),
        factor=1.0 if average_aggregated_gradients else float(passes),
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        scale_local=scale_local_gradients,
    )
    gradients.check()
    _teach_keras()
    return _distribute(optimizer, gradients)


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


class _Distributed:
    """What all of them have."""

    _hora_gradients: ClassVar[Gradients]
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

    def _hora_reduced(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return self._hora_gradients.reduce(self, gradients, self._hora_places(variables))

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
        if not steps or keras.config.backend() != "jax":
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


def _distribute(optimizer: Any, gradients: Gradients) -> Any:
    """Give the optimizer its new class."""
    base = type(optimizer)
    first: type[_Distributed] = _Stepping
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        first = _LossScaling
    elif hasattr(optimizer, "optimizers"):  # MultiOptimizer
        first = _Handing
    body = {"_hora_gradients": gradients, "_hora_base": base, "__module__": base.__module__, "__doc__": base.__doc__}
    cls: Any = type(base.__name__, (first, base), {**body, "__qualname__": base.__qualname__})
    _share_name(base, cls)
    optimizer.__class__ = cls
    return optimizer


def _share_name(base: type, cls: type) -> None:
    """Let Keras write the same name for the class into a file as for the one that it is derived from."""
    from keras.src import api_export
    from keras.src.saving import object_registration

    for ancestor in base.__mro__:  # on torch, keras.optimizers.SGD makes an object of a class derived from it
        public = api_export.REGISTERED_OBJS_TO_NAMES.get(ancestor)
        if public is not None and ancestor.__name__ == base.__name__:
            api_export.REGISTERED_OBJS_TO_NAMES[cls] = public
            return
    registered = object_registration.GLOBAL_CUSTOM_NAMES.get(base)
    if registered is not None:
        object_registration.GLOBAL_CUSTOM_NAMES[cls] = registered


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


@functools.cache
def _teach_keras() -> None:
    """Let Keras do the right thing with a distributed optimizer in the places where it does not ask it, once.

    ``model.compile`` makes a ``LossScaleOptimizer`` for the optimizer of a float16 model. That looks for overflow
    before it hands gradients on; if they were reduced only then, a rank with an overflow would leave out a step that
    the others wait in. So whoever scales the loss takes the reducing over.
    """
    scaling: Any = keras.optimizers.LossScaleOptimizer
    init = scaling.__init__

    @functools.wraps(init)
    def __init__(self: Any, inner_optimizer: Any, *args: Any, **kwargs: Any) -> None:
        init(self, inner_optimizer, *args, **kwargs)
        if isinstance(inner_optimizer, _Distributed) and not isinstance(self, _Distributed):
            gradients, kept = inner_optimizer._hora_gradients, inner_optimizer._hora
            inner_optimizer.__class__ = inner_optimizer._hora_base
            _distribute(self, gradients).__dict__["_hora_kept"] = kept

    scaling.__init__ = __init__
    if keras.config.backend() == "tensorflow":
        _teach_keras_on_tensorflow(keras.Model)


def _teach_keras_on_tensorflow(model: Any) -> None:
    """Two things that are different there.

    Where there is a GPU, Keras has XLA compile the step unless told not to, from which no gradient gets out to be
    reduced. And it leaves it to the first step to make variables, as it does not elsewhere: too late to broadcast them.
    """

    def is_distributed(self: Any) -> bool:
        return isinstance(getattr(self, "optimizer", None), _Distributed)

    resolve, build = model._resolve_auto_jit_compile, model._maybe_symbolic_build

    @functools.wraps(resolve)
    def _resolve_auto_jit_compile(self: Any) -> Any:
        return False if is_distributed(self) else resolve(self)

    @functools.wraps(build)
    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        build(self, iterator=iterator, data_batch=data_batch)
        if is_distributed(self) and not self.built:
            data = getattr(iterator, "_distributed_dataset", None)  # of which no batch is taken: it may have no other
            like = data_batch if data is None else data.element_spec
            with contextlib.suppress(ValueError, RuntimeError, TypeError):  # then the first step makes them after all
                self._symbolic_build(data_batch=like)

    model._resolve_auto_jit_compile, model._maybe_symbolic_build = _resolve_auto_jit_compile, _maybe_symbolic_build
