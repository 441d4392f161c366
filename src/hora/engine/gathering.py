"""Which workers form a generation: ``Gathering``, and what it may decide, which the hub then does.

Owns the interface; the decisions are elsewhere: ``engine.rendezvous`` decides for a job of fixed size,
``elastic.gather`` for one that may change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hora.wire.messages import Hello

__all__ = ["Gathering", "GatheringOutcome", "HelloRefused", "MembersReady", "OnStandby", "RejoinRequest"]


class MembersReady(NamedTuple):
    """All members have come. ``generation`` is theirs, unless the hellos say which."""

    hellos: tuple[Hello, ...]  # in the order of members
    generation: int | None = None


class HelloRefused(NamedTuple):
    """``hello`` cannot be answered with a welcome; ``kind`` as in ``messages.Refused``."""

    hello: Hello
    kind: str
    text: str


class RejoinRequest(NamedTuple):
    """The workers of these launched ranks are to come for a new generation."""

    ranks: tuple[int, ...]
    generation: int


class OnStandby(NamedTuple):
    """The job runs; this worker is to prepare itself alone. ``rank`` and ``size`` are what it may expect."""

    hello: Hello
    rank: int
    size: int


GatheringOutcome = MembersReady | HelloRefused | RejoinRequest | OnStandby


class Gathering(Protocol):
    """What decides when a generation is complete: ``engine.rendezvous``, or ``elastic.gather`` for an elastic job."""

    @property
    def waiting(self) -> bool:
        """Whether time may end something soon."""

    def hello(self, hello: Hello, now: float) -> Sequence[GatheringOutcome]:
        """A worker has come."""

    def ended(self, rank: int, status: str, *, left: bool = False) -> Sequence[GatheringOutcome]:
        """The process of ``rank`` has ended, or its connection is gone; ``left``: after it had left in good order."""

    def given_up(self, by: int, rank: int, status: str, *, host: bool) -> Sequence[GatheringOutcome]:
        """``by`` has waited long enough for ``rank``, or cannot reach its ``host``."""

    def entered(self, rank: int) -> Sequence[GatheringOutcome]:
        """Elastic: ``rank`` can meet others in a new generation."""

    def started(self, rank: int) -> None:
        """A new process for ``rank``."""

    def expire(self, now: float) -> Sequence[GatheringOutcome]:
        """Let time pass."""
