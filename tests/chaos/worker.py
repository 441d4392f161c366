"""A worker for the chaos tests: reduces numpy arrays as fast as it can, without importing a framework.

``python worker.py loop``: until it fails; prints the moment and the text of the failure as JSON.
``python worker.py many N``: N small operations, and how much memory they took.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from hora.engine import session
from hora.errors import HoraError
from hora.transport.base import Buffer, DType, Kind, ReduceOp


def buffer(array: np.ndarray) -> Buffer:  # type: ignore[type-arg]
    return Buffer(array.ctypes.data, DType.FLOAT32, array.shape, array)


def say(**words: object) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


def loop() -> None:
    session.init()
    engine = session.engine()
    say(ready=session.rank(), pid=os.getpid())
    sizes = [1, 500, 5000, 300_000]
    try:
        step = 0
        while True:
            arrays = [np.ones(n, "float32") for n in sizes]
            order = np.random.default_rng(step + session.rank()).permutation(len(sizes))
            tickets = [
                engine.submit(Kind.ALLREDUCE, f"t{i}", [buffer(arrays[i])], [buffer(arrays[i])], op=ReduceOp.SUM)
                for i in order
            ]
            for ticket in tickets:
                engine.wait(ticket)
            assert all((a == session.size()).all() for a in arrays), "a wrong sum"
            step += 1
    except HoraError as error:
        say(rank=session.rank(), raised=type(error).__name__, at=time.monotonic(), text=str(error))
        sys.exit(3)


def resident_kb() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0])


def many(times: int) -> None:
    session.init()
    engine = session.engine()
    array = np.ones(1, "float32")
    request = engine.request(
        Kind.ALLREDUCE, "small", ((DType.FLOAT32, (1,)),), ReduceOp.MAX, -1, 1.0, 1.0, None, None, "cpu", False
    )
    again = engine.backend.immediate(request)  # type: ignore[attr-defined]
    address = array.ctypes.data

    def unnamed(count: int) -> None:
        for _ in range(count):
            engine.wait(engine.submit(Kind.ALLREDUCE, None, [buffer(array)], [buffer(array)], op=ReduceOp.MAX))

    unnamed(6000)  # fill every cache
    for _ in range(6000):
        again(address)
    before = resident_kb()
    for _ in range(times):
        again(address)
    unnamed(times // 100)
    assert array[0] == 1
    say(rank=session.rank(), grown_kb=resident_kb() - before)


if __name__ == "__main__":
    loop() if sys.argv[1] == "loop" else many(int(sys.argv[2]))
