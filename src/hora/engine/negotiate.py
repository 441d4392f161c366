"""One rank's side of agreement by messages: from a submitted operation to work that is ready to be carried out.

Pure: requests and messages in, messages and work out. ``engine.message_backend`` drives it over the connection to the
hub, and ``tests.engine.simulate`` over a queue. Not thread-safe; its driver holds a lock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hora.engine.agree import Key
from hora.engine.backend import OperationOutcome
from hora.engine.explain import lost
from hora.engine.request import Request
from hora.errors import (
    DeadlockError,
    DuplicateNameError,
    HorovodInternalError,
    MismatchError,
    ShutDownError,
    StallError,
)  # fmt: skip
from hora.types import Buffer
from hora.wire.messages import (
    Again,
    AnyMessage,
    Died,
    Farewell,
    HubDecisions,
    Join,
    JoinDone,
    Left,
    Message,
    OperationBatch,
    OperationFailure,
    OperationWarning,
    Peer,
    Refused,
    Submit,
)  # fmt: skip

__all__ = ["Ender", "MessageTicket", "Negotiator", "Work", "peer_lost", "shut_down"]

_log = logging.getLogger("hora")

Ender = Callable[[str], HorovodInternalError]  # what waiting for the operation of this name ends in


class MessageTicket:
    """An operation in flight: what was asked for, and how it ended once ``done``."""

    __slots__ = ("done", "error", "id", "inputs", "outcome", "outputs", "request")

    def __init__(self, request: Request, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        self.request, self.inputs, self.outputs = request, tuple(inputs), tuple(outputs)
        self.id = 0  # the number it was sent by, 0 if in full
        self.done = False
        self.outcome: OperationOutcome | None = None
        self.error: HorovodInternalError | None = None

    def result(self) -> OperationOutcome:
        """The outcome of a finished operation, or its error."""
        if self.error is not None:
            raise self.error.with_traceback(None)  # each wait gets a traceback of its own
        assert self.outcome is not None
        return self.outcome


class Work(NamedTuple):
    """Operations to carry out in one go, now, after all work that came before."""

    tickets: tuple[MessageTicket, ...]
    contributors: tuple[int, ...]
    divisor: int
    received: tuple[tuple[int, ...], ...]


def peer_lost(peer: Peer, status: str, words: str = "") -> Ender:
    """What waiting ends in when a rank has died."""
    return lambda name: lost(peer, status, name, words)


def shut_down(name: str) -> HorovodInternalError:
    """What waiting ends in when this rank itself has shut down."""
    return ShutDownError(f"Hora was shut down on this rank while '{name}' was waiting. Wait for it before shutdown().")


_ERRORS: dict[str, type[HorovodInternalError]] = {
    "mismatch": MismatchError,
    "deadlock": DeadlockError,
    "stall": StallError,
    "shutdown": ShutDownError,
}


class Negotiator:
    """The operations of one rank in one generation. ``on_done`` hears of each as it ends, well or not."""

    def __init__(
        self, generation: int, rank: int, peers: Sequence[Peer], on_done: Callable[[MessageTicket], None] | None = None
    ) -> None:
        self.generation, self.rank, self.peers = generation, rank, tuple(peers)
        self._on_done = on_done
        self.work: deque[Work] = deque()  # ready, in the order all ranks keep
        self.left = False  # the hub has taken leave of this rank: no more work will come
        self.joined: JoinDone | None = None  # how the last join ended
        self._tickets: dict[Key, MessageTicket] = {}  # in flight
        self._numbers: dict[Key, tuple[int, Request]] = {}  # what may be submitted by number
        self._keys: dict[int, Key] = {}
        self._unsent: list[MessageTicket] = []
        self._messages: list[Message] = []
        self._end: Ender | None = None

    @property
    def busy(self) -> bool:
        """Whether any operation is in flight."""
        return bool(self._tickets)

    @property
    def unsent(self) -> bool:
        return bool(self._unsent or self._messages)

    def submit(self, request: Request, inputs: Sequence[Buffer] = (), outputs: Sequence[Buffer] = ()) -> MessageTicket:
        """Take an operation; it is announced with the next ``outgoing``."""
        if self._end is not None:
            raise self._end(request.name)
        key = (request.name, request.members)
        if (earlier := self._tickets.get(key)) is not None:
            raise DuplicateNameError(
                f"'{request.name}' was submitted at {request.line} while the one submitted at {earlier.request.line} "
                "has not finished. A name stands for one operation at a time: wait for the first, or give them "
                "different names."
            )
        ticket = self._tickets[key] = MessageTicket(request, inputs, outputs)
        self._unsent.append(ticket)
        return ticket

    def join(self, average_active: bool) -> None:
        """Announce that this rank has no more data; ``joined`` tells when all have."""
        if self._end is not None:
            raise self._end("join")
        self.joined = None
        self._messages.append(Join(self.generation, average_active))

    def outgoing(self) -> list[Message]:
        """Take the messages that are to be sent to the hub."""
        items: list[bytes | int] = []
        for ticket in self._unsent:
            number, known = self._numbers.get((ticket.request.name, ticket.request.members), (0, None))
            if known == ticket.request:
                ticket.id = number
                items.append(number)
            else:
                ticket.id = 0
                items.append(ticket.request.encode())
        self._unsent.clear()
        taken, self._messages = self._messages, []
        return [Submit(self.generation, tuple(items)), *taken] if items else taken  # what was submitted before a join

    def receive(self, message: AnyMessage) -> None:
        """Take a message of this generation from the hub."""
        if self._end is not None and not isinstance(message, Farewell):
            return
        match message:
            case HubDecisions(batches=batches, notices=notices, forget=forget):
                for batch in batches:
                    self._take(batch)
                for notice in notices:
                    self._heed(notice)
                for number in forget:
                    self._numbers.pop(self._keys.pop(number, ("", ())), None)
            case Again(ids=ids):
                for ticket in self._tickets.values():
                    if ticket.id in ids:
                        self._numbers.pop(self._keys.pop(ticket.id, ("", ())), None)
                        self._unsent.append(ticket)
            case JoinDone():
                self.joined = message
            case Died(rank=rank, status=status, words=words):
                self.end(peer_lost(self.peers[rank], status, words))
            case Refused(text=text):
                self.end(lambda name: ShutDownError(f"'{name}' cannot be done: {text}"))
            case Farewell():
                self.left = True
                self.end(shut_down, sparing_work=True)
            case Left():
                pass  # what needed that rank fails with a notice
            case _:
                _log.debug("rank %d does not know what to do with a %s", self.rank, type(message).__name__)

    def finish(self, work: Work, outcomes: Sequence[OperationOutcome]) -> None:
        """The first piece of ``work`` is done; it stays there while it is being done."""
        if self.work and self.work[0] is work:
            self.work.popleft()
        for ticket, outcome in zip(work.tickets, outcomes, strict=True):
            if not ticket.done:
                self._settle(ticket, outcome)

    def end(self, end: Ender, *, sparing_work: bool = False) -> None:
        """Everything in flight, and everything submitted later, fails. The first end counts.

        With ``sparing_work`` what all ranks have already agreed on can still be finished.
        """
        if self._end is not None:
            return
        self._end = end
        agreed = {id(ticket) for work in self.work for ticket in work.tickets} if sparing_work else set()
        if not sparing_work:
            self.work.clear()
        for ticket in list(self._tickets.values()):
            if id(ticket) not in agreed:
                self._settle(ticket, end(ticket.request.name))
        self._unsent.clear()

    def why_ended(self, name: str) -> HorovodInternalError | None:
        """The error that an operation of this name would now get; None while all is well."""
        return None if self._end is None else self._end(name)

    # ---- plans ----

    def _take(self, batch: OperationBatch) -> None:
        tickets = []
        for op in batch.ops:
            if isinstance(op, int):
                key = self._keys[op]
            else:
                key = (op.name, batch.members)
                if op.id:
                    self._learn(key, op.id)
            tickets.append(self._tickets[key])
        contributors = batch.contributors or tickets[0].request.members
        self.work.append(Work(tuple(tickets), contributors, batch.divisor, batch.received))

    def _learn(self, key: Key, number: int) -> None:
        old, _ = self._numbers.get(key, (0, None))
        self._keys.pop(old, None)
        self._numbers[key] = (number, self._tickets[key].request)
        self._keys[number] = key

    def _heed(self, notice: OperationFailure | OperationWarning) -> None:
        if isinstance(notice, OperationWarning):
            _log.warning("%s", notice.text)
            return
        ticket = self._tickets.get((notice.name, notice.members))
        if ticket is not None:
            self._settle(ticket, _ERRORS.get(notice.kind, HorovodInternalError)(notice.text))

    def _settle(self, ticket: MessageTicket, result: OperationOutcome | HorovodInternalError) -> None:
        del self._tickets[ticket.request.name, ticket.request.members]
        if isinstance(result, OperationOutcome):
            ticket.outcome = result
        else:
            ticket.error = result
        ticket.done = True  # last: it is looked at without a lock
        if self._on_done is not None:
            self._on_done(ticket)
