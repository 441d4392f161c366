"""The session: Hora in this process, from ``init`` to ``shutdown``, and who and where this process is.

``init`` finds the world (``config.world``), meets the others (``engine.meet``) and starts the backend that they agreed
on. It can be called again after ``shutdown``; each time is a new generation.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from hora.config import env
from hora.config.limits import limits_named
from hora.config.settings import Settings
from hora.config.world import World, detect, places
from hora.config.world import is_homogeneous as is_homogeneous_hosts
from hora.engine.backend import Backend
from hora.engine.core import Engine
from hora.engine.frames import final, told
from hora.engine.meet import Meeting, disconnect, meet
from hora.engine.monitor import Monitor
from hora.engine.process_set import ProcessSet, gather_ranks
from hora.engine.timeline import Timeline
from hora.errors import EnvironmentUnfit, NotInitializedError, UsageError
from hora.transport import movers, preload, shm
from hora.wire.messages import Peer

__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "engine",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

_log = logging.getLogger("hora")
_LAST_LINES = 40  # of an exception, that the others are told
_lock = threading.RLock()
current: Engine | None = None  # the running engine; front-ends that must be fast look here instead of calling engine()
_monitor: Monitor | None = None
_generation = 0


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Start Hora in this process; returns once all workers have called it. Called again while it runs, does nothing.

    Args:
        comm: all workers (None), a list of the ranks that form a world of their own, or an mpi4py communicator.
        process_sets: sets to make known, the same on all ranks; "dynamic" is Horovod's word for sets that are added
            later, which is always possible here.

    >>> init()
    >>> rank(), size()      # alone, unless a launcher started several
    (0, 1)
    >>> shutdown()
    """
    global current, _monitor, _generation
    with _lock:
        if current is not None:
            return
        variables = env.environ()
        world, settings = detect(variables), env.settings(variables)
        env.keep_from_children(str(preload.LIBRARY))
        _set_up_logging(settings, world.rank)
        members = _members(comm, world)
        _generation += 1
        with limits_named(f"rank {world.rank} cannot start"):
            started = _start(world, settings, members)
        try:
            if process_sets is not None and not isinstance(process_sets, str):
                started.process_sets.add_all(process_sets)
            elif isinstance(process_sets, str) and process_sets != "dynamic":
                raise UsageError(f'process_sets={process_sets!r}: give a list of ProcessSet, or the word "dynamic".')
            with limits_named(f"rank {world.rank} cannot start"):
                _monitor = Monitor(started.rank, started.size, started.backend, started.settings)
        except BaseException:
            started.close()
            raise
        current = started
        if settings.timeline not in ("", "DYNAMIC"):
            start_timeline(settings.timeline, settings.timeline_mark_cycles)


def shutdown() -> None:
    """Leave in good order. Ranks that still need this one get an error. Safe to call twice, and at exit."""
    global current, _monitor
    with _lock:
        if current is None:
            return
        ending, current = current, None
        monitor, _monitor = _monitor, None
        try:
            if monitor is not None:
                monitor.close()
        finally:
            ending.close()  # or the others would see a death


def is_initialized() -> bool:
    """Whether ``init`` was called, and not ``shutdown`` since."""
    return current is not None


def engine() -> Engine:
    """The running engine, for front-ends."""
    if current is None:
        raise NotInitializedError("Hora has not been initialized; use hvd.init().")
    return current


def rank() -> int:
    """This worker's number, from 0 to ``size() - 1``."""
    return engine().rank


def size() -> int:
    """How many workers there are."""
    return engine().size


def local_rank() -> int:
    """This worker's number on its host: which GPU to take."""
    return engine().world.local_rank


def local_size() -> int:
    """How many workers are on this host."""
    return engine().world.local_size


def cross_rank() -> int:
    """The number of this host among those that have a worker with this local rank."""
    return engine().world.cross_rank


def cross_size() -> int:
    """How many hosts have a worker with this local rank."""
    return engine().world.cross_size


def is_homogeneous() -> bool:
    """Whether every host has the same number of workers."""
    return engine().world.homogeneous


# ---- what is there ----


def mpi_threads_supported() -> bool:
    """True: Hora never calls MPI from two threads at once, so any MPI will do."""
    engine()
    return True


