"""Adasum for optimizers: each rank steps on its own gradients, and the steps are combined.

Adasum adds what is orthogonal and averages what is parallel, so it has to see what an optimizer makes of a gradient,
not the gradient. A step here is: remember the parameters; let the optimizer step on this rank's gradients; the change
it made to each parameter is combined by Adasum with the changes on the other ranks, and added to what was remembered.
Promises: parameters equal on all ranks stay equal, bit by bit; nothing of the wrapped optimizer is lost; if a step
fails, the parameters are what they were before it.

The optimizer's own state (moments) is each rank's own. Gradients are never reduced: they may be clipped, scaled or
accumulated over any number of backward passes before ``step()``, without further ado.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hora.basics import Adasum, Max
from hora.engine.handle import synchronize
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UsageError
from hora.ops.numbering import name_of
from hora.torch.collectives import allreduce, grouped_allreduce_async_
from hora.torch.compression import Compression, Compressor

__all__ = ["DistributedAdasumOptimizer"]

Parameters = list[torch.Tensor]

_AMP = "grad_scale", "found_inf"  # what a GradScaler leaves here for the time of a step


def DistributedAdasumOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    process_set: ProcessSet = global_process_set,
) -> torch.optim.Optimizer:
    """The optimizer, with steps that are combined over the ranks by Adasum. Needs 1, 2, 4, 8, … ranks.

    Args:
        optimizer: Any torch optimizer. The result is of a class of the same name derived from its class, and shares its
            parameter groups, state and hooks.
        named_parameters: Taken for Horovod's sake: ranks pair parameters by their order in the optimizer.
        compression: ``Compression.none``, ``fp16`` or ``bf16``; the changes travel in it.
        backward_passes_per_step: Taken for Horovod's sake: a step uses whatever gradients there are.
        process_set: The ranks that take part; all of them unless given. The others' optimizers step by themselves.

    >>> import hora.torch as hvd
    >>> hvd.init()
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = DistributedAdasumOptimizer(torch.optim.SGD([weight], lr=0.5))
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> weight.tolist(), type(optimizer).__name__
    ([0.5, 0.5], 'SGD')
    >>> hvd.shutdown()
    """
    if isinstance(optimizer, _AdasumStep):
        raise UsageError(
            "DistributedAdasumOptimizer of a DistributedAdasumOptimizer. Steps would be combined twice. Give it the"
            " plain optimizer."
        )
    size = process_set.size()
    if size & (size - 1):
        raise UsageError(
            f"op=Adasum with {size} ranks. Adasum combines ranks in pairs, then pairs of pairs, so it needs 1, 2, 4, 8,"
            " … of them. Use another number of workers, a process set of such a size, or op=Average."
        )
    if not hasattr(compression, "compress") or not isinstance(compression, type):
        raise UsageError(
            f"op=Adasum with compression={compression!r}. What is sent is the change of a parameter, not a gradient, so"
            " there is nothing for it to remember errors of. Use Compression.none, fp16 or bf16."
        )
    base = optimizer.__class__
    made: Any = type(base.__name__, (_AdasumStep, base), {"__module__": base.__module__, "__doc__": base.__doc__})
    wrapper: _AdasumStep = made.__new__(made)
    # A scheduler made for the wrapped optimizer has put its own step there; ours must be found instead.
    wrapper.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})
    wrapper._wrapped, wrapper._compression, wrapper._process_set = optimizer, compression, process_set
    wrapper._start = {}
    name_of(
        wrapper, "adasum_optimizer", process_set
    )  # now, because a rank that joins without a step would miss its turn
    wrapper.set_backward_passes_per_step(backward_passes_per_step)
    step: Any = base.step
    wrapper._own_step = step.__wrapped__ if getattr(step, "hooked", False) else step
    wrapper._patch_step_function()  # torch's step hooks run around the whole step, and therefore not inside it
    return wrapper


class _AdasumStep(torch.optim.Optimizer):
    """What is put before the wrapped optimizer's class."""

    _wrapped: torch.optim.Optimizer
    _compression: type[Compressor]
    _process_set: ProcessSet
    _own_step: Callable[..., Any]  # of the wrapped class, without hooks
    _start: dict[torch.Tensor, torch.Tensor]
    backward_passes_per_step: int

    # Torch's GradScaler leaves the step out where a gradient is not finite. That must be all ranks' decision; so it is
    # asked to call step() always, which it does for optimizers that have this.
    _step_supports_amp_scaling = True

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        if not self._process_set.included() or self._process_set.size() == 1:
            return self._step_local(closure) if self._agreed_to_step(alone=True) else None
        if not self._agreed_to_step():
            return None
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        start = self._remember(parameters)
        try:
            loss = self._step_local(closure)
            self._combine(parameters, start)
        except BaseException:
            with torch.no_grad():
                torch._foreach_copy_(parameters, start)
            raise
        return loss

    def _step_local(self, closure: Callable[[], float] | None) -> Any:
        amp = {} if self._unscales() else {key: self.__dict__.pop(key) for key in _AMP if key in self.__dict__}
        try:
            loss = self._own_step(self) if closure is None else self._own_step(self, closure)
        finally:
            self.__dict__.update(amp)
        self._wrapped._opt_called = True  # type: ignore[attr-defined]  # what a scheduler of the wrapped one looks at
        return loss

    @torch.no_grad()
    def _remember(self, parameters: Parameters) -> Parameters:
        for p in parameters:
            known = self._start.get(p)
            if known is None or known.shape != p.shape or known.device != p.device or known.dtype != p.dtype:
                self._start[p] = torch.empty_like(p, requires_grad=False)
        start = [self._start[p] for p in parameters]
        torch._foreach_copy_(start, parameters)
        return start

    @torch.no_grad()
    def _combine(self, parameters: Parameters, start: Parameters) -> None:
        """The parameters, which this rank's step has changed, become what all ranks' steps make of ``start``."""
        torch._foreach_sub_(parameters, start)
        name = name_of(self, "adasum_optimizer", self._process_set)
        changes = [self._compression.compress(p.detach()) for p in parameters]
        handles = []
        for i, device in enumerate(dict.fromkeys(p.device for p in parameters)):
            sent = [small for small, _ in changes if small.device == device]
            handles.append(grouped_allreduce_async_(sent, name=f"{name}.{i}", op=Adasum, process_set=self._process_set))
        for handle in handles:
            synchronize(handle)
        for p, (small, context) in zip(parameters, changes, strict=True):
            if small.data_ptr() != p.data_ptr():
                p.copy_(self._compression.decompress(small, context))
        torch._foreach_add_(parameters, start)

    def _agreed_to_step(self, alone: bool = False) -> bool:
        """False if a GradScaler found gradients that are not finite, on any rank; else they are unscaled, if needed."""
        found: torch.Tensor | None = getattr(self, "found_inf", None)
        if found is None:
            return True
        if not alone:
            name = f"{name_of(self, 'adasum_optimizer', self._process_set)}.overflow"
            found = allreduce(found.detach(), name=name, op=Max, process_set=self._process_set)
        if float(found) > 0:
            return False
        scale: torch.Tensor | None = getattr(self, "grad_scale", None)
        if scale is not None and not self._unscales():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.div_(scale.to(p.grad.device))
        return True

    def _unscales(self) -> bool:
        """Whether the wrapped optimizer works with a GradScaler by itself, as fused ones do."""
        return bool(self.__dict__.get("_step_supports_amp_scaling", False))

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Taken for Horovod's sake: a step uses whatever gradients there are."""
        if passes < 1:
            raise UsageError(f"backward_passes_per_step={passes}. A step needs a backward pass. Give 1 or more.")
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Does nothing: gradients stay each rank's own, and may be clipped at once."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Changes nothing: what is combined is the step, which is not made before ``step()``."""
        yield
