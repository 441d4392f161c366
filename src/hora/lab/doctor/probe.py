"""What each worker of the doctor's jobs runs: ``python -m hora.lab.doctor.probe KIND SIZE…``.

Sums vectors of a few sizes over all workers with nothing but the standard library (KIND "plain"), or with
``hora.torch`` on the processor ("torch") or on GPUs ("cuda"). Checks every element, and prints a line: MARK and, as
JSON, the transport and the median time of each size.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from functools import partial

__all__ = ["MARK", "expected", "main", "pattern"]

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
    from hora.transport.base import Buffer, DType, Kind, ReduceOp

    engine = session.engine()
    given, taken = pattern(rank, count), array("f", bytes(4 * count))
    source, target = (Buffer(data.buffer_info()[0], DType.FLOAT32, (count,), data) for data in (given, taken))

    def call() -> None:
        engine.wait(engine.submit(Kind.ALLREDUCE, f"doctor.{count}", [source], [target], op=ReduceOp.SUM))

    return call, taken.tobytes


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


if __name__ == "__main__":
    main(sys.argv[1], [int(size) for size in sys.argv[2:]])
