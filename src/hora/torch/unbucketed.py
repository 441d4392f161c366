"""Gradients that are reduced each by itself, under the name of its parameter, whatever it is.

Every gradient does so in the first step, before there are buckets; sparse ones, those that a compressor of its own kind
works on, and large ones that already lie in shared memory do so for good. ``PresenceCheck`` is how the ranks find out
who has which of them: at the end of the backward pass all of them tell all what they sent, in one small reduction. What
nobody sent, nobody waits for; what somebody sent, the others bring zeros for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from hora.engine.core import Engine
from hora.engine.process_set import ProcessSet
from hora.errors import UsageError
from hora.ops.compression import has_memory
from hora.ops.gradients import GradientRule
from hora.torch import submit
from hora.torch.bucket import GradientEntry, layout_of, layout_sum
from hora.torch.sparse import sparse_allreduce_async
from hora.types import ReduceOp, Reduction

__all__ = ["DENSE", "NOTHING", "SPARSE", "GradientPresence", "PresenceCheck", "send", "stand_in"]

NOTHING, DENSE, SPARSE = 0, 1, 2
_SHARED_BYTES = 64 << 10  # from here on, a gradient allocated in shared memory is worth an operation of its own


def allocate_gradient_in_shared_memory(parameter: torch.Tensor, engine: Engine) -> None:
    """Have the preloaded allocator, if there is one, put gradients of this size where all workers of the host are.

    Autograd hands over gradients as it computed them, so those need not be copied into a bucket.
    """
    if engine.settings.shared_gradients and parameter.is_cpu:
        engine.backend.serve(parameter.numel() * parameter.itemsize)


def is_summed(grad: torch.Tensor, rule: GradientRule) -> bool:
    """Whether the gradient itself is what the ranks add up, on the host, where the core can look at it."""
    dense = grad.layout is torch.strided or rule.sparse_as_dense
    return dense and grad.is_cpu and not has_memory(rule.compression)


def send(entry: GradientEntry, grad: torch.Tensor, rule: GradientRule) -> None:
    """Begin to reduce one gradient, in place if possible; ``entry.sent`` waits for it."""
    compression, name = rule.compression, entry.name
    entry.kept, entry.kind = entry.parameter.grad, DENSE
    grad = grad.detach() if grad.requires_grad else grad
    if grad.layout is not torch.strided:
        entry.kind = SPARSE
        if not rule.sparse_as_dense:
            entry.sent = sparse_allreduce_async(grad, name, rule.op, rule.process_set)
            return
        entry.resparse = grad.sparse_dim()
        grad = grad.to_dense()
    if has_memory(compression):
        entry.sent = compression.start(name, grad, rule.op, rule.process_set)
        return
    if entry.start is not None and grad.dtype is entry.parameter.dtype:
        whole = _laid_out(entry, grad)
        prepared = entry.start(whole)

        def wait_prepared() -> torch.Tensor:
            entry.not_finite = prepared.wait().not_finite
            return whole

        entry.sent = wait_prepared
        return
    small, context = compression.compress(grad)
    sent = torch.view_as_real(small.resolve_conj()) if small.is_complex() else small
    under_way = submit.allreduce_in_place(sent, rule.how, name, rule.process_set)

    def wait() -> torch.Tensor:
        entry.not_finite = under_way.wait().not_finite
        received = torch.view_as_complex(sent) if small.is_complex() else small
        result: torch.Tensor = compression.decompress(received, context)
        return result

    entry.sent = wait


def _laid_out(entry: GradientEntry, grad: torch.Tensor) -> torch.Tensor:
    """The gradient with its elements in the order that all ranks send them in."""
    if entry.layout is None:
        return grad.contiguous()
    if grad.stride() == entry.layout:
        return grad
    return torch.empty_strided(grad.shape, entry.layout, dtype=grad.dtype, device=grad.device).copy_(grad)


def stand_in(parameter: torch.Tensor, kind: int, sparse_as_dense: bool) -> torch.Tensor:
    """What a rank without a gradient brings to the others': zeros, or a sparse tensor of nothing.

    >>> stand_in(torch.ones(3, 2), SPARSE, False).coalesce().values().shape
    torch.Size([0, 2])
    """
    if kind == SPARSE and not sparse_as_dense:
        indices = torch.zeros((1, 0), dtype=torch.int64, device=parameter.device)
        values = parameter.new_zeros((0, *parameter.shape[1:]))
        return torch.sparse_coo_tensor(
            indices, values, parameter.shape, check_invariants=False, is_coalesced=True
        ).detach()
    return torch.zeros_like(parameter, requires_grad=False)


class GradientPresence(NamedTuple):
    """What the presence check said about one parameter."""

    dense: int  # ranks that sent a dense gradient
    sparse: int  # and a sparse one
    order: int  # when the first rank sent it: 1 and up; 0 if it did not
    shared: bool  # on all ranks it is large and lies in shared memory
    same_layout: bool  # all ranks lay it out alike

    @property
    def kind(self) -> int:
        return SPARSE if self.sparse else DENSE if self.dense else NOTHING


class PresenceCheck:
    """One small reduction that tells all ranks who sent what, for a list of entries that is the same on all ranks."""

    def __init__(self, entries: Sequence[GradientEntry], engine: Engine, name: str, process_set: ProcessSet) -> None:
        self._entries, self._engine = list(entries), engine
        self._first = process_set.members[0] == engine.rank
        self.asks = 0  # heard: what the first rank wants all to do
        usual = [self._row(entry, _usual(entry)) for entry in entries]
        self._usual = torch.tensor([1, 0, 0, *(number for row in usual for number in row)], device="cpu")
        self._said = self._usual.clone()
        self._numbers = self._said.numpy().data  # the same memory, where Python can reach it quickly
        self._start = submit.prepare(self._said, Reduction(ReduceOp.SUM), name, process_set)

    def start(self, order: Sequence[GradientEntry], asks: int) -> None:
        """Say what was sent; ``order`` are the entries as they were sent. The first rank may ask for something."""
        unusual = [place for place, entry in enumerate(self._entries) if entry.kind != _usual(entry)]
        self._said.copy_(self._usual)
        if unusual:
            when = {id(entry): i for i, entry in enumerate(order, 1)} if self._first else {}
            self._numbers[1] = 1
            for place in unusual:
                entry = self._entries[place]
                for i, number in enumerate(self._row(entry, entry.kind, when.get(id(entry), 0)), 3 + 6 * place):
                    self._numbers[i] = number
        self._numbers[2] = asks
        self._under_way = self._start(self._said)

    def hear(self) -> tuple[int, list[GradientPresence]] | None:
        """How many ranks took part and what they said of each entry; None if all said what they usually do."""
        self._under_way.wait()
        self.asks = self._numbers[2]
        if not self._numbers[1]:
            return None
        taking_part, _, _, *numbers = self._said.tolist()
        answers = []
        for i in range(0, len(numbers), 6):
            dense, sparse, order, shared, layouts, squares = numbers[i : i + 6]
            same = taking_part * squares == layouts * layouts  # Cauchy and Schwarz: only if all are equal
            answers.append(GradientPresence(dense, sparse, order, shared == taking_part, same))
        return taking_part, answers

    def _row(self, entry: GradientEntry, kind: int, order: int = 0) -> tuple[int, ...]:
        layout = layout_sum(entry.parameter)
        return kind == DENSE, kind == SPARSE, order, self._is_shared(entry), layout, layout * layout

    def _is_shared(self, entry: GradientEntry) -> bool:
        grad = entry.parameter.grad
        if grad is None or entry.settled or entry.kind != DENSE or not grad.is_cpu:
            return False
        nbytes = grad.numel() * grad.itemsize
        fits = grad.is_contiguous() if (layout := layout_of(entry.parameter)) is None else grad.stride() == layout
        return nbytes >= _SHARED_BYTES and fits and self._engine.backend.shares(grad.data_ptr(), nbytes)


def _usual(entry: GradientEntry) -> int:
    if not entry.settled:
        return NOTHING
    return SPARSE if entry.sparse else DENSE


def refuse_mixed(entry: GradientEntry, answer: GradientPresence) -> None:
    """A gradient that is sparse here and dense there cannot be added up."""
    if answer.dense and answer.sparse:
        raise UsageError(
            f"the gradient of {entry.label} is sparse on {answer.sparse} ranks and dense on {answer.dense}. They cannot"
            " be added up. Use DistributedOptimizer(..., sparse_as_dense=True), or give all ranks the same graph."
        )
