"""All checks, room by room, in the order in which they are shown; and the choice among them."""

from __future__ import annotations

from collections.abc import Sequence

from hora.errors import UsageError
from hora.lab.doctor import (
    frameworks,
    gpus,
    hosts,
    installation,
    kernel,
    leftovers,
    limits,
    memory,
    mpi,
    network,
    processor,
    schedulers,
    transports,
)
from hora.lab.doctor.check import Check

__all__ = ["ROOMS", "choose"]

ROOMS: dict[str, tuple[Check, ...]] = {
    room: tuple(check._replace(room=room) for check in checks)
    for room, checks in (
        ("installation", installation.CHECKS),
        ("frameworks", frameworks.CHECKS),
        ("processor", processor.CHECKS),
        ("memory", memory.CHECKS),
        ("limits", limits.CHECKS),
        ("kernel", kernel.CHECKS),
        ("network", network.CHECKS),
        ("gpus", gpus.CHECKS),
        ("mpi", mpi.CHECKS),
        ("batch", schedulers.CHECKS),
        ("hosts", hosts.CHECKS),
        ("leftovers", leftovers.CHECKS),
        ("transports", transports.CHECKS),
    )
}


def choose(only: Sequence[str] = (), quick: bool = False) -> list[Check]:
    """The checks to run: all, or those named by check or by room; without the slow ones if ``quick``.

    >>> [check.name for check in choose(["nofile", "kernel"])]
    ['nofile', 'kernel']
    >>> choose(["nofiel"])
    Traceback (most recent call last):
    hora.errors.UsageError: --only nofiel: there is no such check...
    """
    every = [check for checks in ROOMS.values() for check in checks]
    for name in only:
        if name not in ROOMS and name not in {check.name for check in every}:
            listed = "; ".join(f"{room}: {', '.join(check.name for check in ROOMS[room])}" for room in ROOMS)
            raise UsageError(f"--only {name}: there is no such check or room. There are {listed}.")
    chosen = [check for check in every if not only or check.name in only or check.room in only]
    return [check for check in chosen if not (quick and check.slow)]
