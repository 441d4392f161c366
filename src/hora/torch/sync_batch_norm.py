"""Batch normalisation over the batches of all ranks together.

Promises: in training, N ranks compute what one process would compute on the concatenation of their batches: outputs,
running statistics and gradients, however uneven the batches are, down to an empty one; a rank that has joined counts
as an empty batch. One small allreduce forward, one backward. (Of float64 inputs the variance takes a second one, to be
exact: see ``_moments``.) In evaluation, or alone, it is torch's own batch normalisation.

Each layer has a name of its own, so several may be in flight at once. The gradients of weight and bias are those of
this rank's batch, as with any other layer: the optimizer reduces them.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from hora.basics import Sum
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UsageError
from hora.ops.numbering import name_of
from hora.torch.collectives import allreduce_
from hora.torch.compat import disable_dynamo

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """Takes the place of ``BatchNorm1d``, ``BatchNorm2d`` and ``BatchNorm3d``, on any device.

    Args:
        num_features: Channels: the size of dimension 1.
        eps: Added to the variance.
        momentum: Weight of the newest batch in the running statistics; None averages over all batches.
        affine: Whether it has weight and bias.
        track_running_stats: Whether to keep running statistics for evaluation.
        process_set: The ranks whose batches are normalised together; all of them unless given.

    >>> import hora.torch as hvd
    >>> hvd.init()
    >>> hvd.SyncBatchNorm(2)(torch.tensor([[0.0, 1.0], [2.0, 5.0]]))
    tensor([[-1.0000, -1.0000],
            [ 1.0000,  1.0000]], grad_fn=...)
    >>> hvd.shutdown()
    """

    process_set: ProcessSet

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self.process_set = process_set

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """The module with every batch normalisation in it replaced; parameters, buffers and hooks are kept.

        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
        >>> SyncBatchNorm.convert_sync_batchnorm(model)
        Sequential(
          (0): Linear(in_features=2, out_features=3, bias=True)
          (1): SyncBatchNorm(3, eps=1e-05, momentum=0.1, affine=True, ...track_running_stats=True)
        )
        """
        done: dict[torch.nn.Module, torch.nn.Module] = {}
        for parent in list(module.modules()):
            for name, child in parent._modules.items():
                if isinstance(child, _BatchNorm):
                    if child not in done:  # a layer that stands in two places stays one
                        done[child] = cls._in_place_of(child, process_set)
                    parent._modules[name] = done[child]
        return cls._in_place_of(module, process_set) if isinstance(module, _BatchNorm) else module

    @classmethod
    def _in_place_of(cls, plain: _BatchNorm, process_set: ProcessSet) -> SyncBatchNorm:
        if any(is_lazy(tensor) for tensor in (*plain.parameters(), *plain.buffers())):
            raise UsageError(
                f"convert_sync_batchnorm met a {type(plain).__name__} that has not seen any input. Its number of"
                " channels is not known yet. Run one batch through the model first, on every rank."
            )
        layer = cls.__new__(cls)
        layer.__dict__.update(plain.__dict__)
        layer.process_set = process_set
        return layer

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if not self.training or self.process_set.size() == 1:
            return super().forward(input)
        factor = 0.0 if self.momentum is None else self.momentum
        if self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        output, mean, var, total = _normalize(self, input)
        if self.running_mean is not None and self.running_var is not None and total > 0:
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
                self.running_var.lerp_((var * (total / (total - 1))).to(self.running_var.dtype), factor)
        return output

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise UsageError(
                f"SyncBatchNorm({self.num_features}) was given an input of shape {tuple(input.shape)}. Dimension 1 must"
                f" be its {self.num_features} channels. Give it (batch, channels, …)."
            )

    def extra_repr(self) -> str:
        everybody = self.process_set == global_process_set
        described: str = _BatchNorm.extra_repr(self)
        return described + ("" if everybody else f", process_set={self.process_set}")

    # A process set belongs to this process: copies of the layer share it, and files hold its ranks only.

    def __deepcopy__(self, memo: dict[int, Any]) -> SyncBatchNorm:
        memo[id(self.process_set)] = self.process_set
        copy = self.__class__.__new__(self.__class__)
        memo[id(self)] = copy
        copy.__dict__.update(deepcopy(self.__dict__, memo))
        return copy

    def __getstate__(self) -> dict[str, Any]:
        everybody = self.process_set == global_process_set
        return {**self.__dict__, "process_set": None if everybody else self.process_set.ranks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ranks = state["process_set"]
        _BatchNorm.__setstate__(
            self, {**state, "process_set": global_process_set if ranks is None else ProcessSet(ranks)}
        )


@disable_dynamo  # the compiler is to leave communication alone, and not to look into it either
def _normalize(layer: SyncBatchNorm, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    function: type[torch.autograd.Function] = _Normalize
    name = name_of(layer, "sync_batch_norm", layer.process_set)
    results: tuple[torch.Tensor, torch.Tensor, torch.Tensor, float] = function.apply(
        input, layer.weight, layer.bias, layer.eps, name, layer.process_set
    )
    return results


class _Normalize(torch.autograd.Function):
    """Input, weight, bias to output, mean, variance (of all ranks, per channel) and the number of values in them."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        name: str,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
        mean, var, total = _moments(input, name, process_set)
        if total == 1:
            raise UsageError(
                f"SyncBatchNorm: expected more than 1 value per channel when training, got input of shape"
                f" {tuple(input.shape)} and nothing on the other ranks. One value has no variance. Use larger batches,"
                " or eval()."
            )
        # Torch normalises 16-bit inputs by statistics and parameters of 32 bits, and others by those of their own type.
        mean, var = (part.to(torch.float32 if input.itemsize < 4 else input.dtype) for part in (mean, var))
        ctx.save_for_backward(input, weight, mean, var)
        ctx.eps, ctx.name, ctx.process_set, ctx.total = eps, f"{name}.grad", process_set, total
        output = torch.empty_like(input)
        if input.numel():
            weight, bias = _widened(weight), _widened(bias)
            output = torch.batch_norm(input, weight, bias, mean, var, False, 0.0, eps, torch.backends.cudnn.enabled)
        ctx.mark_non_differentiable(mean, var)
        return output, mean, var, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, *_: object) -> tuple[torch.Tensor | None, ...]:
        input, weight, mean, var = ctx.saved_tensors
        wants_input, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        if input.numel():
            # For fixed statistics torch has all of this: grad times scale, and the sums per channel.
            direct, by_hat, plain = torch.ops.aten.native_batch_norm_backward(
                grad, input, _widened(weight), mean, var, None, None, False, ctx.eps, [wants_input, True, True]
            )
        else:
            direct, by_hat, plain = torch.empty_like(input), torch.zeros_like(mean), torch.zeros_like(mean)
        if wants_input:
            # The statistics were not fixed: they moved with every rank's input.
            sums = torch.cat((plain, by_hat)).double()
            allreduce_(sums, name=ctx.name, op=Sum, process_set=ctx.process_set)
            if input.numel():
                inverse = (var.double() + ctx.eps).rsqrt()
                scale = inverse / ctx.total if weight is None else inverse * weight.double() / ctx.total
                shift, slope = (sums * -scale.repeat(2)).to(mean.dtype).chunk(2)
                direct.add_(torch.batch_norm(input, slope, shift, mean, var, False, 0.0, ctx.eps, False))
        return (
            direct if wants_input else None,
            by_hat.to(weight.dtype) if wants_weight else None,
            plain.to(weight.dtype) if wants_bias else None,
            None,
            None,
            None,
        )


