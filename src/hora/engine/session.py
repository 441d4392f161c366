"""The session: Hora in this process, from ``init`` to ``shutdown``.

``init`` finds the world (``config.world``), meets the others (``engine.meet``) and starts the backend that they agreed
on. It can be called again after ``shutdown``; each time is a new generation.
"""

from __future__ import annotations

import atexit
import contextlib
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
from hora.engine.choice import LINKED
from hora.engine.core import Engine
from hora.engine.frames import final, told
from hora.engine.hub_connection import HubConnection
from hora.engine.meet import Meeting, disconnect, meet
from hora.engine.monitor import Monitor
from hora.engine.process_set import ProcessSet, gather_ranks
from hora.engine.timeline import Timeline
from hora.errors import EnvironmentUnfit, NotInitializedError, PeerLostError, ShutDownError, UsageError
from hora.transport import movers, preload, shm
from hora.wire.frame import WireError
from hora.wire.messages import Entered, Peer, Standby

__all__ = [
    "engine",
    "generation",
    "init",
    "is_elastic",
    "is_initialized",
    "is_on_standby",
    "launcher_lost",
    "may_grow",
    "others_wait",
    "rank",
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
_line: HubConnection | None = None  # to the hub, while there is one
_aside: Standby | None = None  # elastic: the job runs without this worker, which prepares itself alone


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None, *, ready: bool = False) -> None:
    """Start Hora in this process; returns once all workers have called it. Called again while it runs, does nothing.

    Args:
        comm: all workers (None), a list of the ranks that form a world of their own, or an mpi4py communicator.
        process_sets: sets to make known, the same on all ranks; "dynamic" is Horovod's word for sets that are added
            later, which is always possible here.
        ready: for ``hora.elastic`` only: this worker is to be in the next generation of an elastic job. Without that,
            one that comes while the job runs is alone at first, until it enters ``elastic.run``.

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
        if not world.elastic:
            _generation += 1
        with limits_named(f"rank {world.rank} cannot start"):
            started = _meet(world, settings, members, ready)
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
        if settings.timeline not in ("", "DYNAMIC") and _aside is None:  # who prepares itself has no rank yet
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


def generation() -> int:
    """The number of the current generation, or of the last one; 0 before the first."""
    return _generation


def is_elastic() -> bool:
    """Whether this worker belongs to an elastic job, in which others may come and go."""
    return detect(env.environ()).elastic if current is None else current.world.elastic


def may_grow() -> bool:
    """Whether a program that is compiled now may later run with other workers: then being alone is no reason to leave a
    collective out of it."""
    return current is not None and current.world.elastic


def is_on_standby() -> bool:
    """Elastic: whether the job runs already, and this worker prepares itself alone until it is ready to be in it."""
    return _aside is not None


def launcher_lost() -> str:
    """Why nothing more can be heard from the launcher; empty if all is well."""
    return _line.lost if _line is not None else ""


def others_wait() -> bool:
    """Elastic: whether the launcher wants the workers to come for a new generation, with others."""
    return _line is not None and _line.updated >= _generation


def can_meet_others() -> None:
    """Elastic: tell the launcher that this worker can meet others in a new generation."""
    if _line is not None and is_elastic():
        with contextlib.suppress(WireError):  # then everything fails anyway
            _line.send(Entered(_generation))


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
    return engine().rank if _aside is None else _aside.rank


def size() -> int:
    """How many workers there are."""
    return engine().size if _aside is None else _aside.size


# ---- timeline ----


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Record from now on what happens to each tensor: rank 0 writes this file, the others ``name.rank1.json`` etc."""
    running = engine()
    assert _monitor is not None
    timeline = Timeline(
        os.fspath(file_path), running.rank, activity=running.transport.upper(), mark_cycles=mark_cycles,
        max_bytes=running.settings.timeline_max_bytes, generation=_generation if running.world.elastic else 1,
    )  # fmt: skip
    _monitor.record(timeline)


def stop_timeline() -> None:
    """Stop recording; the file is complete when this returns."""
    engine()
    assert _monitor is not None
    _monitor.record(None)


# ---- starting ----


def _members(comm: Any, world: World) -> tuple[int, ...]:
    if world.elastic:
        if comm is not None:
            raise UsageError("init(comm=…) in an elastic job: the launcher decides who is in it. Call init() alone.")
        return ()
    if comm is None:
        return tuple(range(world.size))
    if hasattr(comm, "Get_group"):  # an mpi4py communicator
        comm = gather_ranks(comm, world.rank)
    try:
        members = tuple(sorted({int(r) for r in comm}))
    except TypeError:
        raise UsageError(f"comm={comm!r}: give a list of ranks, an mpi4py communicator, or nothing for all.") from None
    return members or tuple(range(world.size))


