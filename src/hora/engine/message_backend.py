"""The message backend: agreement through the hub, data through any mover (Gloo, MPI, shared memory with either).

Three threads besides the user's: the line's reads what the hub says, the *announcer* tells the hub what was submitted
(after a short pause, so that operations submitted together are agreed on and fused together; a thread that waits
announces at once), and the *carrier* does the agreed work. Only the carrier ever waits for another rank. Each of them
is woken only for what it has to do.

Whatever breaks, every wait ends: a death is told by the hub, and a mover that fails ends the generation on all ranks.
When the generation ends early the mover is told, so that the carrier does not wait for those who will not come.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from hora.engine.backend import (
    Backend,
    EventKind,
    Operation,
    OperationEvent,
    OperationOutcome,
    Pending,
    Snapshot,
    UnderWay,
)
from hora.engine.coordinator import look_every_s
from hora.engine.execute import execute
from hora.engine.hierarchical import HierarchicalMover
from hora.engine.hub_connection import python_stacks
from hora.engine.meet import Meeting
from hora.engine.negotiate import Ender, MessageTicket, Negotiator, Work, peer_lost, shut_down
from hora.engine.request import Request
from hora.engine.snapshot import unpack
from hora.errors import HorovodInternalError, PeerLostError, ShutDownError
from hora.transport.base import Mover
from hora.transport.movers import make_mover, with_gpus
from hora.types import Buffer
from hora.wire.frame import WireError, WireTooLarge
from hora.wire.messages import (
    AnyMessage,
    Broken,
    Bye,
    FailStalled,
    GivenUp,
    HubDecisions,
    LastWords,
    StateAsk,
    StateReply,
)

__all__ = ["MessageBackend", "start"]

_log = logging.getLogger("hora")

_SLICE_S = 0.5  # waits are sliced so that Ctrl-C gets through
_BLAME_S = 1.0  # when moving data fails, how long the hub gets to say who died
_LEAVE_S = 10.0
_FINISH_S = 1.0  # for work that is under way when everything ends
_CLOSE_S = 5.0
_SNAPSHOT_S = 3.0
_WORDS_CHARACTERS = 8192


def start(meeting: Meeting) -> MessageBackend:
    """The message backend of a meeting, over the transport that it agreed on."""
    generation, rank, peers, settings = meeting.generation, meeting.rank, meeting.peers, meeting.settings
    inside, _, between = meeting.transport.rpartition("+")
    store = _HubStore(meeting)
    flat = make_mover(between, rank, peers, store, settings)
    mover = HierarchicalMover(generation, rank, peers, store, settings, flat) if inside else flat
    backend = MessageBackend(meeting, with_gpus(mover, rank, peers, store, settings))
    store.ended = backend.over
    return backend


class _HubStore:
    """The hub's store as a transport wants it. Its waits end with the generation."""

    def __init__(self, meeting: Meeting) -> None:
        self._line, self._generation = meeting.channel, meeting.generation
        self.ended: Callable[[], bool] = lambda: False

    def set(self, key: str, value: bytes) -> None:
        self._line.store_set(self._generation, key, value)

    def get(self, key: str, timeout_s: float) -> bytes | None:
        return self._line.store_get(self._generation, key, timeout_s, self.ended)


