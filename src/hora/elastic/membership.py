"""Membership: which workers are in the job. Pure: events and the time in, actions out; no clock, no process, no socket.

A *generation* is a fixed list of workers. It ends when one of them dies or leaves it; those who are left come back and
say hello, and with whoever else is ready they are the next one. The launcher alone decides this, so two halves of a job
that is cut in two can never both continue. What it promises:

- A generation has at least ``min_np`` members and at most ``max_np``, all alive and waiting when it is formed. Numbers
  of generations only grow, and a new one is formed only when nobody is left in the old one.
- Who has been a member holds the state of the training and is never left out while it lives and its host is wanted. It
  comes before all newcomers, so the first rank always holds the state. If all such hosts are to be given up at once,
  one of them stays, as one more than ``max_np`` if need be, until others have the state.
- Nothing waits for ever: too few workers, or a member that does not come back, are given ``timeout_s``.
- A host whose workers die rests before it gets new ones, and twice as long each time they die soon again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple

__all__ = [
    "Action",
    "AnnounceUpdate",
    "ElasticLimits",
    "EndWorker",
    "FailJob",
    "FormGeneration",
    "Membership",
    "StartWorker",
    "TellUser",
]

_HEALTHY = 8  # a member that has lived that many times its host's last rest clears its host's record


class ElasticLimits(NamedTuple):
    """What the user allows. ``np`` is how many the first generation waits for, at most ``start_s`` once ``min_np`` are
    ready. ``restartable``: the workers can begin from a checkpoint if all of them died at once."""

    min_np: int
    max_np: int
    np: int = 0
    spares: int = 0
    reset_limit: int | None = None
    timeout_s: float = 600.0
    rest_s: tuple[float, float] = (1.0, 60.0)
    start_s: float = 30.0
    restartable: bool = False


class StartWorker(NamedTuple):
    """Start a process for this worker, in this slot of the host."""

    worker: int
    host: str
    slot: int


class EndWorker(NamedTuple):
    """End this worker's process; it is not needed, or does not come back. ``fault``: because something is wrong."""

    worker: int
    why: str
    fault: bool = False


class FormGeneration(NamedTuple):
    """These workers are the next generation, in the order of their ranks."""

    generation: int
    members: tuple[int, ...]


class AnnounceUpdate(NamedTuple):
    """Tell the members of this generation to come for a new one when it suits them."""

    generation: int


class FailJob(NamedTuple):
    """The job cannot continue."""

    text: str


class TellUser(NamedTuple):
    """Something to tell the user."""

    text: str


Action = StartWorker | EndWorker | FormGeneration | AnnounceUpdate | FailJob | TellUser


class _Phase(enum.Enum):
    STARTING = enum.auto()  # its process runs, and has not said hello yet
    READY = enum.auto()  # waits for a generation
    MEMBER = enum.auto()  # is in the current generation, or still on its way out of it
    ENDING = enum.auto()  # we have asked for its end


class _Worker:
    def __init__(self, number: int, host: str, slot: int) -> None:
        self.number, self.host, self.slot = number, host, slot
        self.phase = _Phase.STARTING
        self.joined = 0  # the first generation it was in; 0: none yet
        self.since = 0.0  # when it became a member
        self.inside = False  # it is in a generation, and has not come back from it


def _seniority(worker: _Worker) -> tuple[bool, int, int]:
    return not worker.joined, worker.joined, worker.number


class _Host:
    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.strikes = 0
        self.rest_s = 0.0
        self.until = 0.0  # when it may get workers again


