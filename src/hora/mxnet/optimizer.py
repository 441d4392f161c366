"""``DistributedTrainer`` for Gluon, and ``DistributedOptimizer`` for the older Module.

The trainer sends all gradients of a step as one group. The optimizer is called with one parameter after the other, and
so has to send them one after the other.
"""

from __future__ import annotations

import warnings
from typing import Any

import mxnet as mx

from hora.engine.process_set import ProcessSet, global_process_set
from hora.mxnet.compression import Compression
from hora.mxnet.forms import reduce_in_place
from hora.ops.compression import has_memory
from hora.ops.gradients import GradientRule

__all__ = ["DistributedOptimizer", "DistributedTrainer"]


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc, unused-ignore]
    """An optimizer that averages each gradient over the ranks before it uses it. For Module; with Gluon, use
    DistributedTrainer.

    Args:
        optimizer: Any MXNet optimizer; its ``rescale_grad`` is left as it is.
        gradient_predivide_factor: f divides by f before the sum and by size/f after it.
        num_groups: Taken for Horovod's sake.
        process_set: The ranks that take part; all of them unless given. Others step by themselves.
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        # Not the base class's: everything but update() is the wrapped optimizer's.
        self._optimizer, self._process_set = optimizer, process_set
        self._how = GradientRule(predivide=gradient_predivide_factor, process_set=process_set).how

    def __getattr__(self, name: str) -> Any:
        if name in ("_optimizer", "_process_set", "_how"):  # not there while it is being unpickled
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def create_state(self, index: Any, weight: Any) -> Any:
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._reduce(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._reduce(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        self._optimizer.set_wd_mult(args_wd_mult)

    def _reduce(self, index: Any, grad: Any) -> None:
        if self._process_set.included() and self._process_set.size() > 1:
            several = isinstance(index, (tuple, list))
            reduce_in_place(grad if several else [grad], self._how, f"gradient.{index}", self._process_set)


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc, unused-ignore]
    """A Gluon trainer that averages gradients over the ranks in ``step``; give ``step`` one rank's batch size.

    Args:
        params: ``net.collect_params()``, or a list of parameters.
        optimizer: An optimizer, or its name.
        optimizer_params: Its options, if it is given by name.
        compression: ``Compression.none`` or ``.fp16``, or one with a memory.
        gradient_predivide_factor: f divides by f before the sum and by size/f after it.
        prefix: Put in front of the names; two trainers that work at the same time need two.
        num_groups: Taken for Horovod's sake: all gradients are one group.
        process_set: The ranks that take part; all of them unless given. Others step by themselves.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer was given a DistributedOptimizer: gradients would be averaged twice. The optimizer"
                " inside it is used.",
                stacklevel=2,
            )
            optimizer = optimizer._optimizer
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        self._hora_rule = GradientRule(
            predivide=gradient_predivide_factor, compression=compression, process_set=process_set
        )
        self._hora_rule.check()
        self._hora_name = f"{prefix or ''}gradients"

    def _allreduce_grads(self) -> None:
        """What ``step`` and ``allreduce_grads`` call."""
        rule = self._hora_rule
        if not rule.takes_part():
            return
        own = [parameter.list_grad()[0] for parameter in self._params if parameter.grad_req != "null"]
        if has_memory(rule.compression):
            reduce_in_place(own, rule.how, self._hora_name, rule.process_set, rule.compression)
            return
        small, contexts = zip(*(rule.compression.compress(grad) for grad in own), strict=True)
        reduce_in_place(small, rule.how, self._hora_name, rule.process_set)
        for grad, sent, context in zip(own, small, contexts, strict=True):
            if sent is not grad:
                grad[:] = rule.compression.decompress(sent, context)
