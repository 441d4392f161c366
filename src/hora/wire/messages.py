"""The control messages between workers and the hub: one struct each, a tagged union, msgpack on the wire.

Every message carries its generation, so that a message of a generation that is over is recognised.
Ranks in messages are ranks inside the generation, except in :class:`Hello`, which is about the launched world. Requests
and snapshots are sent as the bytes that ``engine.request`` and ``engine.snapshot`` made of them: this layer moves them
and knows nothing of operations.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hora.config.settings import Settings
from hora.wire.frame import MAX_FRAME_BYTES, WireError, WireTooLarge

__all__ = [
    "Again",
    "AnyMessage",
    "Broken",
    "Bye",
    "Died",
    "Entered",
    "FailStalled",
    "Farewell",
    "GivenUp",
    "Hello",
    "HubDecisions",
    "Join",
    "JoinDone",
    "LastWords",
    "Left",
    "Message",
    "Op",
    "OperationBatch",
    "OperationFailure",
    "OperationWarning",
    "Peer",
    "Refused",
    "SnapshotAsk",
    "SnapshotReply",
    "StackAsk",
    "StackReply",
    "Standby",
    "StateAsk",
    "StateReply",
    "StoreGet",
    "StoreReply",
    "StoreSet",
    "Submit",
    "Updated",
    "Welcome",
    "decode",
    "encode",
    "portions",
]  # fmt: skip

Members = tuple[int, ...]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What all messages have."""

    generation: int


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """One worker of a generation; ``launched_rank`` is its rank in the launched world, of which this may be a part.

    ``address`` is the IP address by which workers on other hosts reach its host; empty if there are none.
    """

    rank: int
    launched_rank: int
    pid: int
    host: str
    address: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank} (host {self.host}, pid {self.pid})"


# ---- rendezvous ----


class Hello(Message, frozen=True):
    """A worker wants to be in a generation of ``members``, ranks of the launched world. The lowest's settings rule.

    Without members it is a worker of an elastic job: ``rank`` is its number, ``generation`` the last it was in, and the
    hub decides when there is a next one, who is in it and what number it has. If it is not ``ready``, it wants to be in
    the first one, but would rather prepare itself alone than make others wait for it.
    ``core`` says whether it has the C core, without which it cannot use shared memory; ``fabric`` whether its host has
    InfiniBand, and UCX to use it with.
    """

    rank: int
    size: int
    pid: int
    host: str
    members: Members
    settings: Settings
    core: bool = True
    ready: bool = True
    fabric: bool = False


class Standby(Message, frozen=True):
    """Elastic: the job runs already. Prepare yourself alone, and say hello again when you are ready to be in it.

    ``rank`` and ``size`` are what this worker's will probably be then.
    """

    rank: int
    size: int


class Welcome(Message, frozen=True):
    """All members are here. ``transport`` is "shm" on one host: the memory comes along as a file ``descriptor``, unless
    the hub is elsewhere; then the members make it themselves.

    The others are "gloo" and "mpi", and "shm+tcp", "shm+ucx", "shm+gloo" and "shm+mpi": shared memory inside each
    host, the other between; "tcp" is the C core's own connections, "ucx" the same over UCX.
    ``unshared`` says why it is not "shm", if somebody might have expected that.
    """

    rank: int
    peers: tuple[Peer, ...]
    transport: str
    settings: Settings
    descriptor: bool = False
    unshared: str = ""


class Refused(Message, frozen=True):
    """The generation cannot start, or the message that was sent belongs to one that is over.

    ``kind`` is "stall" (members are missing), "lost" (one died before), "stale", "usage" or "unfit".
    """

    kind: str
    text: str


class Bye(Message, frozen=True):
    """A worker shuts down in good order. What was decided before the hub's Farewell it will still carry out."""


class Updated(Message, frozen=True):
    """Elastic: other workers could be in a new generation. This one continues until its workers come for that."""


class Entered(Message, frozen=True):
    """Elastic: this worker has entered ``elastic.run``, so it can meet others in a new generation."""


class Farewell(Message, frozen=True):
    """The answer to Bye, and the last that this worker hears of the generation."""


class Broken(Message, frozen=True):
    """This worker lives but can no longer move data, so the generation is over."""

    status: str


class GivenUp(Message, frozen=True):
    """Another worker is stopped, or hangs so that it does not answer, and has been waited for long enough.

    ``host``: all of its host, which the sender's cannot reach.
    """

    rank: int
    status: str
    host: bool = False


class Left(Message, frozen=True):
    """Another worker has shut down in good order."""

    rank: int


class Died(Message, frozen=True):
    """Another worker is dead, or broken, and with it the generation."""

    rank: int
    status: str
    words: str = ""  # what it said last


class LastWords(Message, frozen=True):
    """What the others should read if this worker now ends."""

    text: str


# ---- agreement ----


class Submit(Message, frozen=True):
    """Operations this worker is ready for: encoded requests, or the numbers of requests it has sent before."""

    items: tuple[bytes | int, ...]


