"""The engine: what front-ends call.

It names operations, finds the user's source line and checks what one rank can check alone; agreement and movement are
the backend's.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hora.config.settings import Settings
from hora.config.world import World
from hora.engine.backend import Backend, Ticket
from hora.engine.process_set import ProcessSet, ProcessSets
from hora.engine.request import Request, Segment
from hora.errors import NotMemberError, UsageError
from hora.transport.base import Buffer, DType, Kind, ReduceOp
from hora.wire.messages import Peer

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Engine", "source_line", "submitted_from"]

_PACKAGE = os.fspath(Path(__file__).parents[1]) + os.sep
_SHIM = os.sep + "as_horovod" + os.sep
_BETWEEN = (f"{os.sep}torch{os.sep}autograd{os.sep}", f"{os.sep}tensorflow{os.sep}python{os.sep}")
_PREFIX = {kind: kind.name.lower() for kind in Kind}


class Engine:
    """One generation of Hora in this process. ``rank`` and ``size`` are those of the generation.

    ``key`` is what its ranks, and nobody else, know: what comes back from a collective is as the network left it.
    """

    def __init__(
        self,
        world: World,
        settings: Settings,
        rank: int,
        transport: str,
        peers: Sequence[Peer],
        backend: Backend,
        key: bytes,
    ) -> None:
        self.key = key
        self.world, self.settings, self.rank, self.transport, self.backend = world, settings, rank, transport, backend
        self.peers, self.size = tuple(peers), len(peers)
        self.everyone = tuple(range(self.size))
        self.process_sets = ProcessSets(self)
        self._unnamed: dict[tuple[str, tuple[int, ...]], int] = {}
        self._requests: dict[tuple[object, ...], Request] = {}
        self.repeated: dict[object, Any] = {}  # for front-ends: what they do again and again
        self.done = backend.done
        self.wait = backend.wait

    def submit(
        self,
        kind: Kind,
        name: str | None,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        *,
        op: ReduceOp = ReduceOp.SUM,
        root: int = -1,
        prescale: float = 1.0,
        postscale: float = 1.0,
        splits: tuple[int, ...] | None = None,
        process_set: ProcessSet | None = None,
        device: str = "cpu",
        grouped: bool = False,
        wire: DType | None = None,
    ) -> Ticket:
        """Hand an operation to the backend; never blocks.

        Without a name it gets a number, counted per kind and set, so all ranks must make their unnamed calls in the
        same order.
        """
        request = self.request(
            kind, name, tuple([(b.dtype, b.shape) for b in inputs]), op, root, prescale, postscale, splits, process_set,
            device, grouped, wire,
        )  # fmt: skip
        return self.backend.submit(request, inputs, outputs)

    def request(
        self,
        kind: Kind,
        name: str | None,
        tensors: tuple[tuple[object, tuple[int, ...]], ...],
        op: ReduceOp,
        root: int,
        prescale: float,
        postscale: float,
        splits: tuple[int, ...] | None,
        process_set: ProcessSet | None,
        device: str,
        grouped: bool,
        wire: DType | None = None,
    ) -> Request:
        """The request for these arguments; the same object again while a named operation is repeated."""
        members = self.everyone if process_set is None or process_set._ranks is None else process_set.members
        key = (kind, name, tensors, op, root, prescale, postscale, splits, members, device, grouped, wire)
        if name is not None and (known := self._requests.get(key)) is not None:
            return known
        if process_set is not None:
            process_set._joined()
        line = source_line()
        self._check(kind, op, root, members, line)
        prefix = f"grouped_{_PREFIX[kind]}" if grouped else _PREFIX[kind]
        if name is None:
            number = self._unnamed.get((prefix, members), 0)
            self._unnamed[prefix, members] = number + 1
        full = f"{prefix}.{name}" if name is not None else f"{prefix}.noname.{number}"
        _check_name(full, line)
        segments = tuple(Segment(dtype, shape) for dtype, shape in tensors)  # type: ignore[arg-type]
        request = Request(
            kind, full, segments, members, op, root, float(prescale), float(postscale), device, splits, grouped,
            name is not None, line, wire,
        )  # fmt: skip
        if name is not None:
            if len(self._requests) > 4 * max(self.settings.cache_capacity, 256):
                self._requests.clear()
            self._requests[key] = request
        return request

    def _check(self, kind: Kind, op: ReduceOp, root: int, members: tuple[int, ...], line: str) -> None:
        if self.rank not in members:
            raise NotMemberError(
                f"rank {self.rank} submitted an operation to the process set {list(members)}, in which it is not "
                f"({line}).\nOnly members take part; guard the call with process_set.included()."
            )
        if kind is Kind.BROADCAST and root not in members:
            raise UsageError(
                f"root_rank={root} is not one of the ranks {list(members)} that take part ({line}). "
                "It is a rank among all, also within a process set."
            )
        if op is ReduceOp.ADASUM and len(members) & (len(members) - 1):
            raise UsageError(
                f"Adasum combines ranks in pairs and needs 1, 2, 4, 8, … of them; this set has {len(members)} "
                f"({line}). Use another number of workers, or op=Average."
            )

    def help(self) -> None:
        """Get on with what was agreed, as far as that needs no waiting: for threads that pass by, such as hooks."""
        help_backend = getattr(self.backend, "help", None)
        if help_backend is not None:
            help_backend()

    def barrier(self, process_set: ProcessSet | None = None) -> None:
        """Wait until every member has called this."""
        self.wait(self.submit(Kind.BARRIER, None, (), (), process_set=process_set))

    def meet_all(self, name: str) -> None:
        """A barrier of all ranks that is told apart from others by its name."""
        self.wait(self.submit(Kind.BARRIER, name, (), ()))

    def exchange(self, name: str, data: bytes) -> list[bytes]:
        """What every rank gave, in rank order."""
        block = ctypes.create_string_buffer(data, len(data))
        buffer = Buffer(ctypes.addressof(block), DType.UINT8, (len(data),), block)
        outcome = self.wait(self.submit(Kind.ALLGATHER, name, (buffer,), ()))
        ends = list(itertools.accumulate(outcome.received[0]))
        together = bytes(memoryview(outcome.memory[0]))
        return [together[end - n : end] for n, end in zip(outcome.received[0], ends, strict=True)]

    def join(self, average_active: bool = False) -> int:
        """Say that this rank has no more data; returns the last rank to say so, once all have."""
        last = self.backend.join(average_active or self.settings.join_average == "active")
        self._unnamed.clear()  # ranks join having made different numbers of calls; from now on they count alike again
        return last

    def close(self) -> None:
        """Leave in good order and free everything."""
        try:
            self.process_sets.close()
            self.repeated.clear()
        finally:
            try:
                self.backend.leave()
            finally:
                self.backend.close()


_traced = threading.local()


@contextmanager
def submitted_from(line: str) -> Iterator[None]:
    """What this thread submits meanwhile was written at ``line``: for graphs, which are traced there and run elsewhere.

    >>> with submitted_from("train.py:7 in step"):
    ...     source_line()
    'train.py:7 in step'
    """
    before = getattr(_traced, "line", None)
    _traced.line = line or before
    try:
        yield
    finally:
        _traced.line = before


def source_line() -> str:
    """The line of the user's code that led here.

    >>> source_line().startswith("<doctest")
    True
    """
    noted: str | None = getattr(_traced, "line", None)
    if noted:
        return noted
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _ours(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return "?"
    code = frame.f_code
    where = "" if code.co_name == "<module>" else f" in {code.co_name}"
    return f"{_shorten(code.co_filename)}:{frame.f_lineno}{where}"


def _ours(filename: str) -> bool:
    """Hora's, or a framework's that stands between Hora's own."""
    return filename.startswith(_PACKAGE) or _SHIM in filename or any(between in filename for between in _BETWEEN)


def _shorten(filename: str) -> str:
    """Relative to where the user is, if that is shorter; and text, which names of files need not be."""
    here = os.getcwd() + os.sep
    return filename.removeprefix(here).encode(errors="backslashreplace").decode()


def _check_name(name: str, line: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"name={name[:80]!a}: the character {name[error.start]!a} is half of one and cannot be sent to other ranks "
            f"({line}). It often comes from a file name that is not UTF-8; use name.encode(errors='replace').decode()."
        ) from None
