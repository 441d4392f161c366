"""Process sets: which ranks take part in an operation.

A set is known by its ranks; its number is only a label. Every collective works on every set, and the same name on two
sets is two operations.
"""

from __future__ import annotations

import array
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hora.errors import NotInitializedError, UsageError

if TYPE_CHECKING:
    from hora.engine.core import Engine

__all__ = ["ProcessSet", "ProcessSets", "add_process_set", "gather_ranks", "global_process_set", "remove_process_set"]


class ProcessSet:
    """Some of the ranks. Make it known with ``init(process_sets=[...])`` or ``add_process_set``.

    >>> evens = ProcessSet([2, 0])
    >>> evens.ranks
    [0, 2]
    >>> evens.process_set_id is None      # not known to the engine yet
    True
    """

    process_set_id: int | None = None

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        # An mpi4py communicator: its members' ranks are not known before Hora is initialised.
        self._communicator: Any = ranks_or_comm if hasattr(ranks_or_comm, "Get_group") else None
        ranks = [] if self._communicator is not None else list(ranks_or_comm)
        if len(set(ranks)) != len(ranks):
            raise UsageError(f"process set {ranks} names a rank twice. Name each once.")
        self._ranks: tuple[int, ...] | None = tuple(sorted(ranks))
        self._engine: Engine | None = None
        if self._communicator is not None:
            from hora.engine import session

            if session.current is not None:
                self._resolve(session.current.rank)

    def _resolve(self, rank: int) -> None:
        """Ask a communicator who its members are; all of them do so together."""
        if self._communicator is not None:
            self._ranks = tuple(sorted(gather_ranks(self._communicator, rank)))

    @property
    def ranks(self) -> list[int]:
        """The members, ascending."""
        return list(self.members)

    @property
    def members(self) -> tuple[int, ...]:
        """The members, ascending."""
        if self._ranks is None:
            return tuple(range(self._joined().size))
        return self._ranks

    def size(self) -> int:
        """How many ranks are in it."""
        self._joined()
        return len(self.members)

    def rank(self) -> int:
        """This process's position among the members; UsageError if it is not one."""
        engine = self._joined()
        if engine.rank not in self.members:
            raise UsageError(f"rank {engine.rank} is not in {self}; check included() first.")
        return self.members.index(engine.rank)

    def included(self) -> bool:
        """Whether this process is a member."""
        return self._joined().rank in self.members

    def _joined(self) -> Engine:
        if self._engine is None:
            raise NotInitializedError(
                f"{self} is not known to Hora: it was never added, was removed, or Hora is not initialised. "
                "Call init(process_sets=[...]) or add_process_set(...) first."
            )
        return self._engine

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ProcessSet) and self._ranks == other._ranks)

    def __hash__(self) -> int:
        return hash(self._ranks)

    def __repr__(self) -> str:
        number = "" if self.process_set_id is None else f", id {self.process_set_id}"
        if self._communicator is not None and not self._ranks:
            return "ProcessSet(of a communicator)"
        return f"ProcessSet({'all' if self._ranks is None else list(self._ranks)}{number})"


class _GlobalProcessSet(ProcessSet):
    def __init__(self) -> None:
        super().__init__([])
        self.process_set_id = 0  # its own, which is found faster than its class's: every call looks at it
        self._ranks = None


global_process_set: ProcessSet = _GlobalProcessSet()
"""All ranks."""


class ProcessSets:
    """The sets that one engine knows."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next_id = 1
        self._known: dict[tuple[int, ...], ProcessSet] = {}
        global_process_set._engine = engine

    def add(self, wanted: ProcessSet | Sequence[int]) -> ProcessSet:
        """Make a set known; the caller sees to it that all ranks do so."""
        process_set = wanted if isinstance(wanted, ProcessSet) else ProcessSet(wanted)
        process_set._resolve(self._engine.rank)
        everyone = range(self._engine.size)
        members = process_set.members
        if not members or any(rank not in everyone for rank in members):
            raise UsageError(f"{process_set}: its ranks must be some of 0..{self._engine.size - 1}.")
        if members in self._known or members == tuple(everyone):
            known = self._known.get(members, global_process_set)
            raise UsageError(f"a process set of ranks {list(members)} exists already: {known}. Use that one.")
        process_set._engine, process_set.process_set_id = self._engine, self._next_id
        self._next_id += 1
        self._known[members] = process_set
        return process_set

    def add_all(self, wanted: Sequence[ProcessSet]) -> None:
        """Make sets known on all ranks, which mean the same by them; only a communicator may be another on each."""
        if all(process_set._communicator is None for process_set in wanted):
            for process_set in wanted:
                self.add(process_set)
        else:
            for process_set in wanted:
                process_set._resolve(self._engine.rank)
            own = {process_set.members: process_set for process_set in wanted}
            everyones = self._engine.exchange("init process_sets", json.dumps(list(own)).encode())
            for members in dict.fromkeys(tuple(ranks) for said in everyones for ranks in json.loads(said)):
                self.add(own.get(members) or ProcessSet(members))
        self._engine.meet_all(f"init process_sets {[list(members) for members in self._known]}")

    def remove(self, process_set: ProcessSet) -> bool:
        """Forget a set; False if it was not known, or is the global one."""
        if process_set._ranks is None or self._known.pop(process_set.members, None) is None:
            return False
        process_set._engine = process_set.process_set_id = None
        return True

    def ids(self) -> dict[int, list[int]]:
        """The members of every set, by its number."""
        sets = {0: list(range(self._engine.size))}
        return sets | {s.process_set_id or 0: s.ranks for s in self._known.values()}

    def close(self) -> None:
        """Forget them all."""
        for process_set in [*self._known.values(), global_process_set]:
            process_set._engine = None
        for process_set in self._known.values():
            process_set.process_set_id = None
        self._known.clear()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Make a new set known. Every rank must call it, members or not, with the same ranks.

    >>> from hora.engine import session
    >>> session.init()
    >>> add_process_set([0])        # alone: [0] is everybody
    Traceback (most recent call last):
    ...
    hora.errors.UsageError: a process set of ranks [0] exists already: ProcessSet(all, id 0). Use that one.
    >>> session.shutdown()
    """
    from hora.engine.session import engine

    current = engine()
    added = current.process_sets.add(process_set)
    try:
        current.meet_all(f"add_process_set {added.ranks}")
    except BaseException:
        current.process_sets.remove(added)
        raise
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a set. Every rank must call it. False if it was not known (or is the global set, which stays)."""
    from hora.engine.session import engine

    current = engine()
    if process_set._ranks is None or process_set._engine is not current:
        return False
    current.meet_all(f"remove_process_set {process_set.ranks}")
    return current.process_sets.remove(process_set)


def gather_ranks(comm: Any, rank: int) -> list[int]:
    """What the processes of an mpi4py communicator say their ranks are; as numbers, for ``comm.allgather`` pickles."""
    ranks = array.array("i", [0]) * comm.Get_size()
    comm.Allgather(array.array("i", [rank]), ranks)
    return list(ranks)
