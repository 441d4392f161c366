"""Buckets: gradients that lie side by side in shared memory and are reduced as one.

Owns how a parameter is recorded (``GradientEntry``), how parameters are put together (``plan``), and the memory of one
bucket (``Bucket``). A bucket's views are what ``param.grad`` is set to; behind them lie a few elements in which the
ranks tell each other, with the same reduction, who had no gradient for what. So every rank always submits every bucket,
and what comes out does not depend on ranks firing alike.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from hora.engine.backend import NotFinite
from hora.errors import UsageError
from hora.torch.adapter import DTYPES
from hora.torch.memory import shared_empty
from hora.torch.submit import Start

__all__ = ["FIGURES", "REPLICAS", "Bucket", "GradientEntry", "layout_of", "layout_sum", "plan"]

_ALIGN = 64  # bytes: every view begins on a cache line of its own
_FIRST_BYTES = 1 << 20  # the first bucket is small, so that communication begins early in the backward pass

# What the first rank may ask for, as bits: it does so with the reduction of a step, and then all ranks do it after that
# step, also those that have counted their steps differently because some joined before others.
REPLICAS, FIGURES = 1, 2  # compare the parameters; bring together what the summary tells

Strides = tuple[int, ...]


class GradientEntry:
    """One parameter: its name, how far its gradient is in this step, and how it travels."""

    __slots__ = (
        "bucket",
        "fire",
        "group",
        "hook",
        "kept",
        "kind",
        "label",
        "layout",
        "left",
        "marked",
        "name",
        "not_finite",
        "parameter",
        "place",
        "resparse",
        "sent",
        "settled",
        "sparse",
        "start",
        "view",
    )

    def __init__(self, parameter: torch.Tensor, label: str, group: int | None, passes: int) -> None:
        self.parameter, self.label, self.group = parameter, label, group
        self.name = ""  # in this generation: under the optimizer's namespace
        self.left = passes  # backward passes until its gradient is due
        self.hook: Any = None  # the handle of what is registered with the parameter
        self.fire: Callable[[torch.Tensor], None] | None = None  # what is registered
        self.settled = False  # that it is reduced by itself, for good
        self.sparse = False  # if settled: that its gradients are sparse
        self.kind = 0  # alone: what was sent in this step: nothing (0), a dense (1) or a sparse (2) gradient
        self.sent: Callable[[], torch.Tensor] | None = None  # alone: waits for it
        self.marked = False  # alone: the guard has looked at it here, because the core does not
        self.not_finite: Sequence[NotFinite] = ()  # alone: what the core has found in it
        self.kept: object = None  # what param.grad was when it was sent, where that is not ``view``
        self.resparse = -1  # sparse_as_dense: how many sparse dimensions the result gets again
        self.layout: Strides | None = None  # the order of elements that all ranks send it in; None: row by row
        self.start: Start | None = None  # alone, settled and dense: what begins to reduce it
        self.bucket: Bucket | None = None
        self.place = -1
        self.view: torch.Tensor | None = None  # None also for a bucket of another type than the parameter's


class Bucket:
    """The gradients of some parameters in one flat tensor of ``dtype``, and what the ranks say about them.

    The flat tensor holds the parameters in order, each aligned, then ``one`` (every rank adds 1), ``mark`` (the
    guard's), two ``asks`` (the first rank adds 1 to what it asks for), ``trouble`` (a rank with something to say adds
    1), and an ``absent`` and an ``odd`` for each parameter: a rank adds 1 if it has no gradient, or one that does not
    fit. All of them go through the same reduction, so that they are compared with ``one``, whatever the reduction does
    to numbers.
    """

    __slots__ = (
        "_asks",
        "_marks",
        "_one_bits",
        "_trouble",
        "_words",
        "dtype",
        "entries",
        "flat",
        "left",
        "mark",
        "marked",
        "nbytes",
        "number",
        "one",
        "sent_bytes",
        "size",
        "start",
        "submitted",
        "views",
    )

    def __init__(self, entries: list[GradientEntry], dtype: torch.dtype, number: int = 0) -> None:
        self.entries, self.dtype, self.number = entries, dtype, number
        device = entries[0].parameter.device
        step = max(1, _ALIGN // dtype.itemsize)
        starts, end = [], 0
        for entry in entries:
            starts.append(end)
            end += -(-entry.parameter.numel() // step) * step
        length = end + 5 + 2 * len(entries)
        on_host = device.type == "cpu" and dtype in DTYPES
        self.flat = shared_empty(length, dtype=dtype) if on_host else torch.empty(length, dtype=dtype, device=device)
        self.flat.zero_()
        self.nbytes = self.sent_bytes = length * dtype.itemsize
        self.views = [
            self.flat.as_strided(entry.parameter.shape, entry.layout or _row_major(entry.parameter.shape), start)
            for entry, start in zip(entries, starts, strict=True)
        ]
        self.one, self.mark, self._asks, self._trouble = self.flat[end : end + 5].split([1, 1, 2, 1])
        self._marks = self.flat[end + 5 :].view(2, len(entries))
        # The first five as bits, where Python can reach them: a tensor operation on one number takes longer than that.
        self._words = _bits(self.flat[end : end + 5]).numpy().data if device.type == "cpu" else None
        self._one_bits = int(_bits(torch.ones(1, dtype=dtype, device="cpu")).item())
        self.size = self.left = len(entries)
        self.submitted = False
        self.marked = True  # the guard looks at it here, because the core does not
        self.start: Start | None = None
        for place, (entry, view) in enumerate(zip(entries, self.views, strict=True)):
            entry.bucket, entry.place = self, place
            entry.view = view if dtype is entry.parameter.dtype else None

    def open(self, asks: int = 0) -> None:
        """About to be submitted: say what every rank says, and ask for something, if this is the first rank."""
        words, one = self._words, self._one_bits
        if words is not None:
            words[0], words[1] = one, 0
            words[2], words[3] = one if asks & REPLICAS else 0, one if asks & FIGURES else 0
            return
        self.one.fill_(1)
        self.mark.zero_()
        self._asks.copy_(torch.tensor([asks & REPLICAS, asks & FIGURES], device="cpu") > 0)

    def asks(self) -> int:
        """After the reduction: what the first rank wants all to do."""
        replicas, figures = self._asks.tolist() if self._words is None else self._words[2:4]
        return (REPLICAS if replicas else 0) | (FIGURES if figures else 0)

    def has_trouble(self) -> bool:
        """After the reduction: whether any rank has something to say about any parameter."""
        return bool(self._trouble.item() if self._words is None else self._words[4])

    def pieces(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What is in it, by name."""
        return zip((entry.label for entry in self.entries), self.views, strict=True)

    def mark_absent(self, place: int) -> None:
        """This rank has no gradient for it: it contributes zeros."""
        self.views[place].zero_()
        self._marks[0, place] = 1
        self._trouble.fill_(1)

    def mark_odd(self, place: int) -> None:
        """This rank has a gradient for it that does not fit in here: it contributes zeros, and another is to follow."""
        self.views[place].zero_()
        self._marks[1, place] = 1
        self._trouble.fill_(1)

    def verdicts(self) -> tuple[list[float], list[float]]:
        """The share of the ranks without a gradient, and with one that does not fit, for each."""
        shares = self._marks.double() / self.one.double()
        absent, odd = shares.tolist()
        return absent, odd

    def sort_out(self, keep: bool) -> list[GradientEntry]:
        """After a reduction with trouble: act on what ranks said; returns what has to be reduced by itself, after
        all."""
        absent, odd = self.verdicts()
        leaves_bucket = []
        for entry, view in zip(self.entries, self.views, strict=True):
            here, there = absent[entry.place], odd[entry.place]
            if there > 0:
                if here + there < 0.999:
                    raise UsageError(
                        f"the gradient of {entry.label} has changed its type, shape or device on some ranks only. It"
                        " cannot be added up. Change the model on all ranks before the same step."
                    )
                leaves_bucket.append(entry)
            elif here < 0.999 and keep and entry.left > 0 and entry.parameter.grad is None:
                entry.parameter.grad = view if entry.view is not None else view.to(entry.parameter.dtype)
        return leaves_bucket

    def cast_back(self) -> None:
        """After the reduction, for a bucket of another type than the parameters': fill the gradients it was made of."""
        grads, views = [], []
        for entry, view in zip(self.entries, self.views, strict=True):
            grad = entry.parameter.grad
            if grad is not None and grad is entry.kept:
                grads.append(grad.detach())
                views.append(view)
        if grads:
            torch._foreach_copy_(grads, views)

    def reset(self, had_trouble: bool = False) -> None:
        """Ready for the next step."""
        self.left, self.submitted = self.size, False
        if had_trouble:
            self._marks.zero_()
            self._trouble.zero_()


