"""What the doctor runs in processes of its own: ``python -m hora.doctor.probe KIND SIZE…``.

As a worker it sums vectors of a few sizes over all workers with nothing but the standard library (KIND "plain"), or
with ``hora.torch`` on the processor ("torch") or on GPUs ("cuda"). It checks every element, and prints a line: MARK
and, as JSON, the transport and the median time of each size. KIND "calls" tries the system calls that Hora uses, and
prints what came of each as JSON: a sandbox may kill whoever makes a call that it does not like.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from functools import partial

__all__ = ["CALLS", "MARK", "attempt", "expected", "main", "pattern"]

MARK = "hora-doctor:"
_PERIOD = 251  # a prime, so that a shifted or doubled chunk shows
_WARM_UP, _FEWEST, _MOST = 2, 5, 50


def pattern(rank: int, count: int) -> array[float]:
    """What a rank brings: small whole numbers, so that sums are exact.

    >>> list(pattern(1, 3))
    [1.0, 2.0, 3.0]
    """
    period = array("f", [float(i + rank) for i in range(_PERIOD)])
    return (period * (-(-count // _PERIOD)))[:count]


def expected(size: int, count: int) -> array[float]:
    """The sum over all ranks.

    >>> list(expected(2, 3))
    [1.0, 3.0, 5.0]
    """
    period = array("f", [float(size * i + size * (size - 1) // 2) for i in range(_PERIOD)])
    return (period * (-(-count // _PERIOD)))[:count]


def main(kind: str, sizes: list[int]) -> None:
    from hora.engine import session

    prepare = {"torch": partial(_torch, "cpu"), "cuda": partial(_torch, "cuda")}.get(kind, _plain)
    before = time.perf_counter()
    session.init()
    met_s = time.perf_counter() - before
    engine = session.engine()
    seconds = {}
    for nbytes in sizes:
        count = max(1, nbytes // 4)
        call, result = prepare(engine.rank, count)
        wanted = expected(engine.size, count).tobytes()
        times: list[float] = []
        # All ranks must call equally often: the number of rounds depends on the size alone.
        for _ in range(_WARM_UP + max(_FEWEST, min(_MOST, (8 << 20) // max(nbytes, 1)))):
            engine.barrier()
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        got = result()
        if got != wanted:
            wrong = next(i for i in range(count) if got[4 * i : 4 * i + 4] != wanted[4 * i : 4 * i + 4])
            print(f"rank {engine.rank}: element {wrong} of {count} is wrong", file=sys.stderr)
            sys.exit(5)
        seconds[str(nbytes)] = statistics.median(times[_WARM_UP:])
    frameworks = [name for name in ("torch", "numpy") if name in sys.modules]
    report = {"rank": engine.rank, "transport": engine.transport, "seconds": seconds, "met_s": met_s}
    print(MARK + json.dumps({**report, "imported": frameworks}), flush=True)
    engine.barrier()
    session.shutdown()


def _plain(rank: int, count: int) -> tuple[Callable[[], object], Callable[[], bytes]]:
    from hora.engine import session
    from hora.engine.request import OperationSpec
    from hora.types import Buffer, DType, Kind

    given, taken = pattern(rank, count), array("f", bytes(4 * count))
    source, target = (Buffer(data.buffer_info()[0], DType.FLOAT32, (count,), data) for data in (given, taken))

    spec = OperationSpec(Kind.ALLREDUCE, f"doctor.{count}", ((DType.FLOAT32, (count,)),))
    operation = session.engine().prepare(spec)
    return lambda: operation.start([source], [target]).wait(), taken.tobytes


def _torch(device: str, rank: int, count: int) -> tuple[Callable[[], object], Callable[[], bytes]]:
    import torch

    import hora.torch as hvd

    place = f"cuda:{hvd.local_rank() % torch.cuda.device_count()}" if device == "cuda" else device
    given = torch.frombuffer(pattern(rank, count), dtype=torch.float32).to(place, copy=True)
    taken = [given]

    def call() -> None:
        taken[0] = hvd.allreduce(given, name=f"doctor.{count}", op=hvd.Sum)
        if device == "cuda":
            torch.cuda.synchronize(place)

    return call, lambda: bytes(taken[0].cpu().numpy().tobytes())


# ---- system calls ----


def _memfd() -> None:
    os.close(os.memfd_create("hora-doctor"))


def _pidfd() -> None:
    os.close(os.pidfd_open(os.getpid()))


def _futex() -> None:
    """Wake nobody on a word; the number of the call differs between processors."""
    numbers = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
    number = numbers.get(os.uname().machine)
    if number is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    word = ctypes.c_uint32(0)
    if libc.syscall(number, ctypes.byref(word), 1, 1, None, None, 0) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _descriptor_of_another() -> None:
    """Open a descriptor of a process that is not a child of the opener, as workers of one host do."""
    with tempfile.TemporaryFile() as file:
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        child = os.fork()
        if child == 0:
            try:
                os.close(os.open(path, os.O_RDWR))
            except OSError as error:
                os._exit(error.errno or 1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise OSError(code, os.strerror(code) if code > 0 else f"signal {-code}")


def _descriptor_passing() -> None:
    import socket

    near, far = socket.socketpair()
    with near, far:
        socket.send_fds(near, [b"x"], [near.fileno()])
        for fd in socket.recv_fds(far, 1, 1)[1]:
            os.close(fd)


CALLS: dict[str, Callable[[], None]] = {
    "memfd_create": _memfd,
    "pidfd_open": _pidfd,
    "futex": _futex,
    "SCM_RIGHTS": _descriptor_passing,
    "/proc/PID/fd": _descriptor_of_another,
}


def attempt(call: Callable[[], None]) -> str:
    """Why a call does not work; empty if it does.

    >>> attempt(lambda: None)
    ''
    """
    try:
        call()
    except (OSError, AttributeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


if __name__ == "__main__":
    if sys.argv[1] == "calls":
        for name, call in CALLS.items():
            print(json.dumps({name: attempt(call)}), flush=True)
    else:
        main(sys.argv[1], [int(size) for size in sys.argv[2:]])