class Again(Message, frozen=True):
    """The hub no longer knows these numbers: send the requests in full."""

    ids: tuple[int, ...]


class Join(Message, frozen=True):
    average_active: bool


class JoinDone(Message, frozen=True):
    """Every rank has joined, ``last`` as the last; or ``failure`` says why that cannot happen."""

    last: int
    failure: str = ""


class Op(msgspec.Struct, frozen=True, array_like=True):
    """An operation named in full; ``id`` is the number it goes by from now on, 0 if none."""

    name: str
    id: int


class OperationBatch(msgspec.Struct, frozen=True, array_like=True):
    """Operations of the same ``members`` to carry out in one go; those are left out if all go by numbers.

    ``contributors`` empty means all members; ``received`` is in bytes, by segment and member.
    """

    ops: tuple[Op | int, ...]
    members: Members
    contributors: Members = ()
    divisor: int = 1
    received: tuple[tuple[int, ...], ...] = ()


class OperationFailure(msgspec.Struct, frozen=True, array_like=True, tag=True):
    name: str
    members: Members
    kind: str
    text: str


class OperationWarning(msgspec.Struct, frozen=True, array_like=True, tag=True):
    text: str


class HubDecisions(Message, frozen=True):
    """What the hub decided, in order; numbers in ``forget`` are no longer known."""

    batches: tuple[OperationBatch, ...] = ()
    notices: tuple[OperationFailure | OperationWarning, ...] = ()
    forget: tuple[int, ...] = ()


class FailStalled(Message, frozen=True):
    """Fail this operation if it is still pending and exactly these ranks are missing."""

    name: str
    members: Members
    missing: Members
    kind: str
    text: str


# ---- looking at one another ----


class StackAsk(Message, frozen=True):
    id: int
    rank: int


class StackReply(Message, frozen=True):
    id: int
    text: str


class SnapshotAsk(Message, frozen=True):
    id: int


class StateAsk(Message, frozen=True):
    """The hub asks a worker whether its threads wait inside Hora, and for what."""

    id: int


class StateReply(Message, frozen=True):
    id: int
    blocked: bool
    waiting_on: tuple[tuple[str, Members], ...]
    pending: bytes = b""  # what ``engine.snapshot`` packed of operations that its host's table knows


class SnapshotReply(Message, frozen=True):
    id: int
    snapshot: bytes


# ---- the store by which transports find each other ----


class StoreSet(Message, frozen=True):
    key: str
    value: bytes


class StoreGet(Message, frozen=True):
    """Answered once the key is set."""

    id: int
    key: str


class StoreReply(Message, frozen=True):
    id: int
    value: bytes


AnyMessage = (
    Hello
    | Welcome
    | Standby
    | Refused
    | Bye
    | Updated
    | Entered
    | Broken
    | GivenUp
    | Farewell
    | Left
    | Died
    | LastWords
    | Submit
    | Again
    | Join
    | JoinDone
    | HubDecisions
    | FailStalled
    | StackAsk
    | StackReply
    | SnapshotAsk
    | SnapshotReply
    | StateAsk
    | StateReply
    | StoreSet
    | StoreGet
    | StoreReply
)
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    """
    >>> decode(encode(Left(3, rank=1)))
    Left(generation=3, rank=1)
    """
    return _encoder.encode(message)


def portions(message: Message, limit: int = MAX_FRAME_BYTES) -> Iterator[bytes]:
    """The message as payloads: one, or several where what it lists does not fit in one frame.

    Raises WireTooLarge if it cannot be told in parts either.

    >>> [decode(part) for part in portions(Submit(1, (b"first", b"second")), 20)]
    [Submit(generation=1, items=(b'first',)), Submit(generation=1, items=(b'second',))]
    """
    payload = encode(message)
    if len(payload) <= limit:
        yield payload
        return
    halves: tuple[Message, ...] = ()
    match message:
        case Submit(generation=generation, items=items) if half := len(items) // 2:
            halves = Submit(generation, items[:half]), Submit(generation, items[half:])
        case HubDecisions(generation=generation, batches=batches, notices=notices, forget=forget):
            if half := len(batches) // 2:
                halves = (
                    HubDecisions(generation, batches[:half]),
                    HubDecisions(generation, batches[half:], notices, forget),
                )
            elif batches and (notices or forget):
                halves = HubDecisions(generation, batches), HubDecisions(generation, (), notices, forget)
            elif half := len(notices) // 2:
                halves = (
                    HubDecisions(generation, (), notices[:half]),
                    HubDecisions(generation, (), notices[half:], forget),
                )
    if not halves:
        raise WireTooLarge(
            f"a {type(message).__name__} of {len(payload)} bytes was to be sent, and a frame holds {limit}. Give "
            "operations shorter names, and groups fewer tensors"
        )
    for part in halves:
        yield from portions(part, limit)


def decode(payload: bytes) -> AnyMessage:
    """The message in these bytes; raises WireError if they are none."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"the peer sent something that is not a message: {error}") from error