class _MessageOperation(Operation):
    """A request. Nothing is to be made ready: what was agreed once is remembered by the negotiator, under its name."""

    __slots__ = ("_backend", "request")

    def __init__(self, backend: MessageBackend, request: Request) -> None:
        self._backend, self.request = backend, request

    def start(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> UnderWay[OperationOutcome]:
        return _MessageUnderWay(self._backend, self._backend.submit(self.request, inputs, outputs))


class _MessageUnderWay(UnderWay[OperationOutcome]):
    __slots__ = ("_backend", "_ticket", "request")

    def __init__(self, backend: MessageBackend, ticket: MessageTicket) -> None:
        self._backend, self._ticket, self.request = backend, ticket, ticket.request

    def done(self) -> bool:
        return self._ticket.done

    def wait(self) -> OperationOutcome:
        return self._backend.wait(self._ticket)


class MessageBackend(Backend):
    """``engine.backend.Backend`` by messages."""

    def __init__(self, meeting: Meeting, mover: Mover) -> None:
        self._meeting, self._line, self._mover = meeting, meeting.channel, mover
        self.carries, self.narrows = mover.carries, mover.narrows
        self._generation, self._rank = meeting.generation, meeting.rank
        self._cycle_s = meeting.settings.cycle_time_ms / 1000
        self._negotiator = Negotiator(meeting.generation, meeting.rank, meeting.peers, self._ended)
        lock = threading.RLock()  # guards the negotiator and everything below
        self._moved = threading.Condition(lock)  # for those who wait for operations
        self._to_announce, self._to_carry = threading.Condition(lock), threading.Condition(lock)
        self._announcing = threading.Lock()  # keeps messages in the order in which they were made
        self._submitters: set[int] = set()
        self._waiters: dict[int, tuple[str, tuple[int, ...]]] = {}  # by thread
        self._events: list[OperationEvent] | None = None  # None while nobody wants them
        self._closing = False
        self._threads = [
            threading.Thread(target=self._announce_loop, name="hora-announcer", daemon=True),
            threading.Thread(target=self._carry_loop, name="hora-carrier", daemon=True),
        ]
        self._line.subscribe(self._hear, self._lost)
        for thread in self._threads:
            thread.start()

    # ---- Backend ----

    def prepare(self, request: Request) -> Operation:
        return _MessageOperation(self, request)

    def submit(self, request: Request, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> MessageTicket:
        """For its operations: take one; it is announced soon."""
        with self._moved:
            self._submitters.add(threading.get_ident())
            first = not self._negotiator.unsent
            ticket = self._negotiator.submit(request, inputs, outputs)
            self._note(EventKind.SUBMITTED, ticket)
            if first:
                self._to_announce.notify()
        return ticket

    def wait(self, ticket: MessageTicket) -> OperationOutcome:
        """For what is under way: announce it, if that was not done yet, and wait for its end."""
        if not ticket.done:
            self._announce()
            with self._moved, self._waiting(ticket.request.name, ticket.request.members):
                while not ticket.done:
                    self._moved.wait(_SLICE_S)
        return ticket.result()

    def join(self, average_active: bool, begun: Callable[[], None] = lambda: None) -> int:
        with self._moved:
            self._submitters.add(threading.get_ident())
            self._negotiator.join(average_active)
        self._announce()
        begun()
        with self._moved, self._waiting("join", ()):
            while self._negotiator.joined is None:
                if (error := self._negotiator.why_ended("join")) is not None:
                    raise error
                self._moved.wait(_SLICE_S)
            done = self._negotiator.joined
        if done.failure:
            raise ShutDownError(done.failure)
        return done.last

    def snapshot(self) -> Snapshot:
        timeout_s = _SNAPSHOT_S + look_every_s(self._meeting.size)
        try:
            packed = self._line.snapshot(self._generation, timeout_s)
        except WireError:
            packed = None
        return Snapshot(-1, (), ()) if packed is None else unpack(packed)

    def fail(self, pending: Pending, kind: str, text: str) -> None:
        verdict = FailStalled(self._generation, pending.name, pending.members, pending.missing, kind, text)
        with contextlib.suppress(WireError):  # then everything fails anyway
            self._line.send(verdict)

    def give_up(self, rank: int, status: str) -> None:
        with contextlib.suppress(WireError):
            self._line.send(GivenUp(self._generation, rank, status))

    def python_stack(self, rank: int, timeout_s: float) -> str:
        if rank == self._rank:
            return python_stacks()
        return self._line.python_stack(self._generation, rank, timeout_s)

    def waiting(self) -> bool:
        return self._negotiator.busy

    def say(self, text: str) -> None:
        with contextlib.suppress(WireError):
            self._line.send(LastWords(self._generation, text[-_WORDS_CHARACTERS:]))

    def trace(self, on: bool) -> None:
        with self._moved:
            self._events = [] if on else None

    def events(self) -> list[OperationEvent]:
        """What happened since the last call. When other ranks arrived only the hub knows, so that is not told."""
        with self._moved:
            taken = self._events or []
            self._events = None if self._events is None else []
            return taken

    def over(self) -> bool:
        """Whether this generation has ended, for whatever reason."""
        return self._negotiator.why_ended("") is not None

    def leave(self) -> None:
        self._announce()
        with contextlib.suppress(WireError):
            self._line.send(Bye(self._generation))
        deadline = time.monotonic() + _LEAVE_S
        with self._moved:
            while not self._line.lost and time.monotonic() < deadline:
                if self._negotiator.left and not self._negotiator.work:
                    return
                self._moved.wait(0.1)

    def close(self) -> None:
        with self._moved:
            already, self._closing = self._closing, True
            self._negotiator.end(shut_down)
            self._wake_all()
        if already:
            return
        self._line.unsubscribe()
        for thread in self._threads:  # one that is still inside the transport when Python ends could abort the process
            thread.join(timeout=_FINISH_S)
        if any(thread.is_alive() for thread in self._threads):
            self._mover.abort("Hora is being shut down on this rank")
            for thread in self._threads:
                thread.join(timeout=_CLOSE_S)
        self._mover.close()

    # ---- the announcer ----

    def _announce_loop(self) -> None:
        while True:
            with self._moved:
                while not self._negotiator.unsent and not self._closing:
                    self._to_announce.wait()
                if self._closing:
                    return
            time.sleep(self._cycle_s)
            self._announce()

    def _announce(self) -> None:
        """Tell the hub what has been submitted."""
        with self._announcing:
            with self._moved:
                messages = self._negotiator.outgoing()
            for message in messages:
                try:
                    self._line.send(message)
                except WireTooLarge as error:
                    self._cannot_say(str(error))
                    return
                except WireError as error:
                    self._lost(str(error))
                    return

    def _cannot_say(self, reason: str) -> None:
        """The hub lives, but cannot be told what was submitted; the others will not wait for it."""
        self._end(lambda name: HorovodInternalError(f"'{name}' cannot be done: {reason}."))
        with contextlib.suppress(WireError):
            self._line.send(Broken(self._generation, f"it could not say what it submitted: {reason}"))

    # ---- the carrier ----

    def _carry_loop(self) -> None:
        while True:
            with self._moved:
                while not self._negotiator.work and not self._closing:
                    self._to_carry.wait()
                if not self._negotiator.work:
                    return
                work = self._negotiator.work[0]
                self._note(EventKind.BEGIN, *work.tickets, detail=len(work.tickets))
            try:
                outcomes = execute(work, self._mover, self._rank)
            except Exception as error:
                self._broken(work, error)
                return
            with self._moved:
                self._negotiator.finish(work, outcomes)
                self._moved.notify_all()

    def _broken(self, work: Work, error: Exception) -> None:
        """Data cannot be moved. Most often somebody died, and the hub will say who; if not, it is told about us."""
        name = work.tickets[0].request.name
        with self._moved:
            deadline = time.monotonic() + _BLAME_S
            while self._negotiator.why_ended(name) is None and time.monotonic() < deadline:
                self._moved.wait(max(0.0, deadline - time.monotonic()))
            if self._negotiator.why_ended(name) is None:
                _log.debug("moving data for '%s' failed", name, exc_info=error)
                text = (
                    f"the data of '{name}' could not be moved: {error}.\nThe ranks can no longer work together; all "
                    "operations fail on all of them. If no rank died, look at the network between them."
                )
                self._end(lambda _: HorovodInternalError(text))
                with contextlib.suppress(WireError):
                    self._line.send(Broken(self._generation, f"it could not move the data of '{name}': {error}"))

    # ---- the line's thread ----

    def _hear(self, message: AnyMessage) -> None:
        if isinstance(message, StateAsk):
            with contextlib.suppress(WireError):
                self._line.send(self._state(message.id))
            return
        with self._moved:
            known = len(self._negotiator.work)
            self._negotiator.receive(message)
            for work in islice(self._negotiator.work, known, None):
                self._note(EventKind.ARRIVED, *work.tickets)
                self._note(EventKind.AGREED, *work.tickets)
            if len(self._negotiator.work) > known:
                self._to_carry.notify()
            if self._negotiator.unsent:
                self._to_announce.notify()
            if not isinstance(message, HubDecisions) or message.notices:  # what was only agreed on has yet to be done
                self._moved.notify_all()
            ended = not self._negotiator.left and self._negotiator.why_ended("") is not None
        if ended:
            self._mover.abort(str(self._negotiator.why_ended("")))

    def _lost(self, reason: str) -> None:
        """The hub is gone: with the rank that ran it, or with the launcher."""
        hub_rank = self._meeting.hub_rank
        if hub_rank >= 0 and hub_rank != self._rank:
            self._end(peer_lost(self._meeting.peers[hub_rank], reason))
        else:
            self._end(
                lambda name: PeerLostError(
                    f"the launcher is gone ({reason}); '{name}' cannot finish. Stop this process."
                )
            )

    def _end(self, end: Ender) -> None:
        with self._moved:
            self._negotiator.end(end)
            self._wake_all()
        self._mover.abort(str(end("")))

    def _wake_all(self) -> None:
        for condition in (self._moved, self._to_announce, self._to_carry):
            condition.notify_all()

    def _state(self, ask_id: int) -> StateReply:
        """Whether every thread that submits operations waits in here; threads that have ended do not count."""
        with self._moved:
            alive = {thread.ident for thread in threading.enumerate()}
            self._submitters &= {ident for ident in alive if ident is not None}
            blocked = bool(self._submitters) and self._submitters <= self._waiters.keys()
            return StateReply(self._generation, ask_id, blocked, tuple(self._waiters.values()))

    # ---- what happened ----

    def _ended(self, ticket: MessageTicket) -> None:
        self._note(EventKind.END, ticket, detail=int(ticket.error is not None))

    def _note(self, what: EventKind, *tickets: MessageTicket, detail: int = 0) -> None:
        if self._events is not None:
            now_ns = time.monotonic_ns()
            self._events += [OperationEvent(now_ns, ticket.request, what, self._rank, detail) for ticket in tickets]

    @contextlib.contextmanager
    def _waiting(self, name: str, members: tuple[int, ...]) -> Iterator[None]:
        ident = threading.get_ident()
        self._waiters[ident] = (name, members)
        try:
            yield
        finally:
            del self._waiters[ident]
