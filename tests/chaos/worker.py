"""A worker for the chaos tests: reduces numpy arrays as fast as it can, without importing a framework.

``python worker.py loop FOLDER``: until it fails; prints the moment and the text of the failure as JSON, and then stays
until FOLDER/end exists. FOLDER/board says meanwhile how far it is, and who holds the table's lock.
``python worker.py many N``: N small operations, and how much memory they took.
``python worker.py joins N SEED``: N uneven epochs that end with ``join()``, while another thread keeps the GIL.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from pathlib import Path

import numpy as np

from hora.engine import session
from hora.engine.request import OperationSpec, forms
from hora.errors import HoraError
from hora.types import Buffer, DType, Kind, ReduceOp, Reduction

MOST_RANKS, STEP, HOLDER, LOOKS = 8, 0, 1, 2  # of the board: a row a rank, and its columns
TINY = 20  # operations of one element in a step
LARGE_EVERY = 16  # steps
END_S = 60.0


def buffer(array: np.ndarray) -> Buffer:  # type: ignore[type-arg]
    return Buffer(array.ctypes.data, DType.FLOAT32, array.shape, array)


def say(**words: object) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


def total(array: np.ndarray, name: str) -> None:  # type: ignore[type-arg]
    engine = session.engine()
    engine.prepare(OperationSpec(Kind.ALLREDUCE, name, forms([buffer(array)]))).start(
        [buffer(array)], [buffer(array)]
    ).wait()


def board_in(folder: Path) -> np.ndarray:  # type: ignore[type-arg]
    """What all workers write and the test reads; whoever comes first makes it."""
    with open(folder / "board", "ab") as file:
        file.truncate(MOST_RANKS * 3 * 8)
    return np.memmap(folder / "board", "int64", "r+", shape=(MOST_RANKS, 3))


def look_at_the_lock(row: np.ndarray) -> None:  # type: ignore[type-arg]
    """Without taking it: by a thread that nothing can stop but a signal."""
    backend = session.engine().backend
    if not hasattr(backend, "_lib"):
        return  # of Gloo
    while True:
        row[HOLDER] = backend._lib.holder(backend._core)
        row[LOOKS] += 1
        time.sleep(0.002)


def loop(folder: Path) -> None:
    session.init()
    rank, size = session.rank(), session.size()
    row = board_in(folder)[rank]
    threading.Thread(target=look_at_the_lock, args=(row,), daemon=True).start()
    say(ready=rank, pid=os.getpid())
    engine, one = session.engine(), np.empty(1, "float32")
    try:
        while True:
            step = int(row[STEP]) % 1000
            expected = size * step + size * (size - 1) // 2  # exact in float32
            for _ in range(TINY):
                one[0] = step + rank
                total(one, "tiny")
                assert one[0] == expected, f"a wrong sum: {one[0]} in place of {expected}"
            sizes = [1, 500, 5000, 300_000] if step % LARGE_EVERY == 0 else [1, 500]
            arrays = [np.full(n, step + rank, "float32") for n in sizes]
            order = np.random.default_rng(step + rank).permutation(len(sizes))
            tickets = [
                engine.prepare(OperationSpec(Kind.ALLREDUCE, f"t{i}", forms([buffer(arrays[i])]))).start(
                    [buffer(arrays[i])], [buffer(arrays[i])]
                )
                for i in order
            ]
            for ticket in tickets:
                ticket.wait()
            assert all((a == expected).all() for a in arrays), "a wrong sum"
            row[STEP] += 1
    except HoraError as error:
        say(rank=rank, raised=type(error).__name__, at=time.monotonic(), text=str(error))
        deadline = time.monotonic() + END_S
        while not (folder / "end").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        sys.exit(3)


def joins(epochs: int, seed: int) -> None:
    """Each rank has its own number of steps in an epoch; a sum is of those that are not yet through."""
    session.init()
    rank, size, engine, sums, slowest = session.rank(), session.size(), session.engine(), 0, 0.0
    threading.Thread(target=burn, daemon=True).start()
    sys.setswitchinterval(0.001)
    for epoch in range(epochs):
        dice = random.Random(seed * 1_000_003 + epoch)
        steps = [dice.randrange(6) for _ in range(size)]
        for step in range(steps[rank]):
            array = np.full(dice.choice([1, 700]), 10.0**rank * (step + 1), "float64")
            expected = sum(10.0**r * (step + 1) for r in range(size) if steps[r] > step)
            ends = Buffer(array.ctypes.data, DType.FLOAT64, array.shape, array)
            engine.prepare(OperationSpec(Kind.ALLREDUCE, f"s{step}", forms([ends]))).start([ends], [ends]).wait()
            if not (array == expected).all():
                say(rank=rank, wrong=f"epoch {epoch}, step {step}: {array[0]} in place of {expected}")
                sys.exit(4)
            sums += 1
        began = time.monotonic()
        last = engine.join()
        slowest = max(slowest, time.monotonic() - began)
        agreed = np.full(1, last, "float32")
        total(agreed, "last")
        if agreed[0] != size * last:
            say(rank=rank, wrong=f"epoch {epoch}: rank {last} joined last, others name another ({agreed[0]}/{size})")
            sys.exit(4)
    say(rank=rank, joins=epochs, sums=sums + epochs, slowest=slowest)


def burn() -> None:
    while True:
        sum(range(1000))


def resident_kb() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0])


def many(times: int) -> None:
    session.init()
    engine = session.engine()
    array = np.ones(1, "float32")
    spec = OperationSpec(Kind.ALLREDUCE, "small", forms([buffer(array)]), how=Reduction(ReduceOp.MAX))
    again = engine.prepare(spec).run
    address = array.ctypes.data

    def unnamed(count: int) -> None:
        for _ in range(count):
            engine.prepare(
                OperationSpec(Kind.ALLREDUCE, None, forms([buffer(array)]), how=Reduction(ReduceOp.MAX))
            ).run(address, array)

    unnamed(6000)  # fill every cache
    for _ in range(6000):
        again(address, array)
    before = resident_kb()
    for _ in range(times):
        again(address, array)
    unnamed(times // 100)
    assert array[0] == 1
    say(rank=session.rank(), grown_kb=resident_kb() - before)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["loop", folder]:
            loop(Path(folder))
        case ["many", times]:
            many(int(times))
        case ["joins", epochs, seed]:
            joins(int(epochs), int(seed))
