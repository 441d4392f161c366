"""``DistributedGradientTape``: a tape whose ``gradient`` gives gradients that were reduced over the ranks.

What is returned is of a class with the same name, derived from the wrapped tape's, and shares all its state: it does
not matter which of the two recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from hora.engine.process_set import ProcessSet, global_process_set
from hora.ops.gradients import GradientRule
from hora.tensorflow.compression import Compression, Compressor
from hora.tensorflow.functions import own_variable
from hora.tensorflow.reduce import apply
from hora.tensorflow.surface import plainly
from hora.types import ReduceOp

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


@plainly
def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """The tape, with a ``gradient`` that reduces what it computes over the ranks, all of it as one group.

    Args:
        gradtape: A ``tf.GradientTape``, before or after it recorded.
        device_dense: Taken for Horovod's sake, as ``device_sparse``, ``num_groups`` and ``groups``: results are where
            the gradients are, and all of them are one group.
        device_sparse: See above.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``, or one with a memory (``hora.torch.Compression``).
        sparse_as_dense: Reduce ``tf.IndexedSlices`` as dense gradients: faster where most rows are touched.
        op: How gradients are combined; Average unless given.
        gradient_predivide_factor: f divides by f before and by size/f after the summation; op=Average only.
        num_groups: See above.
        groups: See above.
        process_set: The ranks that take part; all of them unless given. The others' gradients stay their own.
        scale_local_gradients: Divide the gradients of local sources (``register_local_source``) by the number of
            ranks, as they would be if the other ranks had zeros.

    >>> import hora.tensorflow as hvd
    >>> hvd.init()
    >>> weight = tf.Variable(3.0)
    >>> with tf.GradientTape() as tape:
    ...     loss = weight * weight
    >>> float(hvd.DistributedGradientTape(tape).gradient(loss, weight))
    6.0
    >>> hvd.shutdown()
    """
    rule = GradientRule(
        ReduceOp(op), float(gradient_predivide_factor), compression=compression, sparse_as_dense=sparse_as_dense,
        process_set=process_set, scale_local=scale_local_gradients,
    )  # fmt: skip
    rule.check(*ReduceOp)
    base = gradtape.__class__
    cls: Any = type(base.__name__, (_Distributed, base), {"__module__": base.__module__, "__doc__": base.__doc__})
    made = cls.__new__(cls)
    made.__dict__ = gradtape.__dict__
    made._hora_rule, made._hora_local = rule, {}
    return made


@plainly
def PartialDistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """``DistributedGradientTape``, but for the gradients of ``local_layers``, which each rank keeps to itself.

    Args:
        local_layers: A layer or a list of layers whose variables differ between ranks by design.

    The others are those of ``DistributedGradientTape``.
    """
    tape = DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor, num_groups,
        groups, process_set, scale_local_gradients,
    )  # fmt: skip
    layers: Sequence[Any] = () if local_layers is None else local_layers
    for layer in layers if isinstance(layers, Iterable) else [layers]:
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape


class _Distributed:
    """What is put before the wrapped tape's class."""

    _hora_rule: GradientRule
    _hora_local: dict[int, Any]

    @plainly
    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """The tape's own ``gradient``, reduced over the ranks."""
        computed = super().gradient(target, sources, *args, **kwargs)  # type: ignore[misc]
        flat = tf.nest.flatten(computed)
        local = [i for i, source in enumerate(tf.nest.flatten(sources)) if _key(source) in self._hora_local]
        return tf.nest.pack_sequence_as(computed, apply(self._hora_rule, flat, local))

    def register_local_source(self, source: Any) -> None:
        """Leave the gradients of this variable on their rank."""
        self._hora_local[_key(source)] = source  # which also keeps it alive, and so its key its own

    register_local_var = register_local_source

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """(source, gradient) of local sources, and of the others, reduced. ``use_generic_names`` is taken for Horovod's
        sake: names are found by shapes anyway."""
        pairs = list(zip(sources, self.gradient(target, sources, output_gradients), strict=True))
        local = [pair for pair in pairs if _key(pair[0]) in self._hora_local]
        return local, [pair for pair in pairs if _key(pair[0]) not in self._hora_local]


def _key(source: Any) -> int:
    return id(own_variable(source)) if hasattr(source, "assign") else id(source)