def plan(
    entries: Sequence[GradientEntry], dtype_on_wire: Callable[[GradientEntry], torch.dtype], most_bytes: int
) -> list[list[GradientEntry]]:
    """Which parameters go together: those of a group; others in the given order, up to ``most_bytes`` of a type.

    >>> parameters = [torch.zeros(100), torch.zeros(100), torch.zeros(100, dtype=torch.float64), torch.zeros(100)]
    >>> entries = [GradientEntry(parameter, str(i), None, 1) for i, parameter in enumerate(parameters)]
    >>> [[e.label for e in bucket] for bucket in plan(entries, lambda e: e.parameter.dtype, 800)]
    [['0', '1'], ['3'], ['2']]
    """
    closed: list[list[GradientEntry]] = []
    open_: dict[tuple[object, ...], tuple[list[GradientEntry], int]] = {}
    for entry in entries:
        dtype = dtype_on_wire(entry)
        key = (entry.group, dtype, entry.parameter.device)
        nbytes = entry.parameter.numel() * dtype.itemsize
        bucket, filled = open_.get(key, ([], 0))
        room = most_bytes if closed else min(_FIRST_BYTES, most_bytes)
        if bucket and entry.group is None and filled + nbytes > room:
            closed.append(bucket)
            bucket, filled = [], 0
        bucket.append(entry)
        open_[key] = bucket, filled + nbytes
    return closed + [bucket for bucket, _ in open_.values()]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize])


def layout_of(parameter: torch.Tensor) -> Strides | None:
    """The strides in which autograd lays out the parameter's gradient; None where that is row by row.

    >>> layout_of(torch.zeros(2, 3)), layout_of(torch.zeros(2, 3).t())
    (None, (1, 3))
    """
    if parameter.is_contiguous() or parameter.layout is not torch.strided:
        return None
    expected = 1  # a permutation of a contiguous tensor has each stride the product of the sizes below it
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return None
            expected *= size
    return parameter.stride()


def layout_sum(parameter: torch.Tensor) -> int:
    """A number that tells layouts apart, small enough that the squares of many can be added up."""
    strides = layout_of(parameter) or ()
    told = [stride for stride, size in zip(strides, parameter.shape, strict=False) if size > 1]
    return zlib.crc32(repr(told).encode()) & 0xFFFFF


def _row_major(shape: Sequence[int]) -> Strides:
    strides, below = [], 1
    for size in reversed(shape):
        strides.append(below)
        below *= max(1, size)
    return tuple(reversed(strides))