def mpi_built() -> bool:
    """Whether MPI can carry data (mpi4py is installed)."""
    return importlib.util.find_spec("mpi4py") is not None


def mpi_enabled() -> bool:
    """Whether MPI carries data now."""
    return engine().transport.endswith("mpi")


def gloo_built() -> bool:
    """Whether Gloo can carry data (torch is installed)."""
    return importlib.util.find_spec("torch") is not None


def gloo_enabled() -> bool:
    """Whether Hora's own engine is in charge, as it always is: it takes the place of Horovod's Gloo controller."""
    return True


def nccl_built() -> int:
    """The version of NCCL as one number (2.21.5 is 22105), 0 if torch has none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return 0
    major, minor, patch = torch.cuda.nccl.version()
    return int(major * 10000 + minor * 100 + patch)


def ddl_built() -> bool:
    """False: IBM's DDL is no more."""
    return False


def ccl_built() -> bool:
    """False: oneCCL is not used."""
    return False


def cuda_built() -> bool:
    """Whether torch was built for CUDA."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.version.cuda is not None


def rocm_built() -> bool:
    """Whether torch was built for ROCm."""
    torch = sys.modules.get("torch")
    return torch is not None and getattr(torch.version, "hip", None) is not None


# ---- timeline ----


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Record from now on what happens to each tensor: rank 0 writes this file, the others ``name.rank1.json`` etc."""
    running = engine()
    assert _monitor is not None
    timeline = Timeline(
        os.fspath(file_path), running.rank, activity=running.transport.upper(), mark_cycles=mark_cycles,
        max_bytes=running.settings.timeline_max_bytes,
    )  # fmt: skip
    _monitor.record(timeline)


def stop_timeline() -> None:
    """Stop recording; the file is complete when this returns."""
    engine()
    assert _monitor is not None
    _monitor.record(None)


# ---- starting ----


def _members(comm: Any, world: World) -> tuple[int, ...]:
    if comm is None:
        return tuple(range(world.size))
    if hasattr(comm, "Get_group"):  # an mpi4py communicator
        comm = gather_ranks(comm, world.rank)
    try:
        members = tuple(sorted({int(r) for r in comm}))
    except TypeError:
        raise UsageError(f"comm={comm!r}: give a list of ranks, an mpi4py communicator, or nothing for all.") from None
    return members or tuple(range(world.size))


def _start(world: World, settings: Settings, members: tuple[int, ...]) -> Engine:
    """Meet the others and start the backend that serves where they are."""
    from hora.engine.table import TableBackend

    if len(members) == 1 and shm.available() and settings.transport != "gloo":
        if members != (world.rank,):
            raise UsageError(f"rank {world.rank} is not in comm={list(members)}, the world it wants to be part of.")
        alone = (Peer(0, world.rank, os.getpid(), world.host),)
        try:
            segment = shm.create_segment(1, _generation, settings)
        except (OSError, EnvironmentUnfit):
            if settings.transport == "shm":
                raise
        else:
            with contextlib.closing(segment):
                backend: Backend = TableBackend(segment.fd, 0, alone, settings, _generation)
                return Engine(world, settings, 0, "shm", alone, backend, os.urandom(32))
    meeting = meet(world, settings, members, _generation)
    rank_, size_, peers = meeting.rank, meeting.size, meeting.peers
    hosts = [peer.host for peer in peers]
    if size_ < world.size or len(set(hosts)) > 1:  # a part of the launched world, or more than its launcher could say
        world = msgspec.structs.replace(
            world, rank=rank_, size=size_, homogeneous=is_homogeneous_hosts(hosts), **places(hosts)[rank_]._asdict()
        )
    made: shm.Segment | None = None
    if to_share := meeting.transport == "shm" and meeting.segment_fd < 0:
        meeting, made = _share_segment(meeting)
    if meeting.transport == "shm+tcp":
        from hora.engine import links

        backend = links.start(meeting)
    elif meeting.transport == "shm":
        try:
            backend = TableBackend(meeting.segment_fd, rank_, peers, meeting.settings, _generation, meeting.channel)
        finally:
            os.close(meeting.segment_fd)
        if movers.gpus_present():
            from hora.engine import split, talk

            backend = split.SplitBackend(backend, lambda: talk.start(meeting._replace(transport="gloo")))
    else:
        backend = _talk(meeting)
    key = meeting.channel.key_for(f"generation {_generation}")
    started = Engine(world, meeting.settings, rank_, meeting.transport, peers, backend, key)
    made = getattr(backend, "segment", None) or made
    if meeting.transport == "shm+tcp" or (to_share and meeting.transport == "shm"):
        started.meet_all("init shared memory")
        if made is not None:
            made.close()  # all have opened it
    return started


