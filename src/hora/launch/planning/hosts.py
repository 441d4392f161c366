"""Hosts and their slots, as written on a command line or in a host file."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import NamedTuple

from hora.config.nodelist import expand, split
from hora.errors import UsageError
from hora.wire.addresses import interfaces

__all__ = ["Host", "is_here", "parse_hostfile", "parse_hosts", "read_hosts"]

# A name as DNS, /etc/hosts and cluster managers write it, or an IPv4 address.
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")

_ADDRESS = re.compile(r"[0-9]+(\.[0-9]+){3}")


class Host(NamedTuple):
    """A machine and how many workers it may take."""

    name: str
    slots: int


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Hosts written ``h1:2,h2:4``; a host without a number has one slot, a host named twice has the sum.

    >>> parse_hosts("h1:2,h2")
    (Host(name='h1', slots=2), Host(name='h2', slots=1))
    >>> parse_hosts("h[1-2]:4")
    (Host(name='h1', slots=4), Host(name='h2', slots=4))
    """
    found: list[Host] = []
    for part in split(text):
        name, colon, slots = part.strip().partition(":")
        found += _hosts(name, slots if colon else "1", f"host {part.strip()!r} in {text!r}")
    return _merged(found)


def parse_hostfile(text: str, origin: str = "host file") -> tuple[Host, ...]:
    """Hosts of a file, in Horovod's and Open MPI's form ``h1 slots=2``, in MPICH's ``h1:2``, or a name a task as Slurm
    writes them. Comments and blank lines are skipped, other keys such as ``max_slots=4`` too.

    >>> parse_hostfile("# mine\\n\\nh1 slots=2 max_slots=4\\nh2\\nh2   # again\\nh3:4\\n")
    (Host(name='h1', slots=2), Host(name='h2', slots=2), Host(name='h3', slots=4))
    """
    found: list[Host] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{origin}, line {number}: {line.strip()!r}"
        name, colon, slots = words[0].partition(":")
        settings = {}
        for word in words[1:]:
            key, equals, value = word.partition("=")
            if not equals:
                raise UsageError(f"{where}: {word!r} is not understood. Write 'host slots=N', one host a line.")
            settings[key] = value
        found += _hosts(name, settings.get("slots", slots if colon else "1"), where)
    if not found:
        raise UsageError(f"{origin} names no host, so there is nowhere to start workers. Add a line 'host slots=N'.")
    return _merged(found)


def read_hosts(hosts: str | None, hostfile: str | None, np: int | None) -> tuple[Host, ...]:
    """The hosts that were asked for by list or by file; without either, ``np`` slots on this one.

    >>> read_hosts(None, None, 2)
    (Host(name='localhost', slots=2),)
    """
    if hosts is not None and hostfile is not None:
        raise UsageError(f"hosts {hosts!r} and host file {hostfile!r} were both given. Give one of them.")
    if hosts is not None:
        return parse_hosts(hosts)
    if hostfile is not None:
        try:
            return parse_hostfile(Path(hostfile).read_text(), f"host file {hostfile!r}")
        except OSError as error:
            raise UsageError(f"host file {hostfile!r} cannot be read: {error.strerror}. Check the path.") from None
        except UnicodeDecodeError:
            raise UsageError(f"host file {hostfile!r} is not text. Write 'host slots=N', one host a line.") from None
    return (Host("localhost", max(1, np or 1)),)


def is_here(name: str) -> bool:
    """Whether ``name`` is this machine, judged without asking the network.

    >>> is_here("localhost"), is_here("elsewhere.invalid")
    (True, False)
    """
    if name == "localhost" or name.startswith("127."):
        return True
    if _ADDRESS.fullmatch(name):
        return any(name in mine for mine in interfaces().values())
    name, mine = name.lower(), socket.gethostname().lower()
    if "." in name and "." in mine:
        return name == mine
    return name.partition(".")[0] == mine.partition(".")[0]


def _hosts(name: str, slots: str, where: str) -> list[Host]:
    names = expand(name) if "[" in name else (name,)
    if not all(map(_NAME.fullmatch, names)):
        raise UsageError(f"{where}: {name!r} is not a host name. Write 'h1:2,h2:4', or 'h1 slots=2' in a file.")
    if not (slots.isascii() and slots.isdigit()) or int(slots) == 0:
        raise UsageError(f"{where}: {slots!r} is not a number of slots. Write a whole number, at least 1.")
    return [Host(name, int(slots)) for name in names]


def _merged(hosts: list[Host]) -> tuple[Host, ...]:
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return tuple(Host(name, count) for name, count in slots.items())
