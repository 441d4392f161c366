"""What agreeing by messages costs the coordinator of a large job: its real code, fed by simulated ranks.

A discrete-event simulation. Every rank is a real ``Negotiator``, the coordinator a real ``Coordinator``; messages are
encoded and decoded as on the wire. Only clocks and networks are simulated: ranks compute, with jitter, and announce
their gradients in a few groups; a message takes ``latency_s``; the coordinator takes one message at a time, for as long
as its code really ran (processor time, so a busy machine matters little), and decides when no other is waiting, as the
hub does. Gradients move in no time: what is left is what agreement costs. Sockets are not simulated: ``sending_s``
stands for what the system takes for each message.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from hora.bench import resnet50
from hora.config.settings import Settings
from hora.engine.backend import OperationOutcome
from hora.engine.coordinator import Coordinator
from hora.engine.negotiate import Negotiator
from hora.engine.request import Request, TensorSpec
from hora.types import DType, Kind
from hora.wire.messages import AnyMessage, Peer, decode, encode

__all__ = ["Cost", "simulate"]


@dataclass
class Cost:
    """What one step cost the coordinator."""

    step: int
    received: int = 0  # messages
    received_bytes: int = 0
    sent: int = 0
    sent_bytes: int = 0
    busy_s: float = 0.0  # processor time of its code, and ``sending_s`` a message
    began_s: float = 0.0
    last_announced_s: float = 0.0
    ended_s: float = 0.0

    @property
    def delay_s(self) -> float:
        """From the last rank's last announcement to the last rank's knowing of it."""
        return self.ended_s - self.last_announced_s


def simulate(
    ranks: int,
    *,
    steps: int = 3,
    gradients: int = 161,
    groups: int = 8,
    compute_s: float = 0.3,
    jitter: float = 0.02,
    latency_s: float = 50e-6,
    sending_s: float = 5e-6,
    seed: int = 1,
) -> list[Cost]:
    """The cost of each step; the first is the one in which every operation is new.

    >>> first, second, third = simulate(8, gradients=12, groups=3)
    >>> first.received, third.received, third.received_bytes < first.received_bytes
    (24, 24, True)
    """
    return list(_World(ranks, gradients, groups, compute_s, jitter, latency_s, sending_s, seed).run(steps))


class _World:
    def __init__(
        self, ranks: int, gradients: int, groups: int, compute_s: float, jitter: float, latency_s: float,
        sending_s: float, seed: int,
    ) -> None:  # fmt: skip
        peers = tuple(Peer(rank, rank, 10_000 + rank, "simulated") for rank in range(ranks))
        everyone = tuple(range(ranks))
        self.coordinator = Coordinator(0, peers, Settings())
        self.ranks = [Negotiator(0, rank, peers) for rank in everyone]
        shapes = list(reversed(resnet50.shapes().items()))[:gradients]  # the backward pass starts at the end
        self.groups = [
            [
                Request(Kind.ALLREDUCE, f"allreduce.{name}", (TensorSpec(DType.FLOAT32, shape),), everyone)
                for name, shape in shapes[len(shapes) * group // groups : len(shapes) * (group + 1) // groups]
            ]
            for group in range(groups)
        ]
        self.compute_s, self.jitter, self.latency_s, self.sending_s = compute_s, jitter, latency_s, sending_s
        self.random = np.random.default_rng(seed)
        self.events: list[tuple[float, int, int, object]] = []  # when, in which order, to whom (-1: the hub), what
        self.order = count()
        self.waiting: deque[tuple[int, bytes]] = deque()  # at the hub
        self.free_s = 0.0  # when the hub has done what it is doing

    def run(self, steps: int) -> Iterator[Cost]:
        now = 0.0
        for step in range(steps):
            cost = Cost(step, began_s=now)
            own = self.compute_s * (1 + self.jitter * self.random.standard_normal(len(self.ranks)))
            for rank, seconds in enumerate(own):
                for place in range(len(self.groups)):  # forward is a third, then gradients come evenly
                    share = 1 / 3 + 2 / 3 * (place + 1) / len(self.groups)
                    self._at(now + float(seconds) * share, rank, place)
            cost.last_announced_s = now + float(own.max())
            while self.events or self.waiting:
                self._next(cost)
            assert not any(rank.busy for rank in self.ranks), "a rank was left waiting"
            now = cost.ended_s
            yield cost

    def _at(self, when: float, whom: int, what: object) -> None:
        heapq.heappush(self.events, (when, next(self.order), whom, what))

    def _next(self, cost: Cost) -> None:
        """The hub takes what waits for it once it is free; else the next event happens."""
        if self.waiting and (not self.events or self.events[0][0] > self.free_s):
            rank, payload = self.waiting.popleft()
            self._hub(cost, rank, payload)
            return
        when, _, whom, what = heapq.heappop(self.events)
        if isinstance(what, int):
            negotiator = self.ranks[whom]
            for request in self.groups[what]:
                negotiator.submit(request)
            for message in negotiator.outgoing():
                self._at(when + self.latency_s, -1, (whom, encode(message)))
        elif whom < 0:
            self.free_s = max(self.free_s, when)
            self.waiting.append(what)  # type: ignore[arg-type]  # only the line above sends to the hub
        else:
            self._rank(whom, what)  # type: ignore[arg-type]
            cost.ended_s = max(cost.ended_s, when)

    def _hub(self, cost: Cost, rank: int, payload: bytes) -> None:
        began = time.thread_time()
        self.coordinator.receive(rank, decode(payload), self.free_s)
        outgoing: list[tuple[tuple[int, ...], bytes]] = []
        if not self.waiting:
            self.coordinator.flush()
            outbox, self.coordinator.outbox = self.coordinator.outbox, []
            outgoing = [(tuple(ranks), encode(message)) for ranks, message in outbox]
        busy = time.thread_time() - began
        cost.received += 1
        cost.received_bytes += len(payload)
        self.free_s += busy
        cost.busy_s += busy
        for ranks, answer in outgoing:
            message = decode(answer)  # once for all: what ranks spend on it is their own affair
            for told in ranks:
                self.free_s += self.sending_s
                cost.busy_s += self.sending_s
                self._at(self.free_s + self.latency_s, told, message)
            cost.sent += len(ranks)
            cost.sent_bytes += len(ranks) * len(answer)

    def _rank(self, rank: int, message: AnyMessage) -> None:
        negotiator = self.ranks[rank]
        negotiator.receive(message)
        while negotiator.work:
            work = negotiator.work[0]
            negotiator.finish(work, [OperationOutcome()] * len(work.tickets))
