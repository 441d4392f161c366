"""The coordinator of one generation, in the hub. Pure: messages in, messages out, time passed in.

It decides which operations are carried out where workers agree by messages, keeps the store by which transports find
each other, passes questions from worker to worker, and says who has left or died. The hub sends its messages over
sockets; a simulated world (``tests.engine.simulate``) delivers the same messages in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from hora.config.settings import Settings
from hora.engine.agree import (
    Agreement,
    AllJoined,
    Decision,
    OperationFailed,
    OperationReady,
    OperationSuspicious,
    received_bytes,
)
from hora.engine.backend import RankState, Snapshot
from hora.engine.explain import given_up
from hora.engine.fuse import plan
from hora.engine.request import Request
from hora.engine.snapshot import merged, pack
from hora.types import Kind
from hora.wire.frame import WireError
from hora.wire.messages import (
    Again,
    AnyMessage,
    Broken,
    Bye,
    Died,
    FailStalled,
    Farewell,
    GivenUp,
    HubDecisions,
    Join,
    JoinDone,
    LastWords,
    Left,
    Message,
    Op,
    OperationBatch,
    OperationFailure,
    OperationWarning,
    Peer,
    Refused,
    SnapshotAsk,
    SnapshotReply,
    StackAsk,
    StackReply,
    StateAsk,
    StateReply,
    StoreGet,
    StoreReply,
    StoreSet,
    Submit,
)  # fmt: skip

__all__ = ["Coordinator", "look_every_s"]

_STORE_BYTES = 64 * 2**20
_WORDS_CHARACTERS = 8192
_REQUESTS = 4096
_SNAPSHOT_S = 1.0  # a worker that does not say by then whether it is blocked counts as silent


def look_every_s(size: int) -> float:
    """How often a generation of ``size`` makes a snapshot at most: each costs all of them a message, and its hub as
    many.

    >>> look_every_s(4), look_every_s(512)
    (0.1, 2.0)
    """
    return max(0.1, size / 256)


class _Look:
    """A snapshot being put together, for all who ask meanwhile."""

    def __init__(self, look_id: int, waiting: set[int], deadline: float) -> None:
        self.id, self.waiting, self.deadline = look_id, waiting, deadline
        self.replies: dict[int, StateReply] = {}


class Coordinator:
    """The coordinator of one generation.

    ``outbox`` fills with (ranks, message); whoever carries them empties it. ``flush`` turns what was decided since the
    last time into plans, so that what became ready together can be fused: call it when no more input is at hand.
    """

    def __init__(self, generation: int, peers: Sequence[Peer], settings: Settings, tables: bool = False) -> None:
        self._tables = tables  # operations are agreed on elsewhere: verdicts on them are passed on
        self.generation, self.peers, self.settings = generation, tuple(peers), settings
        self.outbox: list[tuple[tuple[int, ...], Message]] = []
        self.present = {peer.rank for peer in peers}  # neither left nor dead
        self.dead: Died | None = None
        self._agreement = Agreement(len(peers), cache_capacity=settings.cache_capacity, strict=settings.strict)
        self._decisions: list[Decision] = []
        self._words: dict[int, str] = {}
        self._given_up: dict[int, str] = {}  # why
        self._store: dict[str, bytes] = {}
        self._store_waits: dict[str, list[tuple[int, int]]] = {}
        self._stack_asks: dict[int, tuple[int, int]] = {}  # our number -> (asker, its number)
        self._askers: list[tuple[int, int]] = []  # of a snapshot: rank, its number
        self._look: _Look | None = None
        self._next_look = 0.0
        self._requests: dict[bytes, Request] = {}  # so that what ranks say alike is one object
        self._next_id = 1

    # ---- input ----

    def receive(self, rank: int, message: AnyMessage, now: float) -> None:
        """A message from a member. Raises WireError if no well-behaved worker would send it."""
        if rank not in self.present:
            self._answer_the_gone(rank, message)
            return
        match message:
            case Submit(items=items):
                self._submit(rank, items, now)
            case Join(average_active=average_active) if self.dead is None:
                self._decide(lambda: self._agreement.join(rank, average_active))
            case FailStalled(name=name, members=members, missing=missing, kind=kind, text=text):
                self._decisions += self._agreement.fail((name, members), missing, kind, text)
                if self._tables:
                    self._tell(self.present, message)
            case StoreSet(key=key, value=value):
                self._set(key, value)
            case StoreGet(id=ask_id, key=key):
                if key in self._store:
                    self._tell((rank,), StoreReply(self.generation, ask_id, self._store[key]))
                else:
                    self._store_waits.setdefault(key, []).append((rank, ask_id))
            case StackAsk() | StackReply():
                self._pass_on(rank, message)
            case SnapshotAsk(id=ask_id):
                self._askers.append((rank, ask_id))
                self._begin_look(now)
            case StateReply(id=look_id) if self._look is not None and look_id == self._look.id:
                self._look.replies[rank] = message
                self._look.waiting.discard(rank)
                self._end_look(now)
            case LastWords(text=text):
                self._words[rank] = text[-_WORDS_CHARACTERS:]
            case Broken(status=status):
                self._end(rank, status, self.present - {rank})
            case GivenUp(rank=silent, status=status):
                if silent in self.present:
                    self.died(silent, status)
                    self._given_up[silent] = status
                    self._tell((silent,), self._refusal(silent))  # it will read that when it goes on
            case Bye():
                self._leave(rank)
            case Join() | StateReply():
                pass  # too late to matter
            case _:
                raise WireError(f"rank {rank} sent a {type(message).__name__}, which only the hub sends")

    def died(self, rank: int, status: str) -> None:
        """A member is gone without a Bye: tell everyone. Only the first death counts; the rest follow from it."""
        if rank not in self.present:
            return
        self.present.discard(rank)
        self._end(rank, status, self.present)
        self._forget_asker(rank)

    def _answer_the_gone(self, rank: int, message: AnyMessage) -> None:
        """One that has left, or was given up and runs again: it must not wait for what will not come."""
        match message:
            case Bye():
                self._tell((rank,), Farewell(self.generation))
            case Submit() | Join() | StoreGet() | SnapshotAsk() | StackAsk():
                self._tell((rank,), self._refusal(rank))

    def _refusal(self, rank: int) -> Refused:
        if rank not in self._given_up:
            return Refused(self.generation, "stale", f"rank {rank} has left this generation.")
        return Refused(self.generation, "stale", given_up(rank, self._given_up[rank]))

    def _end(self, rank: int, status: str, audience: Iterable[int]) -> None:
        if self.dead is None:
            self.dead = Died(self.generation, rank, status, self._words.get(rank, ""))
            self._decisions.clear()
            self._tell(audience, self.dead)

    @property
    def timed(self) -> bool:
        """Whether ``tick`` may have something to do."""
        return bool(self._askers)

    def tick(self, now: float) -> None:
        """Let time pass."""
        if self._look is not None and now >= self._look.deadline:
            self._look.waiting.clear()
        self._end_look(now)
        self._begin_look(now)

    def flush(self) -> None:
        """Turn decisions into plans."""
        decisions, self._decisions = self._decisions, []
        forget = self._agreement.forgotten()
        if not decisions and not forget:
            return
        batches: dict[int, list[OperationBatch]] = {}
        notices: dict[int, list[OperationFailure | OperationWarning]] = {}
        joins: list[tuple[tuple[int, ...], JoinDone]] = []
        ready = [decision for decision in decisions if isinstance(decision, OperationReady)]
        group_unfused = self.settings.disable_group_fusion
        for operations in plan(ready, self.settings.fusion_bytes, disable_group_fusion=group_unfused):
            for rank, batch in self._batch(operations):
                batches.setdefault(rank, []).append(batch)
        for decision in decisions:
            match decision:
                case OperationFailed(key=(name, ())):
                    joins.append((decision.ranks, JoinDone(self.generation, -1, decision.text)))
                case OperationFailed(key=(name, members), kind=kind, text=text):
                    words = [w for r, w in self._words.items() if r in members and r not in self.present]
                    told = OperationFailure(name, members, kind, "\nThe last it said:\n".join([text, *words]))
                    for rank in decision.ranks:
                        notices.setdefault(rank, []).append(told)
                case OperationSuspicious():
                    for rank in decision.ranks:
                        notices.setdefault(rank, []).append(OperationWarning(decision.text))
                case AllJoined(last=last):
                    joins.append((tuple(self.present), JoinDone(self.generation, last)))
        alike: dict[tuple[int, ...], tuple[HubDecisions, list[int]]] = {}  # most often one plan serves all
        for rank in sorted(self.present if forget else batches.keys() | notices.keys()):
            mine, news = batches.get(rank, ()), notices.get(rank, ())
            identity = (*map(id, mine), 0, *map(hash, news))
            if identity not in alike:
                alike[identity] = (HubDecisions(self.generation, tuple(mine), tuple(news), forget), [])
            alike[identity][1].append(rank)
        for message, ranks in alike.values():
            self._tell(ranks, message)
        for audience, done in joins:  # after the operations that came before it
            self._tell(audience, done)

    # ---- one kind of message each ----

    def _submit(self, rank: int, items: Iterable[bytes | int], now: float) -> None:
        if self.dead is not None:
            return
        unknown = []
        for item in items:
            if isinstance(item, int):
                try:
                    self._decide(lambda: self._agreement.arrive(rank, item, now))  # noqa: B023 (called at once)
                except KeyError:
                    unknown.append(item)
                continue
            request = self._decoded(rank, item)
            self._decide(lambda: self._agreement.arrive(rank, request, now))  # noqa: B023
        if unknown:
            self._tell((rank,), Again(self.generation, tuple(unknown)))

    def _decoded(self, rank: int, item: bytes) -> Request:
        request = self._requests.get(item)
        if request is None:
            try:
                request = Request.decode(item)
            except msgspec.DecodeError as error:
                raise WireError(f"rank {rank} submitted something that is no request: {error}") from error
            if len(self._requests) >= _REQUESTS:
                self._requests.clear()
            self._requests[item] = request
        return request

    def _decide(self, step: Callable[[], list[Decision]]) -> None:
        try:
            self._decisions += step()
        except ValueError as error:
            raise WireError(str(error)) from error

    def _batch(self, operations: list[OperationReady]) -> Iterable[tuple[int, OperationBatch]]:
        """The batch of these operations for each rank that takes part."""
        first = operations[0]
        ops = tuple(r.id if r.known and r.id else Op(r.key[0], r.id) for r in operations)
        members = first.members if any(isinstance(op, Op) for op in ops) else ()  # a number says it all
        absent = first.contributors if first.contributors != first.members else ()
        request = first.request
        if request.kind is Kind.ALLTOALL:
            for rank in first.contributors:
                yield (
                    rank,
                    OperationBatch(
                        ops, members, absent, first.divisor, received_bytes(first.requests, first.members, rank)
                    ),
                )
            return
        received = received_bytes(first.requests, first.members, 0) if request.kind is Kind.ALLGATHER else ()
        batch = OperationBatch(ops, members, absent, first.divisor, received)
        for rank in first.contributors:
            yield rank, batch

    def _leave(self, rank: int) -> None:
        if self.dead is None:
            self.flush()  # what was decided with this rank it must still hear of
            self._decisions += self._agreement.leave(rank)
        self.present.discard(rank)
        self._forget_asker(rank)
        self._tell((rank,), Farewell(self.generation))
        self._tell(self.present, Left(self.generation, rank))

    def _set(self, key: str, value: bytes) -> None:
        total = sum(map(len, self._store.values())) + len(value)
        if total > _STORE_BYTES:
            raise WireError(f"the store would hold {total} bytes, the limit is {_STORE_BYTES}")
        self._store[key] = value
        for rank, ask_id in self._store_waits.pop(key, ()):
            self._tell((rank,), StoreReply(self.generation, ask_id, value))

    def _pass_on(self, rank: int, message: StackAsk | StackReply) -> None:
        if isinstance(message, StackReply):
            asker, ask_id = self._stack_asks.pop(message.id, (-1, 0))
            self._tell((asker,), StackReply(self.generation, ask_id, message.text))
        elif message.rank in self.present:
            self._stack_asks[self._next_id] = (rank, message.id)
            self._tell((message.rank,), StackAsk(self.generation, self._next_id, message.rank))
            self._next_id += 1
        else:
            self._tell((rank,), StackReply(self.generation, message.id, f"rank {message.rank} is gone"))

    def _begin_look(self, now: float) -> None:
        """Ask everybody, if anybody wants to know, and nobody is being asked or was a moment ago."""
        if self._look is None and self._askers and now >= self._next_look:
            self._look = _Look(self._next_id, set(self.present), now + _SNAPSHOT_S)
            self._next_id += 1
            self._next_look = now + look_every_s(len(self.peers))
            self._tell(self.present, StateAsk(self.generation, self._look.id))

    def _end_look(self, now: float) -> None:
        """Once all have answered that are still there, tell all who have asked."""
        look = self._look
        if look is None or look.waiting & self.present:
            return
        states = []
        for peer in self.peers:
            reply = look.replies.get(peer.rank)
            blocked, waiting_on = (reply.blocked, reply.waiting_on) if reply is not None else (False, ())
            silent = reply is None and peer.rank in self.present
            states.append(RankState(peer.rank, peer.pid, blocked, waiting_on, silent))
        pending = (*self._agreement.pending(now), *merged(reply.pending for reply in look.replies.values()))
        snapshot = pack(Snapshot(self._agreement.progress, tuple(states), pending))
        for rank, ask_id in self._askers:
            self._tell((rank,), SnapshotReply(self.generation, ask_id, snapshot))
        self._look, self._askers = None, []

    def _forget_asker(self, rank: int) -> None:
        for waits in self._store_waits.values():
            waits[:] = [wait for wait in waits if wait[0] != rank]
        self._stack_asks = {i: ask for i, ask in self._stack_asks.items() if ask[0] != rank}
        self._askers = [ask for ask in self._askers if ask[0] != rank]

    def _tell(self, ranks: Iterable[int], message: Message) -> None:
        if audience := tuple(ranks):
            self.outbox.append((audience, message))
