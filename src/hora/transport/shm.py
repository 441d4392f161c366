"""The C core, bound: shared memory between the workers of one host.

Owns finding and loading the shared library, and the segment: one memfd that holds everything the workers share. A
memfd has no name, so there is nothing to unlink whatever dies, and no limit of ``/dev/shm`` applies. What the functions
of the core do is said in ``native/hora.h``; ``engine.table`` is their only caller.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hora.config.settings import Settings
from hora.errors import EnvironmentUnfit

__all__ = ["ABI", "Segment", "available", "create_segment", "load", "spin_us", "why_not"]

ABI = 7  # core.h: HORA_ABI
_LIBRARY = Path(__file__).with_name("_core.so")
_CORE, _INT, _I64, _U64, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_uint64, ctypes.c_char_p
_POINTER, _DOUBLE, _U32 = ctypes.c_void_p, ctypes.c_double, ctypes.c_uint32

# name: (result, arguments); see native/hora.h
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "abi": (_INT, ()),
    "format": (_INT, (_INT, _INT, _U32, _U64, _INT, _INT, _POINTER)),
    "open": (_CORE, (_INT, _INT, _I64, _I64, _U64, _U64, _INT)),
    "watch": (_INT, (_CORE, _POINTER)),
    "link": (_INT, (_CORE, _POINTER, _TEXT, _POINTER, _POINTER)),
    "fabric_open": (_POINTER, (_TEXT, _TEXT, _POINTER, _INT)),
    "fabric_address": (_INT, (_POINTER, _POINTER, _INT)),
    "fabric_close": (None, (_POINTER,)),
    "linger": (_INT, (_CORE, _I64)),
    "pin": (_INT, (_CORE, _INT)),
    "leave": (_INT, (_CORE,)),
    "close": (None, (_CORE,)),
    "holder": (_INT, (_CORE,)),
    "generation": (_U32, (_CORE,)),
    "set": (_INT, (_CORE, _POINTER, _INT)),
    "plan": (
        _I64,
        (
            _CORE,
            _U64,
            _U64,
            _INT,
            _INT,
            _INT,
            _INT,
            _DOUBLE,
            _DOUBLE,
            _U64,
            _U64,
            _INT,
            _INT,
            _INT,
            _POINTER,
            _TEXT,
            _INT,
        ),
    ),
    "drop": (None, (_CORE, _I64)),
    "submit": (_I64, (_CORE, _I64, _POINTER, _POINTER, _POINTER, _INT)),
    "submit_one": (_I64, (_CORE, _I64, _POINTER, _POINTER)),
    "done": (_INT, (_CORE, _I64)),
    "wait": (_INT, (_CORE, _I64, _I64)),
    "help": (None, (_CORE,)),
    "finish": (_INT, (_CORE, _I64, _I64)),
    "ready": (_POINTER, (_CORE, _I64)),
    "again": (_I64, (_POINTER, _POINTER)),
    "release": (None, (_CORE, _I64)),
    "withdraw": (_INT, (_CORE, _I64)),
    "unblock": (None, (_CORE,)),
    "take": (_POINTER, (_CORE, _I64, _INT, _POINTER)),
    "free": (None, (_POINTER,)),
    "failure": (_U64, (_CORE, _I64)),
    "failure_code": (_INT, (_CORE, _U64)),
    "failure_said": (_INT, (_CORE, _U64, _INT, _POINTER, _INT)),
    "failure_text": (_INT, (_CORE, _U64, _POINTER, _INT)),
    "not_finite": (_INT, (_CORE, _I64, _POINTER)),
    "fail": (_INT, (_CORE, _U32, _U64, _INT, _TEXT)),
    "join": (_I64, (_CORE, _INT)),
    "join_wait": (_INT, (_CORE, _I64, _I64, _POINTER)),
    "dead": (_INT, (_CORE,)),
    "mark_dead": (None, (_CORE, _INT, _TEXT)),
    "state": (_INT, (_CORE, _INT)),
    "status": (_INT, (_CORE, _INT, _POINTER, _INT)),
    "say": (None, (_CORE, _INT, _TEXT)),
    "said": (_INT, (_CORE, _INT, _POINTER, _INT)),
    "snapshot": (_I64, (_CORE, _POINTER, _I64)),
    "waiting": (_INT, (_CORE,)),
    "shares": (_INT, (_CORE, _POINTER, _U64)),
    "serve": (_INT, (_U64,)),
    "alloc": (_POINTER, (_CORE, _U64)),
    "dealloc": (None, (_CORE, _POINTER)),
    "trace": (None, (_CORE, _INT)),
    "events": (_I64, (_CORE, _POINTER, _I64)),
    "narrow": (None, (_POINTER, _POINTER, _U64, _INT)),
    "widen": (None, (_POINTER, _POINTER, _U64, _INT)),
    "reduce": (_INT, (_POINTER, _POINTER, _INT, _U64, _INT, _INT, _DOUBLE, _DOUBLE, _DOUBLE)),
}


class Library:
    """The core's functions without their ``hora_`` prefix, typed for ctypes."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(os.fspath(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, f"hora_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:  # for the type checker: __init__ sets them all
        raise AttributeError(name)


