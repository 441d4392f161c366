"""Gradients that travel alone: each under its parameter's name, whatever it is.

Every gradient does so in the first step, before there are buckets; sparse ones, those that a compressor of its own kind
works on, and large ones that already lie in shared memory do so for good. ``RollCall`` is how the ranks find out who
has which of them: at the end of the backward pass all of them tell all what they sent, in one small reduction. What
nobody sent, nobody waits for; what somebody sent, the others bring zeros for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from hora.engine.core import Engine
from hora.engine.process_set import ProcessSet
from hora.errors import UsageError
from hora.ops.resolve import Reduction
from hora.torch import submit
from hora.torch.bucket import Channel, Entry, layout_of, layout_sum
from hora.torch.sparse import sparse_allreduce_async
from hora.transport.base import ReduceOp

__all__ = ["DENSE", "NOTHING", "SPARSE", "Answer", "RollCall", "Terms", "send", "stand_in"]

NOTHING, DENSE, SPARSE = 0, 1, 2
_SHARED_BYTES = 64 << 10  # from here on, a gradient born in shared memory is worth an operation of its own


class Terms(NamedTuple):
    """What all gradients of one optimizer have in common."""

    compression: Any  # a Compressor class, or a GradientCompressor with a memory
    op: ReduceOp  # as the user said it
    how: Reduction  # as it is carried out: with the pre-division, if any
    process_set: ProcessSet
    sparse_as_dense: bool


def let_be_born_in_shared_memory(parameter: torch.Tensor, engine: Engine) -> None:
    """Have the preloaded allocator, if there is one, put gradients of this size where all workers of the host are.

    Autograd hands over gradients as it computed them, so those need not be copied into a bucket.
    """
    serve = getattr(engine.backend, "serve", None)
    if serve is not None and engine.settings.shared_gradients and parameter.is_cpu:
        serve(parameter.numel() * parameter.itemsize)


def is_summed(grad: torch.Tensor, terms: Terms) -> bool:
    """Whether the gradient itself is what the ranks add up, on the host, where the core can look at it."""
    dense = grad.layout is torch.strided or terms.sparse_as_dense
    return dense and grad.is_cpu and not hasattr(terms.compression, "start")


def send(entry: Entry, grad: torch.Tensor, terms: Terms) -> None:
    """Begin to reduce one gradient, in place if possible; ``entry.sent`` waits for it."""
    compression, name = terms.compression, entry.name
    entry.kept, entry.kind = entry.parameter.grad, DENSE
    grad = grad.detach() if grad.requires_grad else grad
    if grad.layout is not torch.strided:
        entry.kind = SPARSE
        if not terms.sparse_as_dense:
            entry.sent = sparse_allreduce_async(grad, name, terms.op, terms.process_set)
            return
        entry.resparse = grad.sparse_dim()
        grad = grad.to_dense()
    if hasattr(compression, "start"):
        entry.sent = compression.start(name, grad, terms.op, terms.process_set)
        return
    if entry.channel is not None and grad.dtype is entry.parameter.dtype:
        entry.sent = _through(entry, entry.channel, _laid_out(entry, grad))
        return
    small, context = compression.compress(grad)
    sent = torch.view_as_real(small.resolve_conj()) if small.is_complex() else small
    started = submit.allreduce([sent], terms.how, name, terms.process_set, in_place=True)

    def wait() -> torch.Tensor:
        outcome = started.engine.wait(started.ticket)
        started.finish(outcome)
        entry.not_finite = outcome.not_finite
        received = torch.view_as_complex(sent) if small.is_complex() else small
        result: torch.Tensor = compression.decompress(received, context)
        return result

    entry.sent = wait


def _laid_out(entry: Entry, grad: torch.Tensor) -> torch.Tensor:
    """The gradient with its elements in the order that all ranks send them in."""
    if entry.layout is None:
        return grad.contiguous()
    if grad.stride() == entry.layout:
        return grad
    return torch.empty_strided(grad.shape, entry.layout, dtype=grad.dtype, device=grad.device).copy_(grad)


def _through(entry: Entry, channel: Channel, sent: torch.Tensor) -> Callable[[], torch.Tensor]:
    ticket, wait_for = channel.start(sent), channel.wait

    def wait() -> torch.Tensor:
        entry.not_finite = wait_for(ticket).not_finite
        return sent

    return wait


def stand_in(parameter: torch.Tensor, kind: int, sparse_as_dense: bool) -> torch.Tensor:
    """What a rank without a gradient brings to the others': zeros, or a sparse tensor of nothing.

    >>> stand_in(torch.ones(3, 2), SPARSE, False).coalesce().values().shape
    torch.Size([0, 2])
    """
    if kind == SPARSE and not sparse_as_dense:
        indices, values = torch.zeros((1, 0), dtype=torch.int64), parameter.new_zeros((0, *parameter.shape[1:]))
        return torch.sparse_coo_tensor(
            indices.to(parameter.device), values, parameter.shape, check_invariants=False, is_coalesced=True
        ).detach()
    return torch.zeros_like(parameter, requires_grad=False)


class Answer(NamedTuple):
    """What the roll call said about one parameter."""

    dense: int  # ranks that sent a dense gradient
    sparse: int  # and a sparse one
    order: int  # when the first rank sent it: 1 and up; 0 if it did not
    shared: bool  # on all ranks it is large and lies in shared memory
    same_layout: bool  # all ranks lay it out alike

    @property
    def kind(self) -> int:
        return SPARSE if self.sparse else DENSE if self.dense else NOTHING


class RollCall:
    """One small reduction that tells all ranks who sent what, for a list of entries that is the same on all ranks."""

    def __init__(self, entries: Sequence[Entry], engine: Engine, name: str, process_set: ProcessSet) -> None:
        self._entries, self._engine = list(entries), engine
        self._first = process_set.members[0] == engine.rank
        self.asks = 0  # heard: what the first rank wants all to do
        usual = [self._row(entry, _usual(entry)) for entry in entries]
        self._usual = torch.tensor([1, 0, 0, *(number for row in usual for number in row)])
        self._said = self._usual.clone()
        self._numbers = self._said.numpy().data  # the same memory, where Python can reach it quickly
        like = torch.int64, self._usual.shape, torch.device("cpu")
        self._channel = Channel(engine, name, like, Reduction(ReduceOp.SUM), process_set)

    def start(self, order: Sequence[Entry], asks: int) -> None:
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
        self._ticket = self._channel.start(self._said)

    def hear(self) -> tuple[int, list[Answer]] | None:
        """How many ranks took part and what they said of each entry; None if all said what they usually do."""
        self._channel.wait(self._ticket)
        self.asks = self._numbers[2]
        if not self._numbers[1]:
            return None
        taking_part, _, _, *numbers = self._said.tolist()
        answers = []
        for i in range(0, len(numbers), 6):
            dense, sparse, order, shared, layouts, squares = numbers[i : i + 6]
            same = taking_part * squares == layouts * layouts  # Cauchy and Schwarz: only if all are equal
            answers.append(Answer(dense, sparse, order, shared == taking_part, same))
        return taking_part, answers

    def _row(self, entry: Entry, kind: int, order: int = 0) -> tuple[int, ...]:
        layout = layout_sum(entry.parameter)
        return kind == DENSE, kind == SPARSE, order, self._is_shared(entry), layout, layout * layout

    def _is_shared(self, entry: Entry) -> bool:
        grad = entry.parameter.grad
        shares = getattr(self._engine.backend, "shares", None)
        if shares is None or grad is None or entry.settled or entry.kind != DENSE or not grad.is_cpu:
            return False
        nbytes = grad.numel() * grad.itemsize
        fits = grad.is_contiguous() if (layout := layout_of(entry.parameter)) is None else grad.stride() == layout
        return nbytes >= _SHARED_BYTES and fits and bool(shares(grad.data_ptr(), nbytes))


def _usual(entry: Entry) -> int:
    if not entry.settled:
        return NOTHING
    return SPARSE if entry.sparse else DENSE


def refuse_mixed(entry: Entry, answer: Answer) -> None:
    """A gradient that is sparse here and dense there cannot be added up."""
    if answer.dense and answer.sparse:
        raise UsageError(
            f"the gradient of {entry.label} is sparse on {answer.sparse} ranks and dense on {answer.dense}. They cannot"
            " be added up. Use DistributedOptimizer(..., sparse_as_dense=True), or give all ranks the same graph."
        )
