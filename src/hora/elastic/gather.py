"""Gathering the generations of an elastic job: ``membership`` decides, the hub welcomes, the launcher starts and ends.

Lives in the hub's thread, like the rendezvous whose place it takes. What concerns processes goes to the launcher, by
``take_orders`` in the launcher's own thread, which ``wake`` has woken.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hora.elastic.membership import (
    Action,
    AnnounceUpdate,
    EndWorker,
    FailJob,
    FormGeneration,
    Membership,
    StartWorker,
    TellUser,
)
from hora.engine.gathering import GatheringOutcome, MembersReady, OnStandby, RejoinRequest
from hora.wire.messages import Hello

__all__ = ["Gatherer", "GenerationStart", "Order"]

_LOST_S = 30.0  # a process whose connection is gone is mostly about to end, and then its exit code is wanted

_HELD_S = 10.0
_PLAIN = (
    "no worker of the job has entered hvd.elastic.run yet. Without it a program cannot add workers or survive the "
    "loss of one. Train in a function that is decorated with it, or leave --min-np and --max-np out."
)

Order = StartWorker | EndWorker | FailJob | TellUser


class GenerationStart(NamedTuple):
    """A generation began: when (monotonic), its number, and its workers by rank."""

    time_s: float
    generation: int
    members: tuple[int, ...]


class Gatherer:
    """See ``engine.gathering.Gathering``. ``wake`` is called whenever there are orders for the launcher."""

    def __init__(self, membership: Membership, wake: Callable[[], None]) -> None:
        self._membership, self._wake = membership, wake
        self._hellos: dict[int, Hello] = {}
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._ends: dict[int, bool] = {}  # workers whose process has ended, as the launcher knows: by a fault?
        self._lost: dict[int, tuple[float, str]] = {}  # workers whose connection is gone, since when, and why
        self._entered = False  # a worker has entered elastic.run, so the job can take in others
        self._held: dict[int, Hello] = {}  # newcomers that wait for that
        self._held_since = 0.0
        self.events: list[GenerationStart] = []  # only grows

    # ---- the launcher's side; any thread ----

    def take_orders(self) -> list[Order]:
        """What there is to do since this was asked last."""
        taken = []
        while not self._orders.empty():
            taken.append(self._orders.get())
        return taken

    def note_end(self, worker: int, *, fault: bool) -> None:
        """This worker's process has ended; the hub is notified next."""
        self._ends[worker] = fault

    # ---- the hub's thread ----

    @property
    def waiting(self) -> bool:
        return self._membership.timed or bool(self._lost or self._held)

    def hello(self, hello: Hello, now: float) -> Sequence[GatheringOutcome]:
        self._hellos[hello.rank] = hello
        if not hello.ready and self._membership.generation:
            return self._set_aside([hello])
        return self._do(self._membership.hello(hello.rank, now))

    def _set_aside(self, hellos: Sequence[Hello]) -> list[GatheringOutcome]:
        """They are to prepare themselves beside the job. A program without ``elastic.run`` would not come back from
        that, but train alone: newcomers wait until a worker has entered it, or workers are lacking."""
        if not (self._entered or self._membership.gathering):
            self._held_since = self._held_since or time.monotonic()
            self._held |= {hello.rank: hello for hello in hellos}
            return []
        size = len(self._membership.members)
        return [OnStandby(hello, size, size + 1) for hello in hellos]

    def _release(self) -> list[GatheringOutcome]:
        if not self._held or not (self._entered or self._membership.gathering):
            return []
        held, self._held = [*self._held.values()], {}
        return self._set_aside(held)

    def entered(self, rank: int) -> Sequence[GatheringOutcome]:
        self._entered = True
        return self._release()

    def ended(self, rank: int, status: str, *, left: bool = False) -> Sequence[GatheringOutcome]:
        now = time.monotonic()
        self._hellos.pop(rank, None)
        self._held.pop(rank, None)
        if rank in self._ends:
            self._lost.pop(rank, None)
            return self._do(self._membership.ended(rank, now, fault=self._ends.pop(rank)))
        if not left:  # it may take its time to end; what it was, its exit code will say
            self._lost[rank] = now, status  # mostly it has ended, and the launcher is about to say so
        return ()

    def given_up(self, by: int, rank: int, status: str, *, host: bool) -> Sequence[GatheringOutcome]:
        now = time.monotonic()
        if host:
            return self._do(self._membership.cut(by, rank, now))
        return self._do(self._membership.silent(rank, now, status))

    def started(self, rank: int) -> None:
        pass

    def expire(self, now: float) -> Sequence[GatheringOutcome]:
        actions = []
        for worker, (since, why) in [*self._lost.items()]:
            if now - since > _LOST_S:  # it may live, but nobody can speak with it
                del self._lost[worker]
                actions += self._membership.silent(worker, now, why)
        if self._held and 0.0 < self._held_since < now - _HELD_S:
            self._held_since = -1.0  # told once
            workers = ", ".join(map(str, self._held))
            actions.append(TellUser(f"worker {workers} cannot join: {_PLAIN}"))
        return self._do([*actions, *self._membership.tick(now)])

    def hosts(self, found: Mapping[str, int]) -> Sequence[GatheringOutcome]:
        """What hosts there are."""
        return self._do(self._membership.hosts(found, time.monotonic()))

    def silent(self, worker: int, why: str) -> Sequence[GatheringOutcome]:
        """A worker that does not answer any more."""
        return self._do(self._membership.silent(worker, time.monotonic(), why))

    def _unready(self, hello: Hello) -> bool:
        """Whether it waits in ``init`` and was not chosen: a spare, which had better prepare itself meanwhile."""
        return not hello.ready and self._membership.go_on_standby(hello.rank)

    def _do(self, actions: Sequence[Action]) -> list[GatheringOutcome]:
        outcomes: list[GatheringOutcome] = []
        for action in actions:
            match action:
                case FormGeneration(generation=generation, members=members):
                    self.events.append(GenerationStart(time.monotonic(), generation, members))
                    self._wake()
                    outcomes.append(MembersReady(tuple(self._hellos.pop(m) for m in members), generation))
                    outcomes += self._set_aside([hello for hello in self._hellos.values() if self._unready(hello)])
                case AnnounceUpdate(generation=generation):
                    outcomes.append(RejoinRequest(self._membership.members, generation))
                case _:
                    self._orders.put(action)
                    self._wake()
        return outcomes + self._release()
