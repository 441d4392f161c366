"""When a machine allows no more threads, processes, open files or memory: an error that says so, not a traceback."""

from __future__ import annotations

import contextlib
import errno
import resource
from collections.abc import Iterator

from hora.errors import EnvironmentUnfit

__all__ = ["limits_named", "room_for_descriptors"]

_MEANING = {
    errno.EAGAIN: "no more processes or threads can be started",
    errno.EMFILE: "no more files can be opened by this process",
    errno.ENFILE: "no more files can be opened on this machine",
    errno.ENOMEM: "there is no more memory",
}


@contextlib.contextmanager
def limits_named(what: str) -> Iterator[None]:
    """Turn an error that only a limit explains into EnvironmentUnfit; others pass.

    >>> with limits_named("the job cannot be started"):
    ...     raise RuntimeError("can't start new thread")
    Traceback (most recent call last):
    ...
    hora.errors.EnvironmentUnfit: the job cannot be started: no more processes or threads can be started (can't start
    new thread). Raise what limits them (ulimit -u, -n, -v; pids and memory of a container), or use fewer workers.
    """
    try:
        yield
    except (OSError, RuntimeError, MemoryError) as error:
        if isinstance(error, OSError):
            meaning = _MEANING.get(error.errno or 0, "")
        elif isinstance(error, MemoryError):
            meaning = _MEANING[errno.ENOMEM]
        else:  # all that threading says
            meaning = _MEANING[errno.EAGAIN] if str(error) == "can't start new thread" else ""
        if not meaning:
            raise
        said = getattr(error, "strerror", None) or str(error)
        raise EnvironmentUnfit(
            f"{what}: {meaning}{f' ({said})' if said else ''}. Raise what limits them (ulimit -u, -n, -v; pids and "
            "memory of a container), or use fewer workers."
        ) from error


def room_for_descriptors(wanted: int) -> None:
    """Let this process have so many files open, as far as the hard limit allows; never fewer than before.

    >>> room_for_descriptors(3)
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):  # then what is opened says what is missing
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