def _widened(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return tensor if tensor is None or tensor.itemsize > 2 else tensor.float()


def _moments(input: torch.Tensor, name: str, process_set: ProcessSet) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean and variance per channel over all ranks, in float64, and how many values a channel has altogether.

    What is summed over the ranks is [values, squares, count]. In float64 that loses nothing that inputs of 32 bits had:
    the sum of squares is wrong by mean² / 10^16, and the rounding of the inputs themselves by mean × deviation / 10^7.
    Of float64 inputs it would lose, so they are summed first, then the squares of what differs from the mean.
    """
    channels = input.shape[1]
    values = torch.zeros(2 * channels + 1, dtype=torch.float64, device=input.device)
    count = input.numel() / channels if channels else 0.0
    if count:
        # On the host torch would round the statistics of 16-bit inputs to 16 bits.
        widened = input.float() if input.is_cpu and input.itemsize < 4 else input
        own_mean, own_var = (part.double() for part in torch.batch_norm_update_stats(widened, None, None, 0.0))
        values[:channels], values[-1] = own_mean * count, count
        if input.dtype is not torch.float64:
            values[channels:-1] = (own_var + own_mean * own_mean) * count
    allreduce_(values, name=name, op=Sum, process_set=process_set)
    total = float(values[-1])
    mean, square = values[:channels] / max(total, 1.0), values[channels:-1] / max(total, 1.0)
    if input.dtype is not torch.float64:
        return mean, (square - mean * mean).clamp_(min=0.0), total
    around = (own_var + (own_mean - mean) ** 2) * count if count else torch.zeros_like(mean)
    allreduce_(around, name=f"{name}.variance", op=Sum, process_set=process_set)
    return mean, around / max(total, 1.0), total