class Membership:
    """One job. Every method that takes the time returns what is to be done, in order."""

    def __init__(self, limits: ElasticLimits, chance: Callable[[], float] = lambda: 0.0) -> None:
        self.limits, self._chance = limits, chance
        self.generation = 0
        self.members: tuple[int, ...] = ()  # of the current generation, or the last one
        self.over = False
        self.finishing = False  # a member has finished: no new workers
        self._hosts: dict[str, _Host] = {}  # wanted ones, in order
        self._records: dict[str, _Host] = {}  # all ever seen: what is known of a host outlives its absence
        self._workers: dict[int, _Worker] = {}  # those whose process has not ended
        self._next = 0
        self._gathering = True  # whether the next generation is being gathered
        self._gathering_since = 0.0
        self._short_since: float | None = None  # since when there are fewer than min_np
        self._told = False  # the current generation was told to come for a new one
        self._slow: set[int] = set()  # members that are being waited for longer than allowed, and were ended
        self._started_at: float | None = None

    # ---- events ----

    def hosts(self, found: Mapping[str, int], now: float) -> list[Action]:
        """What hosts there are, and how many workers each may have."""
        for name, slots in found.items():
            record = self._records.setdefault(name, _Host(slots))
            record.slots = slots
        self._hosts = {name: self._records[name] for name in found}
        return self._settle(now)

    def hello(self, worker: int, now: float) -> list[Action]:
        """This worker is ready for a generation; if it was in one, that is over."""
        if (known := self._workers.get(worker)) is None or known.phase is _Phase.ENDING:
            return []
        if known.phase is _Phase.MEMBER:
            self._open(now)
        known.phase, known.inside = _Phase.READY, False
        return self._settle(now)

    def ended(self, worker: int, now: float, *, fault: bool) -> list[Action]:
        """This worker's process has ended: in good order, or by a fault (killed, crashed, its host was lost)."""
        known = self._workers.pop(worker, None)
        if known is None:
            return self._settle(now)
        actions: list[Action] = []
        if known.phase is _Phase.ENDING:
            if worker in self._slow:
                self._slow.discard(worker)
                actions += self._strike(known, now)
        elif fault:
            actions += self._strike(known, now)
        elif known.phase is _Phase.MEMBER or known.joined:
            self.finishing = True
        if worker in self.members and known.phase is not _Phase.READY:
            if fault or known.phase is _Phase.ENDING:
                self._open(now)
            self.members = tuple(m for m in self.members if m != worker)
            if not self.members and self.finishing:
                self._gathering = False
        return actions + self._settle(now)

    def silent(self, worker: int, now: float, why: str) -> list[Action]:
        """The others have given this worker up, or its process is stopped."""
        known = self._workers.get(worker)
        if known is None or known.phase is _Phase.ENDING:
            return []
        known.phase = _Phase.ENDING
        self._slow.add(worker)
        return [EndWorker(worker, why, fault=True)]

    def cut(self, worker: int, other: int, now: float) -> list[Action]:
        """The host of one worker cannot reach that of another, though both are heard here. One of them is given up,
        with all of its workers: the one whose first worker came later, so never the only one that holds the state."""
        sides = {self._workers[w].host for w in (worker, other) if w in self._workers}
        if len(sides) < 2:
            return []
        living = [w for w in self._workers.values() if w.phase is not _Phase.ENDING]
        first = {host: min((_seniority(w) for w in living if w.host == host), default=None) for host in sides}
        if None in first.values():
            return []  # one of them is being given up already
        stays, goes = sorted(sides, key=lambda host: first[host] or (True, 0, 0))
        why = f"its host {goes} and {stays} cannot reach each other"
        return [action for w in living if w.host == goes for action in self.silent(w.number, now, why)]

    def go_on_standby(self, worker: int) -> bool:
        """This worker waits, but has yet to prepare itself: it will say hello again. False if it does not wait."""
        known = self._workers.get(worker)
        if known is None or known.phase is not _Phase.READY or known.joined:
            return False
        known.phase = _Phase.STARTING
        return True

    def tick(self, now: float) -> list[Action]:
        """Let time pass."""
        return self._settle(now)

    @property
    def gathering(self) -> bool:
        """Whether the next generation is being gathered."""
        return self._gathering

    @property
    def timed(self) -> bool:
        """Whether ``tick`` may have something to do soon."""
        return not self.over and (self._gathering or self._lacking() > 0)

    def host_of(self, worker: int) -> str:
        """Where a live worker runs; empty if it is not known."""
        return self._workers[worker].host if worker in self._workers else ""

    # ---- decisions ----

    def _settle(self, now: float) -> list[Action]:
        if self.over:
            return []
        if self._started_at is None:
            self._started_at = self._gathering_since = now
        actions = self._gather(now) if self._gathering else []
        if actions and isinstance(actions[-1], FailJob):
            return actions
        actions += self._release()
        if not self.finishing:
            actions += self._start(now)
        if not self._gathering and not self._told and self._wanted_change():
            self._told = True
            actions.append(AnnounceUpdate(self.generation))
        return actions

    def _open(self, now: float) -> None:
        if not self._gathering:
            self._gathering, self._gathering_since = True, now

    def _release(self) -> list[Action]:
        """End those that wait and will not be needed."""
        actions: list[Action] = []
        for worker in [*self._workers.values()]:
            if worker.phase is _Phase.MEMBER or worker.phase is _Phase.ENDING:
                continue
            if worker.joined and self._gathering:
                continue  # it holds the state, and those who do and are to stay may yet die
            if not self._is_wanted(worker):
                actions.append(self._end(worker, f"host {worker.host} is no longer among those of the job"))
            elif self.finishing:
                actions.append(self._end(worker, "the job is about to finish"))
        return actions

    def _end(self, worker: _Worker, why: str, fault: bool = False) -> EndWorker:
        worker.phase = _Phase.ENDING
        if fault:
            self._slow.add(worker.number)
        return EndWorker(worker.number, why, fault)

    def _is_wanted(self, worker: _Worker) -> bool:
        host = self._hosts.get(worker.host)
        return host is not None and worker.slot < host.slots + self.limits.spares

    def _is_needed(self, worker: _Worker) -> bool:
        """Whether nobody holds the state on a host that is wanted, and this worker, the first of those who do, is to
        stay until somebody does."""
        holders = [w for w in self._workers.values() if w.joined and w.phase is not _Phase.ENDING]
        return not any(map(self._is_wanted, holders)) and worker is min(holders, key=_seniority, default=None)

    def _wanted_change(self) -> bool:
        """Whether a new generation would have other members than the current one."""
        if self.finishing:
            return False
        known = [self._workers[m] for m in self.members if m in self._workers]
        leaving = [w for w in known if not self._is_wanted(w) and not self._is_needed(w)]
        room = len([w for w in known if self._is_wanted(w)]) < self.limits.max_np
        return bool(leaving) or (room and any(w.phase is _Phase.READY for w in self._workers.values()))

    def _lacking(self) -> int:
        """How many workers there should be more."""
        if self.finishing or self.over:
            return 0
        capacity = sum(host.slots for host in self._hosts.values())
        wanted = min(self.limits.max_np, capacity) + self.limits.spares
        here = [w for w in self._workers.values() if w.phase is not _Phase.ENDING and self._is_wanted(w)]
        return max(0, wanted - len(here)) if self._hosts else 0

    def _start(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for _ in range(self._lacking()):
            place = self._free_place(now)
            if place is None:
                break
            worker = _Worker(self._next, *place)
            self._next += 1
            self._workers[worker.number] = worker
            actions.append(StartWorker(worker.number, worker.host, worker.slot))
        return actions

    def _free_place(self, now: float) -> tuple[str, int] | None:
        """A free slot of the first host that has one; for spares, one more than there are."""
        taken: dict[str, set[int]] = {name: set() for name in self._hosts}
        for worker in self._workers.values():
            taken.setdefault(worker.host, set()).add(worker.slot)
        rested = [name for name, host in self._hosts.items() if host.until <= now]
        for name in rested:
            for slot in range(self._hosts[name].slots):
                if slot not in taken[name]:
                    return name, slot
        extra = sum(slot >= self._hosts[name].slots for name in self._hosts for slot in taken[name])
        if rested and extra < self.limits.spares:
            name = min(rested, key=lambda n: len(taken[n]) / max(1, self._hosts[n].slots))
            slot = next(slot for slot in range(self._hosts[name].slots, 1 << 30) if slot not in taken[name])
            if slot < self._hosts[name].slots + self.limits.spares:
                return name, slot
        return None

    def _strike(self, worker: _Worker, now: float) -> list[Action]:
        host = self._records.get(worker.host)
        if host is None:
            return []
        least, most = self.limits.rest_s
        if worker.joined and host.strikes and now - worker.since >= _HEALTHY * host.rest_s:
            host.strikes = 0
        host.strikes += 1
        rest_s = least * 2.0 ** min(host.strikes - 1, 60) * (1.0 + 0.1 * self._chance())
        host.rest_s = min(max(rest_s, least), most)
        host.until = now + host.rest_s
        if host.strikes > 1:
            return [
                TellUser(f"host {worker.host} lost {host.strikes} workers in a row; no new one for {host.rest_s:.0f} s")
            ]
        return []

    def _gather(self, now: float) -> list[Action]:
        late = now - self._gathering_since > self.limits.timeout_s
        awaited = [w for w in self._workers.values() if w.inside]
        if awaited:
            if not late:
                return []
            slow = [w for w in awaited if w.phase is _Phase.MEMBER]
            waited = f"it did not come back within {self.limits.timeout_s:g} s after the others"
            return [self._end(worker, waited, fault=True) for worker in slow]
        ready = [w for w in self._workers.values() if w.phase is _Phase.READY]
        holders = [w for w in ready if w.joined]
        if self.generation and not holders:
            if self.finishing:
                self._gathering = False
                return []
            if not self.limits.restartable:
                return self._fail(
                    "all workers that held the state of the training are gone, so the job cannot continue. Save "
                    "checkpoints, and start the job again from the last one."
                )
        ready.sort(key=_seniority)
        chosen = [w for w in ready if self._is_wanted(w)][: self.limits.max_np]
        chosen += [w for w in ready if self._is_needed(w)]  # at most one
        enough = len(chosen) >= self.limits.min_np or (self.finishing and bool(holders))
        if not enough:
            return self._wait_for_more(len(chosen), now)
        self._short_since = None
        if not holders and self._first_should_wait(len(chosen), now):
            return []
        limit = self.limits.reset_limit
        if limit is not None and self.generation > limit:
            return self._fail(
                f"the job was reset {limit} times, which is the limit (--reset-limit). Look at what made workers end, "
                "or raise the limit."
            )
        return [self._form(chosen, now)]

    def _first_should_wait(self, count: int, now: float) -> bool:
        wanted = min(self.limits.np or self.limits.max_np, sum(host.slots for host in self._hosts.values()))
        coming = any(w.phase is _Phase.STARTING for w in self._workers.values())
        return count < wanted and coming and now - self._gathering_since <= self.limits.start_s

    def _wait_for_more(self, count: int, now: float) -> list[Action]:
        if self._short_since is None:
            self._short_since = now
        if now - self._short_since <= self.limits.timeout_s:
            return []
        there_are = f"{count} worker{'s'[: count != 1]} {'are' if count != 1 else 'is'}"
        return self._fail(
            f"{there_are} ready and the job needs {self.limits.min_np} (--min-np); it has waited for "
            f"{self.limits.timeout_s:g} s (--elastic-timeout). Add hosts, or lower --min-np."
        )

    def _form(self, chosen: list[_Worker], now: float) -> FormGeneration:
        self.generation += 1
        for worker in chosen:
            worker.phase, worker.inside = _Phase.MEMBER, True
            worker.since = worker.since if worker.joined else now
            worker.joined = worker.joined or self.generation
        first: dict[str, tuple[int, int]] = {}
        for worker in chosen:
            key = (worker.joined, worker.number)
            first[worker.host] = min(first.get(worker.host, key), key)
        ordered = sorted(chosen, key=lambda w: (first[w.host], w.joined, w.number))
        self.members = tuple(worker.number for worker in ordered)
        self._gathering, self._told = False, False
        return FormGeneration(self.generation, self.members)

    def _fail(self, text: str) -> list[Action]:
        self.over = True
        return [FailJob(text)]
