"""Snapshots on the wire: what hundreds of ranks have in common is sent once.

A set of ranks is written once, and then by its number. Requests that match and come from one source line are written
once. So if one rank of 256 has not submitted the gradients of a step, each gradient takes a few dozen bytes, and not a
request for every rank.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hora.engine.backend import Pending, RankState, Snapshot
from hora.engine.request import Request

__all__ = ["merged", "pack", "unpack"]

Ranks = tuple[int, ...]


class _State(msgspec.Struct, frozen=True, array_like=True):
    """A ``RankState``; the members in ``waiting_on`` are a number of ``_Packed.sets``."""

    rank: int
    pid: int
    blocked: bool
    waiting_on: tuple[tuple[str, int], ...]
    silent: bool


class _Pending(msgspec.Struct, frozen=True, array_like=True):
    """A ``Pending``; ``requests`` are pairs of a number of ``_Packed.requests`` and one of ``_Packed.sets``."""

    name: str
    members: int
    requests: tuple[tuple[int, int], ...]
    age_s: float
    missing: int


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    progress: int
    sets: tuple[Ranks, ...]
    requests: tuple[Request, ...]  # without names and members
    ranks: tuple[_State, ...]
    pending: tuple[_Pending, ...]


class _Numbers:
    """Numbers for what is distinct."""

    def __init__(self) -> None:
        self.sets: dict[Ranks, int] = {}
        self.requests: list[Request] = []
        self._alike: dict[tuple[int, str], int] = {}
        self._known: dict[int, int] = {}  # by identity: most often ranks that say the same share one object

    def of_set(self, ranks: Ranks) -> int:
        return self.sets.setdefault(ranks, len(self.sets))

    def of_request(self, request: Request) -> int:
        number = self._known.get(id(request))
        if number is None:
            number = self._alike.setdefault((request.fingerprint(), request.line), len(self.requests))
            if number == len(self.requests):
                self.requests.append(msgspec.structs.replace(request, name="", members=()))
            self._known[id(request)] = number
        return number


def pack(snapshot: Snapshot) -> bytes:
    """
    >>> from hora.types import Kind
    >>> request = Request(Kind.BARRIER, "barrier.x", (), (0, 1, 2), line="train.py:7")
    >>> pending = Pending("barrier.x", (0, 1, 2), {0: request, 1: request}, 2.5, (2,))
    >>> snapshot = Snapshot(9, (RankState(0, 77, True, (("barrier.x", (0, 1, 2)),)),), (pending,))
    >>> unpack(pack(snapshot)) == snapshot
    True
    """
    numbers = _Numbers()
    ranks = tuple(
        _State(r.rank, r.pid, r.blocked, tuple((name, numbers.of_set(key)) for name, key in r.waiting_on), r.silent)
        for r in snapshot.ranks
    )
    pending = []
    for p in snapshot.pending:
        said: dict[int, list[int]] = {}
        for rank, request in p.requests.items():
            said.setdefault(numbers.of_request(request), []).append(rank)
        requests = tuple((number, numbers.of_set(tuple(by))) for number, by in said.items())
        pending.append(_Pending(p.name, numbers.of_set(p.members), requests, p.age_s, numbers.of_set(p.missing)))
    packed = _Packed(snapshot.progress, tuple(numbers.sets), tuple(numbers.requests), ranks, tuple(pending))
    return msgspec.msgpack.encode(packed)


def unpack(data: bytes) -> Snapshot:
    """The snapshot that was packed; of requests that count as one, everybody's is the first."""
    packed = _decoder.decode(data)
    sets = packed.sets
    pending = []
    for p in packed.pending:
        requests: dict[int, Request] = {}
        for number, by in p.requests:
            request = msgspec.structs.replace(packed.requests[number], name=p.name, members=sets[p.members])
            requests.update(dict.fromkeys(sets[by], request))
        in_order = {rank: requests[rank] for rank in sorted(requests)}
        pending.append(Pending(p.name, sets[p.members], in_order, p.age_s, sets[p.missing]))
    ranks = tuple(
        RankState(r.rank, r.pid, r.blocked, tuple((name, sets[key]) for name, key in r.waiting_on), r.silent)
        for r in packed.ranks
    )
    return Snapshot(packed.progress, ranks, tuple(pending))


def merged(packed: Iterable[bytes]) -> tuple[Pending, ...]:
    """What the tables of several hosts know of the same operations, put together."""
    found: dict[tuple[str, Ranks], Pending] = {}
    for one in packed:
        for p in unpack(one).pending if one else ():
            known = found.get((p.name, p.members), p)
            requests = dict(sorted((known.requests | p.requests).items()))
            missing = tuple(rank for rank in p.members if rank not in requests)
            found[p.name, p.members] = Pending(p.name, p.members, requests, max(known.age_s, p.age_s), missing)
    return tuple(p for p in found.values() if p.missing)


_decoder = msgspec.msgpack.Decoder(_Packed)
