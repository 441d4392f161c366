"""Agreement: which operations are ready, in one order for all ranks. A pure state machine: no I/O, no clock of its own.

An operation is known by its key, (name, members). It is ready once every member has submitted it or has joined; then
the members' requests are compared, once. What was agreed is remembered under a number, by which a rank may from then on
submit the same request again: in the steady state an arrival is a look-up and a count, and nothing is compared.

Promises: decisions come in one order; an operation that fails disturbs no other; ranks that agree get a Ready with the
same contents, ranks that do not get a Failed with the same text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import NamedTuple

from hora.engine.backend import Pending
from hora.engine.explain import (
    compact_ranks,
    explain_joined,
    explain_left,
    explain_mismatch,
    explain_unfit,
    suspicious_lines,
)  # fmt: skip
from hora.engine.request import Request
from hora.types import Kind, ReduceOp

__all__ = [
    "JOIN",
    "Agreement",
    "AllJoined",
    "Decision",
    "Key",
    "OperationFailed",
    "OperationReady",
    "OperationSuspicious",
    "explain_mismatch",
    "received_bytes",
    "suspicious_lines",
]  # fmt: skip

Key = tuple[str, tuple[int, ...]]
JOIN = "join"  # the name under which a failure of join() is reported


class OperationReady(NamedTuple):
    """Every member is ready for this operation: carry it out.

    ``id`` is the number it goes by from now on (0: none) and ``known`` says that every contributor knows that already.
    ``contributors`` brought data; ``divisor`` is what an average divides by.
    """

    key: Key
    id: int
    known: bool
    requests: Mapping[int, Request]  # of the contributors
    contributors: tuple[int, ...]
    divisor: int

    @property
    def request(self) -> Request:
        """What the contributors have in common."""
        return self.requests[self.contributors[0]]

    @property
    def members(self) -> tuple[int, ...]:
        return self.key[1]


class OperationFailed(NamedTuple):
    """This operation fails on ``ranks``, those that had submitted it, with this text.

    ``kind`` is "mismatch", "unfit", "joined", "shutdown", "lost", "stall" or "deadlock".
    """

    key: Key
    kind: str
    text: str
    ranks: tuple[int, ...]


class OperationSuspicious(NamedTuple):
    """The operation is carried out, but ``ranks`` should be warned."""

    key: Key
    text: str
    ranks: tuple[int, ...]


class AllJoined(NamedTuple):
    """Every rank has joined, ``last`` as the last; from now on nobody counts as joined."""

    last: int


Decision = OperationReady | OperationFailed | OperationSuspicious | AllJoined


def received_bytes(requests: Mapping[int, Request], members: tuple[int, ...], rank: int) -> tuple[tuple[int, ...], ...]:
    """The bytes ``rank`` receives from each member, by segment, in an allgather or alltoall.

    >>> from hora.engine.request import TensorSpec
    >>> from hora.types import DType
    >>> def rows(n): return Request(Kind.ALLGATHER, "allgather.x", (TensorSpec(DType.INT16, (n, 3)),), (0, 1))
    >>> received_bytes({0: rows(1), 1: rows(4)}, (0, 1), rank=0)
    ((6, 24),)
    """
    first = requests[members[0]]
    if first.kind is Kind.ALLGATHER:
        return tuple(tuple(requests[m].segments[i].nbytes for m in members) for i in range(len(first.segments)))
    position = members.index(rank)
    received = []
    for member in members:
        request = requests[member]
        segment = request.segments[0]
        rows = segment.shape[0] // len(members) if request.splits is None else request.splits[position]
        row_bytes = segment.dtype.itemsize
        for extent in segment.shape[1:]:
            row_bytes *= extent
        received.append(rows * row_bytes)
    return (tuple(received),)


class _Entry:
    """One key: who has arrived this time, and what each rank said last."""

    __slots__ = ("agreed", "arrived", "id", "key", "known", "requests", "since")

    def __init__(self, key: Key, entry_id: int) -> None:
        self.key, self.id = key, entry_id
        self.requests: dict[int, Request] = {}
        self.arrived: set[int] = set()
        self.since = 0.0
        self.agreed = False  # the requests have been compared, and none has changed since
        self.known = True  # all arrivals so far came by number


class Agreement:
    """Agreement among ranks 0 … ``size`` - 1 of one generation.

    >>> from hora.engine.request import TensorSpec
    >>> from hora.types import DType
    >>> agreement = Agreement(2)
    >>> request = Request(Kind.ALLREDUCE, "allreduce.x", (TensorSpec(DType.FLOAT32, (3,)),), (0, 1))
    >>> agreement.arrive(1, request, now=0.0)
    []
    >>> [ready] = agreement.arrive(0, request, now=0.1)
    >>> ready.key, ready.contributors, ready.known
    (('allreduce.x', (0, 1)), (0, 1), False)
    >>> [again] = agreement.arrive(0, ready.id, now=0.2) + agreement.arrive(1, ready.id, now=0.3)
    >>> again.known
    True
    """

    def __init__(self, size: int, *, cache_capacity: int = 1024, strict: bool = False) -> None:
        self.size, self._capacity, self._strict = size, cache_capacity, strict
        self._entries: dict[Key, _Entry] = {}  # pending, or remembered, or both
        self._remembered: OrderedDict[int, _Entry] = OrderedDict()  # by number, least recently agreed first
        self._pending: dict[Key, _Entry] = {}  # in order of first arrival
        self._joined: dict[int, bool] = {}  # rank -> average over the active ranks only; in order of joining
        self._gone: dict[int, str] = {}  # rank -> how it died, "" if it left in good order
        self._dead: int | None = None
        self._next_id = 1
        self._forgotten: list[int] = []
        self._warned: set[frozenset[str]] = set()
        self.progress = 0  # changes whenever anything moves

    def arrive(self, rank: int, request: Request | int, now: float) -> list[Decision]:
        """``rank`` submits an operation, in full or by number.

        Raises KeyError for a number that is not (or no longer) known, which the rank must then send in full, and
        ValueError for what no well-behaved rank sends.
        """
        if isinstance(request, int):
            entry = self._remembered[request]
            if rank not in entry.requests:
                raise KeyError(request)
        else:
            key = (request.name, request.members)
            found = self._entries.get(key)
            if found is None and (rank not in request.members or not _is_set(request.members, self.size)):
                raise ValueError(f"rank {rank} submitted '{request.name}' for {request.members}, which cannot be")
            entry = found or self._new_entry(key, remember=request.named)
            if rank not in entry.key[1]:
                raise ValueError(f"rank {rank} submitted '{request.name}' for {request.members}, which it is not in")
        if rank in entry.arrived:
            raise ValueError(f"rank {rank} submitted '{entry.key[0]}' twice")
        if not isinstance(request, int):
            entry.known = False
            if entry.requests.get(rank) != request:
                entry.requests[rank] = request
                entry.agreed = False
        self.progress += 1
        if not entry.arrived:
            entry.since = now
            self._pending[entry.key] = entry
        entry.arrived.add(rank)
        if self._gone and (verdict := self._verdict_of_the_gone(entry)) is not None:
            return [self._fail(entry, *verdict)]
        return self._decide(entry)

    def join(self, rank: int, average_active: bool) -> list[Decision]:
        """``rank`` brings no more data; what only waited for it goes on without."""
        if rank in self._joined:
            raise ValueError(f"rank {rank} joined twice")
        self.progress += 1
        self._joined[rank] = average_active
        if self._gone:
            return [self._join_failure((rank,))]
        decisions = [d for entry in list(self._pending.values()) if rank in entry.key[1] for d in self._decide(entry)]
        if len(self._joined) == self.size:
            self._joined.clear()
            decisions.append(AllJoined(last=rank))
        return decisions

    def leave(self, rank: int, status: str = "") -> list[Decision]:
        """``rank`` has shut down or, with a ``status`` that says how, died.

        After good order only operations that need it fail, now and later; after a death everything does.
        """
        if rank in self._gone:
            return []
        self.progress += 1
        self._gone[rank] = status
        self._dead = rank if status and self._dead is None else self._dead
        decisions: list[Decision] = []
        for entry in list(self._pending.values()):
            if (verdict := self._verdict_of_the_gone(entry)) is not None:
                decisions.append(self._fail(entry, *verdict, spare=rank))
        waiting = tuple(r for r in self._joined if r != rank)
        return [*decisions, self._join_failure(waiting)] if waiting else decisions

    def fail(self, key: Key, missing: tuple[int, ...], kind: str, text: str) -> list[Decision]:
        """Fail a pending operation if exactly these ranks are still missing; else it has moved on: nothing happens."""
        entry = self._pending.get(key)
        if entry is None or self._missing(entry) != missing:
            return []
        return [self._fail(entry, kind, text)]

    def forgotten(self) -> tuple[int, ...]:
        """The numbers that have gone out of use since the last call; a rank that uses one gets a KeyError."""
        taken, self._forgotten = tuple(self._forgotten), []
        return taken

    def pending(self, now: float) -> tuple[Pending, ...]:
        """The operations that some have submitted and others not, oldest first."""
        return tuple(
            Pending(e.key[0], e.key[1], {r: e.requests[r] for r in sorted(e.arrived)}, now - e.since, self._missing(e))
            for e in self._pending.values()
        )

    # ---- deciding ----

    def _decide(self, entry: _Entry) -> list[Decision]:
        members = entry.key[1]
        arrived = entry.arrived
        if len(arrived) == len(members):
            contributors, divisor = members, len(members)
        elif self._joined and not self._missing(entry):
            contributors = tuple(m for m in members if m in arrived)
            active = any(self._joined[m] for m in members if m not in arrived)
            divisor = len(contributors) if active else len(members)
        else:
            return []
        # What a rank that sits out said last is forgotten: the others may agree on something new without it.
        requests = {rank: entry.requests[rank] for rank in contributors}
        if not entry.agreed and (text := explain_mismatch(requests)) is not None:
            return [self._fail(entry, "mismatch", text)]
        if len(contributors) < len(members) and not _goes_on_without_joined(requests[contributors[0]]):
            return [self._fail(entry, "joined", explain_joined(requests))]
        if not entry.agreed and (text := explain_unfit(requests, len(contributors))) is not None:
            return [self._fail(entry, "unfit", text)]
        decisions: list[Decision] = []
        if not entry.agreed and (text := suspicious_lines(requests)) is not None:
            if self._strict:
                return [self._fail(entry, "mismatch", text)]
            lines = frozenset(request.line for request in requests.values())
            if lines not in self._warned:  # once, not at every turn of a loop
                self._warned.add(lines)
                decisions.append(OperationSuspicious(entry.key, text, contributors))
        decisions.append(OperationReady(entry.key, entry.id, entry.known, requests, contributors, divisor))
        entry.requests, entry.agreed = dict(requests), True
        self._settle(entry)
        return decisions

    def _missing(self, entry: _Entry) -> tuple[int, ...]:
        return tuple(m for m in entry.key[1] if m not in entry.arrived and m not in self._joined)

    def _fail(self, entry: _Entry, kind: str, text: str, spare: int = -1) -> OperationFailed:
        ranks = tuple(rank for rank in sorted(entry.arrived) if rank != spare)
        if self._remembered.pop(entry.id, None) is not None:
            self._forgotten.append(entry.id)
        entry.id = 0
        self._settle(entry)
        return OperationFailed(entry.key, kind, text, ranks)

    def _verdict_of_the_gone(self, entry: _Entry) -> tuple[str, str] | None:
        if self._dead is not None:
            return "lost", f"rank {self._dead} died ({self._gone[self._dead]}) while '{entry.key[0]}' was waiting."
        gone = [member for member in entry.key[1] if member in self._gone]
        if not gone:
            return None
        return "shutdown", explain_left(entry.key[0], gone)

    def _join_failure(self, ranks: tuple[int, ...]) -> OperationFailed:
        for rank in ranks:
            self._joined.pop(rank, None)
        text = f"join() cannot finish: {_have(self._gone)} shut down or died without joining."
        return OperationFailed((JOIN, ()), "shutdown" if self._dead is None else "lost", text, ranks)

    # ---- remembering ----

    def _new_entry(self, key: Key, remember: bool) -> _Entry:
        entry = _Entry(key, 0)
        if remember and self._capacity > 0:  # a name made from a counter never comes back
            entry.id, self._next_id = self._next_id, self._next_id + 1
        self._entries[key] = entry
        return entry

    def _settle(self, entry: _Entry) -> None:
        """The operation is decided: make the entry ready for the next time, or drop it."""
        del self._pending[entry.key]
        entry.arrived.clear()
        entry.known = True
        self.progress += 1
        if not entry.id:
            del self._entries[entry.key]
            return
        self._remembered[entry.id] = entry
        self._remembered.move_to_end(entry.id)
        if len(self._remembered) > self._capacity:
            self._evict()

    def _evict(self) -> None:
        for entry_id, entry in self._remembered.items():
            if not entry.arrived:  # one in use is never forgotten
                del self._remembered[entry_id], self._entries[entry.key]
                self._forgotten.append(entry_id)
                return


def _have(ranks: Collection[int]) -> str:
    return f"{compact_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'}"


def _goes_on_without_joined(request: Request) -> bool:
    """An Adasum of fewer ranks is another result, not a smaller one."""
    return request.kind is Kind.BARRIER or (request.kind is Kind.ALLREDUCE and request.how.op is not ReduceOp.ADASUM)


def _is_set(members: tuple[int, ...], size: int) -> bool:
    return bool(members) and members[0] >= 0 and members[-1] < size and all(a < b for a, b in pairwise(members))