@functools.cache
def _loaded() -> Library | str:
    if not sys.platform.startswith("linux"):
        return f"the C core runs on Linux, and this is {sys.platform}"
    if not _LIBRARY.exists():
        return "the C core was not built when Hora was installed (no C compiler)"
    try:
        library = Library(_LIBRARY)
    except (OSError, AttributeError) as error:
        return f"the C core does not load: {error}"
    if library.abi() != ABI:
        return f"the C core has version {library.abi()}, this Hora needs {ABI}: reinstall Hora"
    return library


def available() -> bool:
    """Whether the C core can be used here."""
    return isinstance(_loaded(), Library)


def why_not() -> str:
    """Why it cannot, in words; empty if it can."""
    loaded = _loaded()
    return loaded if isinstance(loaded, str) else ""


def load() -> Library:
    """The C core, or EnvironmentUnfit saying why there is none."""
    loaded = _loaded()
    if isinstance(loaded, str):
        raise EnvironmentUnfit(f"shared memory is not available: {loaded}. Install a C compiler and reinstall Hora.")
    return loaded


class Segment:
    """A segment as its maker sees it: to hand to the workers, and to note how one of them ended."""

    def __init__(
        self, size: int, generation: int, arena_bytes: int, host_of: Sequence[int] = (), host: int = 0
    ) -> None:
        self._library = load()
        self.size, self.generation = size, generation
        self.fd = os.memfd_create(f"hora-{generation}", os.MFD_CLOEXEC)
        hosts = max(host_of, default=0) + 1
        places = (ctypes.c_int32 * len(host_of))(*host_of)
        error = self._library.format(self.fd, size, generation, arena_bytes, hosts, host, places)
        self._core = None if error else self._library.open(self.fd, -1, 0, 0, 0, 0, 0)
        if not self._core:
            os.close(self.fd)
            raise EnvironmentUnfit(
                f"cannot make shared memory for {size} workers: {os.strerror(-error) if error else 'mapping failed'}. "
                "At most 512 workers share a host; a limit on file size (ulimit -f) or memory may also forbid it."
            )

    def mark_dead(self, rank: int, status: str) -> None:
        """Tell everybody that this rank's process ended, and how. One that left in good order is not dead."""
        self._library.mark_dead(self._core, rank, status.encode())

    def close(self) -> None:
        """Let go of it; the workers keep theirs."""
        if self._core:
            self._library.close(self._core)
            os.close(self.fd)
            self._core = None


def create_segment(
    size: int, generation: int, settings: Settings, host_of: Sequence[int] = (), host: int = 0
) -> Segment:
    """Make the memory for one generation of ``size`` workers; ``host_of`` says where each is, if not all are here.

    >>> segment = create_segment(2, 1, Settings()) if available() else None
    >>> if segment: segment.close()
    """
    here = sum(place == host for place in host_of) or size
    return Segment(size, generation, settings.arena_bytes or _arena_bytes(here), host_of, host)


def _arena_bytes(size: int) -> int:
    """Room for tensors of one rank: nothing is taken until it is touched, so be generous."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(64 << 20, memory // size)


def spin_us(settings: Settings, pids: Iterable[int]) -> int:
    """How long a waiter spins before it sleeps: not at all if the workers have fewer cores than they are."""
    if settings.spin_us >= 0:
        return settings.spin_us
    cores: set[int] = set()
    workers = 0
    for pid in pids:
        workers += 1
        try:
            cores |= os.sched_getaffinity(pid)
        except OSError:
            cores |= os.sched_getaffinity(0)
    return 100 if len(cores) >= workers else 0
