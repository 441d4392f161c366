"""What all generators share: a folder that is complete or absent, marked as generated, made by several processes.

A data set is made in parts of a fixed size, and each part has random numbers of its own, from the seed and the part's
number. So neither the number of processes nor their speed changes a byte.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import errno
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from hora.data.generated import MARK, generated_facts, mark_generated
from hora.data.once import FolderLock, NoStatus, StatusReporter, folder_lock, whole
from hora.errors import BadData, EnvironmentUnfit, UsageError
from hora.text import size_text

__all__ = ["Made", "generate", "over_processes", "part_rng"]

_PR_SET_PDEATHSIG = 1  # what the kernel calls it

_P = TypeVar("_P")
_R = TypeVar("_R")


class Made(NamedTuple):
    """A generated data set. ``there`` if the very same one was there already."""

    folder: Path
    there: bool
    facts: dict[str, Any]
    nbytes: int
    seconds: float


def generate(
    folder: Path,
    fill: Callable[[Path, StatusReporter], object],
    facts: dict[str, Any],
    *,
    nbytes: int,
    reporter: StatusReporter | None = None,
    wait_s: float = 3600.0,
) -> Made:
    """Let ``fill`` write a data set of about ``nbytes``, and mark it with ``facts``, which say all that it depends on.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for _ in range(2):
    ...         made = generate(Path(place) / "ones", lambda folder, reporter: (folder / "a").write_bytes(b"1"),
    ...                         {"generator": "ones", "seed": 1}, nbytes=1)
    ...         made.there, sorted(path.name for path in made.folder.iterdir())
    (False, ['GENERATED.json', 'a'])
    (True, ['GENERATED.json', 'a'])
    """
    started = time.monotonic()
    folder = folder.absolute()
    with folder_lock(folder, wait_s=wait_s, reporter=reporter or NoStatus()) as mine:
        there = _is_there(folder, facts)
        if not there:
            _fill(folder, fill, facts, nbytes, mine)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return Made(folder, there, facts, size, time.monotonic() - started)


def over_processes(function: Callable[[_P], _R], parts: Iterable[_P], jobs: int) -> Generator[_R, None, None]:
    """What the function makes of each part, in their order, by that many processes; by this one if it is one.

    >>> list(over_processes(abs, [-1, -2], jobs=1))
    [1, 2]
    """
    if jobs < 1:
        raise UsageError(f"jobs={jobs} processes cannot make anything. Use 1 or more.")
    if jobs == 1:
        yield from map(function, parts)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_begin, initargs=(os.getpid(),)
    ) as pool:
        try:
            waiting: list[concurrent.futures.Future[_R]] = []
            for part in parts:  # a few ahead, so that results do not pile up in memory
                with _undisturbed():
                    waiting.append(pool.submit(function, part))
                if len(waiting) > 2 * jobs:
                    yield waiting.pop(0).result()
            for future in waiting:
                yield future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """An interrupt waits until this is over. A process that is started in it never hears of one."""
    heard: list[int] = []
    here = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda number, _: heard.append(number)) if here else None
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # and so it is in processes started here
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if here:
            signal.signal(signal.SIGINT, handler)
    if heard:
        signal.raise_signal(signal.SIGINT)


def _begin(parent: int) -> None:
    """The first thing that a process does which makes parts: it ends with the one that started it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended in the meantime
        os._exit(1)


def part_rng(seed: int, *where: int) -> np.random.Generator:
    """The random numbers of one part: of this seed, split and number, and of no other.

    >>> int(part_rng(42, 0, 7).integers(1000)) == int(part_rng(42, 0, 7).integers(1000))
    True
    """
    return np.random.default_rng([seed, *where])


def _is_there(folder: Path, facts: dict[str, Any]) -> bool:
    """Whether this very data set is there; UsageError if something else is."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        found = generated_facts(folder) if (folder / MARK).exists() else None
    except BadData:
        found = None
    if found == facts:
        return True
    if found is None:
        raise UsageError(f"{folder} exists and is not generated data, so it is left alone. Give another one with --to.")
    other = [f"{name} {found.get(name)}" for name, value in facts.items() if found.get(name) != value]
    raise UsageError(
        f"{folder} holds other generated data ({', '.join(other) or 'additional settings'}), so it is not changed. "
        "Give another folder with --to, or remove this one."
    )


def _fill(
    folder: Path, fill: Callable[[Path, StatusReporter], object], facts: dict[str, Any], nbytes: int, mine: FolderLock
) -> None:
    free = shutil.disk_usage(folder.parent).free
    if nbytes > free:
        raise _no_room(folder, nbytes, free)
    try:
        with whole(folder) as part:
            fill(part, mine)
            mark_generated(part, **facts)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_room(folder, nbytes, shutil.disk_usage(folder.parent).free) from None
        raise EnvironmentUnfit(
            f"{error.filename or folder} cannot be written: {error.strerror or error}. Give another folder with --to."
        ) from None


def _no_room(folder: Path, nbytes: int, free: int) -> EnvironmentUnfit:
    return EnvironmentUnfit(
        f"The data takes about {size_text(nbytes)}, and {folder.parent} has {size_text(free)} free. Nothing was left "
        "there. Make fewer samples, free some space, or give another folder with --to."
    )
