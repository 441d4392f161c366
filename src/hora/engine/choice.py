"""Which transport a generation gets: it follows from where its workers are, what they have, and what was asked for.

Owns that choice, the shared memory that goes with it, and by which addresses workers reach each other's hosts.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from hora.config.settings import Settings
from hora.config.world import MOST_HOSTS, MOST_ON_A_HOST, MOST_WORKERS
from hora.errors import HoraError
from hora.wire.messages import Hello

__all__ = ["LINKED", "SharedSegment", "choose", "has_fabric", "make_segment", "provide", "reachable"]

LINKED = ("shm+tcp", "shm+ucx")  # a table in each host, and the core's own connections between them


class SharedSegment(Protocol):
    """What the hub needs of a shared-memory segment (``transport.shm``)."""

    fd: int

    def mark_dead(self, rank: int, status: str) -> None: ...

    def close(self) -> None: ...


def choose(hellos: Sequence[Hello]) -> tuple[str, str]:
    """The transport of a generation of these, as far as where they are decides it; and why not shared memory."""
    settings, hosts = hellos[0].settings, Counter(hello.host for hello in hellos)
    several = "the workers are on several hosts"
    between = "mpi" if settings.transport == "mpi" else "gloo"
    if len(hosts) == 1:
        if settings.transport in ("gloo", "mpi"):
            return between, ""
        lacking = [hello.rank for hello in hellos if not hello.core]
        if lacking:
            return "gloo", f"rank {lacking[0]} lacks Hora's C core"
        if len(hellos) > MOST_ON_A_HOST:
            return "gloo", f"{len(hellos)} workers are on one host, and at most {MOST_ON_A_HOST} can share its memory"
        return "shm", ""
    core = settings.hierarchical and all(hello.core for hello in hellos)
    fits = max(hosts.values()) <= MOST_ON_A_HOST and len(hosts) <= MOST_HOSTS and len(hellos) <= MOST_WORKERS
    if settings.transport in ("auto", "tcp", "ucx") and core and fits:
        fabric = settings.transport == "auto" and all(hello.fabric for hello in hellos)
        return LINKED[settings.transport == "ucx" or fabric], several
    shared = core and 1 < max(hosts.values()) <= MOST_ON_A_HOST
    return (f"shm+{between}" if shared and settings.transport != "gloo" else between), several


def has_fabric(settings: Settings) -> bool:
    """Whether this host could be linked by UCX to others that can, if that is for us to choose."""
    if settings.transport != "auto" or not os.path.isdir("/sys/class/infiniband"):  # mostly: and nothing is imported
        return False
    from hora.transport import fabric

    return fabric.usable()


def make_segment(size: int, generation: int, settings: Settings) -> tuple[SharedSegment | None, str]:
    """A segment of shared memory, or why there is none."""
    try:
        from hora.transport import shm
    except ImportError as error:
        return None, str(error)
    if not shm.available():
        return None, "Hora's C core is not built here"
    try:
        return shm.create_segment(size, generation, settings), ""
    except (OSError, HoraError) as error:
        return None, str(error)


def provide(hellos: Sequence[Hello], generation: int, *, near: bool) -> tuple[str, SharedSegment | None, str]:
    """The transport of a generation of these, its memory, and why not shared memory.

    ``near``: all of them hold a connection over which memory can be handed out; over TCP it cannot.
    """
    transport, failure = choose(hellos)
    if transport != "shm" or not near:
        return transport, None, failure
    segment, failure = make_segment(len(hellos), generation, hellos[0].settings)
    return "shm" if segment is not None else "gloo", segment, failure


def reachable(ends: Mapping[int, tuple[str, str]]) -> dict[int, str]:
    """By which address the others reach each worker's host, from the two ends of its connection: theirs and the hub's.

    Who came by TCP is where it came from. Who is on the hub's own host is where those from elsewhere came to.

    >>> reachable({0: ("", ""), 1: ("10.0.0.2", "10.0.0.1")})
    {0: '10.0.0.1', 1: '10.0.0.2'}
    """
    here = [ours for _, ours in ends.values() if ours and not ours.startswith("127.")]
    addresses = {rank: theirs for rank, (theirs, _) in ends.items()}
    for rank, address in addresses.items():
        if not address or address.startswith("127."):
            addresses[rank] = here[0] if here else address
    return addresses
