"""The engine: what front-ends call.

It prepares the operations that callers want: names them, finds the user's source line, and checks what one rank can
check without the others. The backend agrees on them and moves the data.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import sys
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hora.config.settings import Settings
from hora.config.world import World
from hora.engine.backend import Backend, Operation
from hora.engine.process_set import ProcessSet, ProcessSets
from hora.engine.request import OperationSpec, Request, TensorSpec, forms
from hora.errors import NotMemberError, UsageError
from hora.types import Buffer, DType, Kind, ReduceOp, Reduction
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
        # Named operations, by the spec they were made from; front-ends also keep theirs here by what they were called
        # with, so that a call that is repeated is a look-up.
        self.prepared: dict[Hashable, Operation] = {}
        self._most_prepared = 4 * max(settings.cache_capacity, 256)
        self.submitted = 0  # how many operations, but for those that are kept and only started

    def prepare(self, spec: OperationSpec) -> Operation:
        """The operation that does this; the same one again for a name that is repeated."""
        self.submitted += 1
        known = self.prepared.get(spec) if spec.name is not None else None
        if known is not None:
            return known
        operation = self.backend.prepare(self._request(spec))
        if spec.name is not None:
            self.keep(spec, operation)
        return operation

    def keep(self, key: Hashable, operation: Operation) -> None:
        """Keep an operation under a key. There is room for so many, and all are forgotten when that is used up."""
        if len(self.prepared) >= self._most_prepared:
            self.prepared.clear()
        self.prepared[key] = operation

    def _request(self, spec: OperationSpec) -> Request:
        """What this rank says of it to the others."""
        members = self.everyone
        if spec.process_set is not None:
            spec.process_set._joined()
            members = spec.process_set.members
        line = source_line()
        self._check(spec, members, line)
        prefix = f"grouped_{_PREFIX[spec.kind]}" if spec.grouped else _PREFIX[spec.kind]
        if spec.name is None:
            number = self._unnamed.get((prefix, members), 0)
            self._unnamed[prefix, members] = number + 1
        full = f"{prefix}.{spec.name}" if spec.name is not None else f"{prefix}.noname.{number}"
        _check_name(full, line)
        op, prescale, postscale, wire = spec.how
        return Request(
            spec.kind, full, tuple([TensorSpec(dtype, shape) for dtype, shape in spec.tensors]), members,
            Reduction(op, float(prescale), float(postscale), wire), spec.root, spec.device, spec.splits, spec.grouped,
            spec.name is not None, line,
        )  # fmt: skip

    def _check(self, spec: OperationSpec, members: tuple[int, ...], line: str) -> None:
        if self.rank not in members:
            raise NotMemberError(
                f"rank {self.rank} submitted an operation to the process set {list(members)}, in which it is not "
                f"({line}).\nOnly members take part; guard the call with process_set.included()."
            )
        if spec.kind is Kind.BROADCAST and spec.root not in members:
            raise UsageError(
                f"root_rank={spec.root} is not one of the ranks {list(members)} that take part ({line}). "
                "root_rank counts among all ranks, also within a process set."
            )
        if spec.how.op is ReduceOp.ADASUM and len(members) & (len(members) - 1):
            raise UsageError(
                f"Adasum combines ranks in pairs and needs 1, 2, 4, 8, … of them; this set has {len(members)} "
                f"({line}). Use another number of workers, or op=Average."
            )

    def barrier(self, process_set: ProcessSet | None = None) -> None:
        """Wait until every member has called this."""
        self.prepare(OperationSpec(Kind.BARRIER, None, (), process_set)).start((), ()).wait()

    def meet_all(self, name: str) -> None:
        """A barrier of all ranks that is told apart from others by its name."""
        self.prepare(OperationSpec(Kind.BARRIER, name)).start((), ()).wait()

    def exchange(self, name: str, data: bytes) -> list[bytes]:
        """What every rank gave, in rank order."""
        block = ctypes.create_string_buffer(data, len(data))
        mine = (Buffer(ctypes.addressof(block), DType.UINT8, (len(data),), block),)
        outcome = self.prepare(OperationSpec(Kind.ALLGATHER, name, forms(mine))).start(mine, ()).wait()
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
            self.prepared.clear()
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
    return "?" if frame is None else _spelled(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


@functools.cache  # a program has so many files
def _ours(filename: str) -> bool:
    """Hora's, or a framework's that stands between Hora's own."""
    return filename.startswith(_PACKAGE) or _SHIM in filename or any(between in filename for between in _BETWEEN)


@functools.lru_cache(maxsize=1024)  # calls without a name ask every time
def _spelled(filename: str, line: int, function: str) -> str:
    """Relative to where the user is, if that is shorter; and text, which names of files need not be."""
    here = os.getcwd() + os.sep
    shortened = filename.removeprefix(here).encode(errors="backslashreplace").decode()
    return f"{shortened}:{line}" + ("" if function == "<module>" else f" in {function}")


def _check_name(name: str, line: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"name={name[:80]!a}: the name contains an unpaired surrogate, {name[error.start]!a}, and cannot be sent "
            f"to other ranks ({line}). It often comes from a file name that is not UTF-8; use "
            "name.encode(errors='replace').decode()."
        ) from None