def _talk(meeting: Meeting) -> Backend:
    """The message backend; where shared memory might have been expected, why it is not used is told once."""
    from hora.engine import talk

    expected = len({peer.host for peer in meeting.peers}) == 1 and meeting.settings.transport == "auto"
    reason = (meeting.unshared or shm.why_not()).rstrip(".") if expected else ""
    try:
        backend = talk.start(meeting)
    except EnvironmentUnfit as error:
        if not reason:
            raise
        raise EnvironmentUnfit(f"shared memory cannot be used: {reason}.\n{error}") from error
    if reason and meeting.rank == 0:
        _log.warning("running on Gloo, several times slower than shared memory: %s.", reason)
    return backend


def _share_segment(meeting: Meeting) -> tuple[Meeting, shm.Segment | None]:
    """The memory of a host whose hub is on another one: the first rank makes it.

    Returns the meeting with a descriptor of it, or with Gloo, on all ranks, if it cannot be made; and what was made
    here.
    """
    from hora.engine.hosttable import make_segment, open_segment, refusal

    line, generation, settings = meeting.channel, meeting.generation, meeting.settings
    made = None
    if meeting.rank == 0:
        made, where = make_segment(meeting.size, generation, settings)
        line.store_set(generation, "shm", where)
    else:
        told = line.store_get(generation, "shm", settings.start_timeout_s)
        where = b"" if told is None else told
    if reason := refusal(where):
        if settings.transport == "shm":
            raise EnvironmentUnfit(f"shared memory was asked for (transport 'shm') but cannot be had: {reason}")
        return meeting._replace(transport="gloo", unshared=reason), None
    fd = os.dup(made.fd) if made is not None else open_segment(where or None, meeting.peers[0])
    return meeting._replace(segment_fd=fd), made


# ---- the process around it ----


class _Formatter(logging.Formatter):
    def __init__(self, rank_: int, hide_time: bool) -> None:
        clock = "" if hide_time else "%(asctime)s "
        super().__init__(f"{clock}hora [{rank_}] %(levelname)s: %(message)s", datefmt="%H:%M:%S")


def _set_up_logging(settings: Settings, rank_: int) -> None:
    """Say warnings on stderr, unless the program has arranged for Hora's log itself."""
    if _log.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter(rank_, settings.log_hide_time))
    _log.addHandler(handler)
    _log.propagate = False
    levels = {"trace": logging.DEBUG, "fatal": logging.CRITICAL}
    _log.setLevel(levels.get(settings.log_level, logging.getLevelName(settings.log_level.upper())))


def _leave_last_words(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """An exception ends this process: the others will want to know which, and the user without Hora's own frames."""
    try:
        text = told(error, full=env.flag(env.environ(), "FULL_TRACEBACK"))
    except Exception:  # whatever is wrong with it, Python prints it
        _excepthook_before(kind, error, trace)
        return
    if current is not None and kind is not KeyboardInterrupt:
        with contextlib.suppress(Exception):
            current.backend.say("".join(text.splitlines(keepends=True)[-_LAST_LINES:]))
    if _excepthook_before is sys.__excepthook__ and sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(final(text))
            sys.stderr.flush()
    else:
        _excepthook_before(kind, error, trace)


def _forget_after_fork() -> None:
    """A forked child is not a worker: it must neither speak for its parent nor leave in its name."""
    global current, _monitor
    current = _monitor = None


_excepthook_before = sys.excepthook
sys.excepthook = _leave_last_words
os.register_at_fork(after_in_child=_forget_after_fork)


@atexit.register
def _at_exit() -> None:
    try:
        shutdown()
    except EnvironmentUnfit:
        pass
    finally:
        disconnect()
        movers.finish()
