"""Which transport a generation gets: it follows from where its workers are, what they have, and what was asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from hora.config.settings import Settings
from hora.config.world import MOST_ON_A_HOST
from hora.errors import HoraError
from hora.wire.messages import Hello

__all__ = ["SharedSegment", "choose", "make_segment"]


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
    if settings.transport == "auto" and core and len(hellos) <= MOST_ON_A_HOST:  # a table has places for all of them
        return "shm+tcp", several
    shared = core and 1 < max(hosts.values()) <= MOST_ON_A_HOST
    return (f"shm+{between}" if shared and settings.transport != "gloo" else between), several


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
