"""Compressors with a memory: what all of them share, and the interface the optimizer sees.

Error feedback: worker i has a gradient g and an error e, zero at first, for every name. It sends C, a small code of
``x = g + e``, and keeps what the code leaves out::

    e  ←  x − D(C(x))                 D(C) is the tensor that the code stands for
    result  =  Σ D(C(x)) over ranks   (divided by their number for Average)

so that over any number of steps ``Σ results + Σ errors = Σ gradients``: nothing is lost, only late. (Rounding aside; in
particular, of a result to 16 bits if the gradient has no more. The error of a gradient that was scaled, as GradScaler
does, is in that scale.)

Promises: the result is the same on every rank, bit for bit where their arithmetic is the same (one type of CPU, one
number of threads); sums run in rank order. Arithmetic and memory are float32 at least. The memory changes only when a
step is finished and its result is finite: after an overflow or a failed collective it is what it was before. It is kept
by name, and apart for every process set.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch

from hora.engine import session
from hora.engine.handle import synchronize
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UsageError
from hora.torch import collectives  # which imports this package: its functions are looked up when they are called
from hora.torch.adapter import DTYPES, is_expanded
from hora.types import ReduceOp

__all__ = ["ErrorFeedback", "GatheredFeedback", "Memory", "whole_number"]


@dataclass
class Memory:
    """What is kept of one gradient: how often it was reduced, and tensors, ``error`` among them."""

    steps: int = 0
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


Exchange = Callable[[], tuple[torch.Tensor, dict[str, torch.Tensor]]]
"""Waits; the reduced tensor, and the tensors to remember."""


class ErrorFeedback(ABC):
    """A compressor with a memory. A subclass says what pays (``pays``) and how ``g + e`` is reduced (``exchange``).

    Tensors of fewer than ``smallest`` elements are sent as they are: there is little to save in them, and biases and
    norms, which they mostly are, want to be exact.
    """

    def __init__(self, smallest: int = 4096) -> None:
        self.smallest = whole_number("smallest", smallest, 0)
        self.raw_bytes = self.wire_bytes = 0
        self._memory: dict[str, Memory] = {}
        self._started: dict[str, object] = {}  # the latest start of each that is not finished

    @abstractmethod
    def pays(self, gradient: torch.Tensor, steps: int) -> bool:
        """Whether to compress this gradient, which was reduced ``steps`` times before; the same on every rank."""

    @abstractmethod
    def exchange(self, name: str, x: torch.Tensor, memory: Memory, op: ReduceOp, process_set: ProcessSet) -> Exchange:
        """Begin to reduce ``x``, a contiguous float32 or float64 tensor that is the compressor's to change."""

    def start(
        self,
        name: str,
        gradient: Any,
        op: ReduceOp = ReduceOp.AVERAGE,
        process_set: ProcessSet = global_process_set,
    ) -> Callable[[], Any]:
        """Begin to reduce a gradient. The function returned waits, leaves the result in the gradient and returns it."""
        if isinstance(gradient, np.ndarray):  # of another front-end
            waits = self.start(name, torch.from_numpy(gradient), op, process_set)
            return lambda: waits().numpy()
        own = self._checked(name, gradient, op)
        key = _key(name, process_set)
        memory = self._memory.get(key) or Memory()
        if own.numel() < max(1, self.smallest) or not self.pays(own, memory.steps):
            handle = self.allreduce(own, name, op, process_set)
            exchange: Exchange | None = None
        else:
            exchange = self.exchange(name, self._with_error(key, own, memory), memory, op, process_set)
        self.raw_bytes += own.numel() * own.itemsize
        token = self._started[key] = object()

        def finish() -> torch.Tensor:
            if self._started.get(key) is not token:
                raise UsageError(
                    f"{type(self).__name__}: {key!r} was finished twice, or started again before it was finished. Its"
                    " error would be counted twice or not at all. Finish every gradient once before its next start."
                )
            del self._started[key]
            if exchange is None:
                synchronize(handle)
            else:
                result, remembered = exchange()
                if math.isfinite(torch.linalg.vector_norm(result, math.inf).item()):
                    memory.tensors = remembered
                own.copy_(result)
            memory.steps += 1
            self._memory[key] = memory
            return own if is_expanded(gradient) else gradient

        return finish

    def report(self) -> str:
        """One line for people: what was saved."""
        names = len(self._memory)
        compressed = sum("error" in memory.tensors for memory in self._memory.values())
        times = f", {self.raw_bytes / self.wire_bytes:.1f} times less" if self.wire_bytes else ""
        return (
            f"{self!r}: {_spelled(self.raw_bytes)} of gradients sent as {_spelled(self.wire_bytes)}{times};"
            f" {compressed} of {names} tensors compressed"
        )

    def state_dict(self) -> dict[str, Any]:
        """This rank's memory, in plain tensors and numbers, for ``torch.save``."""
        return {
            "kind": type(self).__name__,
            "rank": None if session.current is None else session.current.rank,
            "raw_bytes": self.raw_bytes,
            "wire_bytes": self.wire_bytes,
            "memory": {key: {"steps": m.steps, "tensors": dict(m.tensors)} for key, m in self._memory.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a memory. Errors that another rank saved are left out: they are that rank's to send.

        So a checkpoint that rank 0 alone has written can be loaded by all; what the others had not sent yet is lost.
        """
        if state.get("kind") != type(self).__name__:
            raise UsageError(
                f"the state of a {state.get('kind')} was given to a {type(self).__name__}. They remember different"
                " things. Load it into the kind of compressor that saved it."
            )
        here = None if session.current is None else session.current.rank
        foreign = None not in (here, state["rank"]) and here != state["rank"]
        self.raw_bytes, self.wire_bytes = state["raw_bytes"], state["wire_bytes"]
        self._memory = {
            key: Memory(m["steps"], {k: t.clone() for k, t in m["tensors"].items() if not (foreign and k == "error")})
            for key, m in state["memory"].items()
        }

    def compress(self, tensor: torch.Tensor) -> NoReturn:
        """Refused: a tensor without a name has no error to add."""
        raise UsageError(
            f"{self!r} was given to a collective. It remembers what it left out of each gradient by name, and cannot"
            " compress a tensor on its own. Give it to DistributedOptimizer, or call reduce_gradients; for a single"
            " collective use Compression.fp16 or Compression.bf16."
        )

    def allreduce(self, tensor: torch.Tensor, name: str, op: ReduceOp, process_set: ProcessSet) -> int:
        """Begin an allreduce in place, and count its bytes."""
        handle = collectives.allreduce_async_(tensor, name=name, op=op, process_set=process_set)
        self.wire_bytes += tensor.numel() * tensor.itemsize
        return handle

    def allgather(self, tensor: torch.Tensor, name: str, process_set: ProcessSet) -> int:
        """Begin an allgather, and count its bytes."""
        handle = collectives.allgather_async(tensor, name=name, process_set=process_set)
        self.wire_bytes += tensor.numel() * tensor.itemsize
        return handle

    def _checked(self, name: str, gradient: torch.Tensor, op: ReduceOp) -> torch.Tensor:
        """The gradient's values, in its own memory if it can be written to."""
        kind = type(self).__name__
        if not name:
            raise UsageError(f"{kind}: a gradient without a name. The error is kept by name. Give each its own.")
        if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
            raise UsageError(
                f"{kind}: op={getattr(op, 'name', op)} of {name!r}. Error feedback adds later what was left out, which"
                " is right for sums only. Use op=Average or op=Sum, or Compression.fp16 with other operations."
            )
        if gradient.layout is not torch.strided:
            raise UsageError(
                f"{kind}: {name!r} has layout {gradient.layout}. Only dense gradients are compressed. Use"
                " sparse_as_dense=True, or reduce it with sparse_allreduce_async."
            )
        if not gradient.dtype.is_floating_point or gradient.dtype not in DTYPES:
            raise UsageError(
                f"{kind}: {name!r} has type {gradient.dtype}. What is compressed comes back a little different, and"
                " only real numbers allow that. Reduce it with allreduce, or convert with .float()."
            )
        own = gradient.detach()
        return own.contiguous() if is_expanded(own) else own

    def _with_error(self, key: str, own: torch.Tensor, memory: Memory) -> torch.Tensor:
        wide = torch.promote_types(own.dtype, torch.float32)
        x = own.to(wide, memory_format=torch.contiguous_format, copy=True)
        error = memory.tensors.get("error")
        if error is None:
            return x
        if error.shape != x.shape:
            raise UsageError(
                f"{type(self).__name__}: {key!r} has shape {tuple(x.shape)}, but its error is of shape"
                f" {tuple(error.shape)}. The error of one tensor was about to be added to another. Give every gradient"
                " its own name, or start with a new compressor if the model has changed."
            )
        return x.add_(error.to(x))


class GatheredFeedback(ErrorFeedback):
    """Error feedback over codes that cannot be summed: everybody's are gathered, and added up in rank order."""

    suffix: str
    """What the operation is called, after the gradient's name."""

    @abstractmethod
    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """The code of a flat tensor, as bytes. Its length follows from the tensor's."""

    @abstractmethod
    def add(self, code: torch.Tensor, total: torch.Tensor, sign: int = 1) -> None:
        """Add what a code stands for to a flat tensor, or subtract it."""

    def exchange(self, name: str, x: torch.Tensor, memory: Memory, op: ReduceOp, process_set: ProcessSet) -> Exchange:
        flat = x.view(-1)
        code = self.encode(flat)
        # As one row of its length: rows of different lengths are refused, so tensors of different sizes are noticed.
        handle = self.allgather(code.view(1, -1), f"{name}.{self.suffix}", process_set)
        self.add(code, flat, sign=-1)  # what is left is the error
        divisor = process_set.size() if op is ReduceOp.AVERAGE else 1

        def wait() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            total = torch.zeros_like(flat)
            for row in synchronize(handle):
                self.add(row, total)
            return total.div_(divisor).view_as(x), {"error": x}

        return wait


def whole_number(argument: str, value: int, least: int) -> int:
    """``value``, if it is a whole number of at least ``least``.

    >>> whole_number("rank", 0, 1)
    Traceback (most recent call last):
    ...
    hora.errors.UsageError: rank=0. It must be a whole number of at least 1. Give one.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{argument}={value!r}. It must be a whole number of at least {least}. Give one.")
    return value


def _spelled(count: int) -> str:
    """A number of bytes, in the unit that suits it.

    >>> _spelled(999), _spelled(25_557_032)
    ('999 B', '25.6 MB')
    """
    size, units = float(count), ["GB", "MB", "kB", "B"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop()
    return f"{size:.1f} {units[-1]}" if count >= 1000 else f"{count} B"


def _key(name: str, process_set: ProcessSet) -> str:
    """What a gradient is remembered by: the same name on two process sets is two gradients."""
    if process_set == global_process_set:
        return name
    return f"{name}@{','.join(map(str, process_set.members))}"
