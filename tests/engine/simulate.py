"""A whole world in one thread: the real negotiators, the real coordinator, a fake network, and a seeded scheduler.

At each step the scheduler picks one of the things that could happen next: a message arrives, a rank announces what it
has submitted, the coordinator decides, a rank does its next piece of work. So every connection delays as it likes, what
goes over two of them arrives in any order, and a host can be cut off at any moment. The same seed gives the same run,
so whatever a random interleaving breaks can be run again. There is no clock and nothing sleeps.

>>> import numpy as np
>>> from hora.types import Reduction, DType
>>> world = SimulatedWorld(3, seed=7)
>>> arrays = [np.full(2, float(rank)) for rank in range(3)]
>>> tickets = [world.allreduce(rank, "x", arrays[rank]) for rank in (2, 0, 1)]
>>> world.run()
>>> [array.tolist() for array in arrays], all(ticket.done for ticket in tickets)
([[3.0, 3.0], [3.0, 3.0], [3.0, 3.0]], True)
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from tests.transport.fake import Exchange, FakeMover, NotYet

from hora.config.settings import Settings
from hora.engine.agree import Key
from hora.engine.coordinator import Coordinator
from hora.engine.execute import execute
from hora.engine.negotiate import MessageTicket, Negotiator
from hora.engine.request import Request, TensorSpec
from hora.transport.arithmetic import Array
from hora.types import Buffer, DType, Kind, ReduceOp, Reduction
from hora.wire.messages import Bye, Peer, decode, encode

__all__ = ["SimulatedWorld", "buffer_of"]


def buffer_of(array: Array) -> Buffer:
    """A numpy array as a buffer; of the element types, bfloat16 has no array."""
    return Buffer(array.ctypes.data, DType[array.dtype.name.upper()], array.shape, array)


class SimulatedWorld:
    """``size`` ranks whose every interleaving is chosen by ``seed``."""

    def __init__(self, size: int, *, seed: int = 0, settings: Settings | None = None, generation: int = 0) -> None:
        peers = tuple(Peer(rank, rank, 10_000 + rank, "simulated") for rank in range(size))
        self.size = size
        self.ranks = [Negotiator(generation, rank, peers) for rank in range(size)]
        self.coordinator = Coordinator(generation, peers, settings or Settings())
        self.exchange = Exchange()
        self.executed: list[list[tuple[Key, ...]]] = [[] for _ in range(size)]  # by rank, what it did in which order
        self.messages = 0
        self.now = 0.0
        self._movers = [FakeMover(self.exchange, rank) for rank in range(size)]
        self._random = random.Random(seed)
        self._to_hub: list[deque[bytes]] = [deque() for _ in range(size)]
        self._to_rank: list[deque[bytes]] = [deque() for _ in range(size)]
        self._alive = set(range(size))
        self._cut: dict[
            int, str
        ] = {}  # ranks whose last words are on their way, and what the hub will make of their end
        self._waiting: set[int] = set()  # began a piece of work that needs others to begin it too
        self._undecided = False

    # ---- what ranks do ----

    def submit(
        self, rank: int, request: Request, inputs: Sequence[Buffer] = (), outputs: Sequence[Buffer] = ()
    ) -> MessageTicket:
        return self.ranks[rank].submit(request, inputs, outputs)

    def allreduce(
        self,
        rank: int,
        name: str,
        *arrays: Array,
        op: ReduceOp = ReduceOp.SUM,
        members: tuple[int, ...] | None = None,
        line: str = "?",
    ) -> MessageTicket:
        """Submit an allreduce in place; several arrays make a group."""
        buffers = [buffer_of(array) for array in arrays]
        segments = tuple(TensorSpec(buffer.dtype, buffer.shape) for buffer in buffers)
        everyone = tuple(range(self.size))
        grouped = len(arrays) > 1
        request = Request(
            Kind.ALLREDUCE,
            f"allreduce.{name}",
            segments,
            members or everyone,
            Reduction(op),
            grouped=grouped,
            line=line,
        )
        return self.submit(rank, request, buffers, buffers)

    def join(self, rank: int, average_active: bool = False) -> None:
        self.ranks[rank].join(average_active)

    def leave(self, rank: int) -> None:
        """Shut down in good order."""
        self._announce(rank)
        self._to_hub[rank].append(encode(Bye(self.coordinator.generation)))

    def kill(self, rank: int, status: str = "signal 9 (SIGKILL)") -> None:
        """The rank does nothing more, and what it sent last is lost."""
        self._alive.discard(rank)
        self._to_hub[rank].clear()
        self.coordinator.died(rank, status)
        self._post()

    def cut(self, ranks: Sequence[int], status: str = "the connection to its host broke") -> None:
        """The connections of a host break: some of what was sent still arrives, and the hub sees each end later."""
        for rank in ranks:
            self._alive.discard(rank)
            self._to_rank[rank].clear()
            on_its_way = self._to_hub[rank]
            for _ in range(self._random.randint(0, len(on_its_way))):
                on_its_way.pop()
            self._cut[rank] = status

    # ---- what happens ----

    def run(self, max_steps: int = 1_000_000) -> None:
        """Let things happen until nothing can."""
        for _ in range(max_steps):
            if not self.step():
                return
        raise AssertionError(f"still busy after {max_steps} steps")

    def step(self) -> bool:
        """Let one thing happen, chosen at random; False if nothing can."""
        choices: list[Callable[[], None]] = []
        for rank in self._alive:
            negotiator = self.ranks[rank]
            if negotiator.unsent:
                choices.append(partial(self._announce, rank))
            if self._to_hub[rank]:
                choices.append(partial(self._reach_hub, rank))
            if self._to_rank[rank]:
                choices.append(partial(self._reach_rank, rank))
            if negotiator.work and rank not in self._waiting:
                choices.append(partial(self._do_work, rank))
        for rank in self._cut:
            choices.append(partial(self._reach_hub if self._to_hub[rank] else self._see_end, rank))
        if self._undecided:
            choices.append(self._decide)
        if not choices:
            return False
        self._random.choice(choices)()
        return True

    def _announce(self, rank: int) -> None:
        self._to_hub[rank] += map(encode, self.ranks[rank].outgoing())

    def _reach_hub(self, rank: int) -> None:
        self.messages += 1
        self.now += 0.001
        self.coordinator.receive(rank, decode(self._to_hub[rank].popleft()), self.now)
        self._undecided = True

    def _see_end(self, rank: int) -> None:
        self.coordinator.died(rank, self._cut.pop(rank))
        self._post()

    def _decide(self) -> None:
        self._undecided = False
        self.coordinator.flush()
        self._post()

    def _post(self) -> None:
        outbox, self.coordinator.outbox = self.coordinator.outbox, []
        for ranks, message in outbox:
            payload = encode(message)
            for rank in ranks:
                if rank in self._alive:
                    self._to_rank[rank].append(payload)

    def _reach_rank(self, rank: int) -> None:
        self.messages += 1
        self.ranks[rank].receive(decode(self._to_rank[rank].popleft()))

    def _do_work(self, rank: int) -> None:
        work = self.ranks[rank].work[0]
        try:
            outcomes = execute(work, self._movers[rank], rank)
        except NotYet:
            self._waiting.add(rank)
            return
        self._waiting.clear()  # whoever waited may have waited for this rank
        self.executed[rank].append(tuple((t.request.name, t.request.members) for t in work.tickets))
        self.ranks[rank].finish(work, outcomes)