def _start_single(world: World, settings: Settings) -> Engine | None:
    """An engine for a world of one; None if it cannot be had without a hub."""
    from hora.engine.table import TableBackend

    alone = (Peer(0, world.rank, os.getpid(), world.host),)
    try:
        segment = shm.create_segment(1, _generation, settings)
    except (OSError, EnvironmentUnfit):
        if settings.transport == "shm":
            raise
        return None
    with contextlib.closing(segment):
        backend = TableBackend(segment.fd, 0, alone, settings, _generation)
        return Engine(world, settings, 0, "shm", alone, backend, os.urandom(32))


def _meet(world: World, settings: Settings, members: tuple[int, ...], ready: bool) -> Engine:
    """``_start``; in an elastic job again, with those who are left, if one is lost on the way."""
    while True:
        try:
            return _start(world, settings, members, ready or _generation > 0)
        except (PeerLostError, ShutDownError) as error:
            if not world.elastic or launcher_lost():
                raise
            _log.info("a worker was lost while the others met: %s", error)


def _start(world: World, settings: Settings, members: tuple[int, ...], ready: bool) -> Engine:
    """Meet the others and start the backend that serves where they are."""
    from hora.engine.table import TableBackend

    global _generation, _line, _aside
    _aside = None
    if len(members) == 1 and shm.available() and settings.transport != "gloo":
        if members != (world.rank,):
            raise UsageError(f"rank {world.rank} is not in comm={list(members)}, the world it wants to be part of.")
        if (found := _start_single(world, settings)) is not None:
            return found
    if world.elastic and not shm.available():
        raise EnvironmentUnfit(f"an elastic job needs Hora's C core: {shm.why_not()}.")
    meeting = meet(world, settings, members, _generation, ready)
    if isinstance(meeting, Standby):
        beside = _start_single(world, settings)
        if beside is None:
            raise EnvironmentUnfit("an elastic job needs shared memory, which cannot be had on this host.")
        _aside = meeting
        return beside
    backend: Backend
    _generation, _line = meeting.generation, meeting.channel
    rank_, size_, peers = meeting.rank, meeting.size, meeting.peers
    hosts = [peer.host for peer in peers]
    if (
        world.elastic or size_ < world.size or len(set(hosts)) > 1
    ):  # a part of the launched world, or more than its launcher could say
        world = msgspec.structs.replace(
            world, rank=rank_, size=size_, homogeneous=is_homogeneous_hosts(hosts), **places(hosts)[rank_]._asdict()
        )
    made: shm.Segment | None = None
    if to_share := meeting.transport == "shm" and meeting.segment_fd < 0:
        from hora.engine.hosttable import share_segment

        meeting, made = share_segment(meeting)
    if meeting.transport in LINKED:
        from hora.engine import links

        backend, made = links.start(meeting, elastic=world.elastic)
    elif meeting.transport == "shm":
        try:
            backend = TableBackend(meeting.segment_fd, rank_, peers, meeting.settings, _generation, meeting.channel)
        finally:
            os.close(meeting.segment_fd)
    else:
        backend = _talk(meeting)
    if (meeting.transport in LINKED or meeting.transport == "shm") and (kind := movers.device_kind()):
        from hora.engine import message_backend, split

        backend = split.SplitBackend(backend, lambda: message_backend.start(meeting._replace(transport="gloo")), kind)
    key = meeting.channel.key_for(f"generation {_generation}")
    started = Engine(world, meeting.settings, rank_, meeting.transport, peers, backend, key)
    if meeting.transport in LINKED or (to_share and meeting.transport == "shm"):
        try:
            started.meet_all("init shared memory")
        except BaseException:
            started.close()
            raise
        finally:
            if made is not None:
                made.close()  # all have opened it
    return started


def _talk(meeting: Meeting) -> Backend:
    """The message backend; where shared memory might have been expected, why it is not used is told once."""
    from hora.engine import message_backend

    expected = len({peer.host for peer in meeting.peers}) == 1 and meeting.settings.transport == "auto"
    reason = (meeting.unshared or shm.why_not()).rstrip(".") if expected else ""
    try:
        backend = message_backend.start(meeting)
    except EnvironmentUnfit as error:
        if not reason:
            raise
        raise EnvironmentUnfit(f"shared memory cannot be used: {reason}.\n{error}") from error
    if reason and meeting.rank == 0:
        _log.warning("running on Gloo, several times slower than shared memory: %s.", reason)
    return backend


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
    full = env.flag(env.environ(), "FULL_TRACEBACK")
    if kind is KeyboardInterrupt and not full and env.find(env.environ(), "SIZE") == 1:
        return  # the launcher says it; of several workers it also leaves out what they say
    try:
        text = told(error, full=full)
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
    global current, _monitor, _line
    current = _monitor = _line = None


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
