"""What the ranks of ``test_mpi.py`` do, started by mpirun: ``python -m tests.transport.mpi_bodies BODY``.

Each body gets this rank's mover and the number of ranks and returns what is wrong; one line of JSON a rank tells it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from hora.errors import HorovodInternalError
from hora.transport import mpi
from hora.transport.arithmetic import adasum, reduce_parts
from hora.types import Buffer, DType, ReduceOp

Array = np.ndarray[Any, Any]
OPS = (ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT)


def buffer(array: Array, dtype: DType | None = None) -> Buffer:
    return Buffer(array.ctypes.data, dtype or DType[array.dtype.name.upper()], array.shape, array)


def sample(dtype: DType, rank: int, count: int) -> Array:
    random = np.random.default_rng(100 * int(dtype) + rank)
    if dtype is DType.BFLOAT16:
        return (random.normal(size=count).astype("float32").view("uint32") >> 16).astype("uint16")
    if dtype is DType.BOOL:
        return random.integers(0, 2, count).astype(bool)
    scaled = random.normal(size=count) * 50
    return np.abs(scaled).astype(dtype.numpy) if dtype is DType.UINT8 else scaled.astype(dtype.numpy)


def reductions(mover: mpi.MpiMover, rank: int, size: int) -> list[str]:
    everyone, wrong = tuple(range(size)), []
    how = {"members": everyone, "contributors": everyone, "prescale": 0.5, "postscale": 2.0, "divisor": size}
    for dtype, op, counts in product(DType, OPS, ([1, 5, 30_001, 30_000], [30_001], [30_000], [0])):
        arrays = [sample(dtype, rank, count) for count in counts]
        outputs = [np.empty_like(array) for array in arrays]
        mover.allreduce([buffer(a, dtype) for a in arrays], [buffer(o, dtype) for o in outputs], op=op, **how)  # type: ignore[arg-type]
        for count, output in zip(counts, outputs, strict=True):
            expected = reduce_parts([sample(dtype, r, count) for r in everyone], dtype, op, 0.5, 2.0, size)
            if output.tobytes() != expected.tobytes():
                wrong.append(f"allreduce {dtype.name} {op.name} {count} of {counts}")
        if op in (ReduceOp.SUM, ReduceOp.AVERAGE):
            shares = [101 + r for r in everyone]
            low, whole = sum(shares[:rank]), sum(shares)
            share = np.empty(shares[rank], dtype.numpy)
            mover.reducescatter(
                buffer(sample(dtype, rank, whole), dtype), buffer(share, dtype), op=op, prescale=0.5, postscale=2.0,
                counts=shares, members=everyone, divisor=size,
            )  # fmt: skip
            expected = reduce_parts([sample(dtype, r, whole) for r in everyone], dtype, op, 0.5, 2.0, size)
            if share.tobytes() != expected[low : low + shares[rank]].tobytes():
                wrong.append(f"reducescatter {dtype.name} {op.name}")
    return wrong


def movements(mover: mpi.MpiMover, rank: int, size: int) -> list[str]:
    everyone, wrong = tuple(range(size)), []
    for dtype in DType:
        for sizes in ([4] * size, list(range(size)), [0] * (size - 1) + [50_000], [0] * size):
            output = np.empty(sum(sizes), dtype.numpy)
            nbytes = [count * dtype.itemsize for count in sizes]
            mine = sample(dtype, rank, sizes[rank])
            mover.allgather(buffer(mine, dtype), buffer(output, dtype), nbytes=nbytes, members=everyone)
            if output.tobytes() != np.concatenate([sample(dtype, r, sizes[r]) for r in everyone]).tobytes():
                wrong.append(f"allgather {dtype.name} {sizes}")
        for root in everyone:
            target = np.empty(7, dtype.numpy)
            mover.broadcast(buffer(sample(dtype, rank, 7), dtype), buffer(target, dtype), root=root, members=everyone)
            if target.tobytes() != sample(dtype, root, 7).tobytes():
                wrong.append(f"broadcast {dtype.name} from {root}")
        # Rank r sends r + 2 * i elements to rank i.
        sent = [(rank + 2 * i) * dtype.itemsize for i in everyone]
        received = [(r + 2 * rank) * dtype.itemsize for r in everyone]
        source = sample(dtype, rank, sum(sent) // dtype.itemsize)
        target = np.empty(sum(received) // dtype.itemsize, dtype.numpy)
        mover.alltoall(buffer(source, dtype), buffer(target, dtype), sent=sent, received=received, members=everyone)
        parts = []
        for r in everyone:
            cuts = np.cumsum([0, *(r + 2 * i for i in everyone)])
            parts.append(sample(dtype, r, cuts[-1])[cuts[rank] : cuts[rank + 1]])
        if target.tobytes() != np.concatenate(parts).tobytes():
            wrong.append(f"alltoall {dtype.name}")
    return wrong


def in_pieces(mover: mpi.MpiMover, rank: int, size: int) -> list[str]:
    """The same, with messages so short that everything is cut."""
    mpi._MOST_BYTES = 5
    everyone = tuple(range(size))
    array = sample(DType.FLOAT32, rank, 6000)
    mover.allreduce(
        [buffer(array)], [buffer(array)], op=ReduceOp.SUM, prescale=1.0, postscale=1.0, members=everyone,
        contributors=everyone, divisor=1,
    )  # fmt: skip
    parts = [sample(DType.FLOAT32, r, 6000) for r in everyone]
    expected = reduce_parts(parts, DType.FLOAT32, ReduceOp.SUM, 1.0, 1.0, 1)
    return movements(mover, rank, size) + ["allreduce"] * (array.tobytes() != expected.tobytes())


def parts_of_the_world(mover: mpi.MpiMover, rank: int, size: int) -> list[str]:
    """Sets that overlap, a rank that has joined, and Adasum."""
    wrong = []
    for members, contributors in (
        ((0, 1), (0, 1)),
        ((1, 2, 3), (1, 3)),
        ((0, 3), (0, 3)),
        ((0, 1, 2, 3), (0, 1, 2, 3)),
    ):
        for op in (ReduceOp.AVERAGE, ReduceOp.ADASUM):
            if rank not in members:
                continue
            array = sample(DType.FLOAT64, rank, 3000)
            buffers = [buffer(array)] if rank in contributors else []
            mover.allreduce(
                buffers, buffers, op=op, prescale=1.0, postscale=1.0, members=members, contributors=contributors,
                divisor=len(members),
            )  # fmt: skip
            parts = [sample(DType.FLOAT64, r, 3000) for r in contributors]
            if op is ReduceOp.ADASUM:
                expected = adasum(parts, DType.FLOAT64, 1.0, 1.0)
            else:
                expected = reduce_parts(parts, DType.FLOAT64, op, 1.0, 1.0, len(members))
            if rank in contributors and array.tobytes() != expected.tobytes():
                wrong.append(f"{op.name} of {contributors} in {members}")
    return wrong


def absence(mover: mpi.MpiMover, rank: int, size: int) -> list[str]:
    """One rank stays away: the others are told in time, and the processes still end."""
    array = np.zeros(3)
    mover.broadcast(buffer(array), buffer(array), root=0, members=tuple(range(size)))
    if rank == 0:
        return []
    said = []
    for _ in range(2):
        try:
            mover.allgather(buffer(array), buffer(np.zeros(3 * size)), nbytes=[24] * size, members=tuple(range(size)))
        except HorovodInternalError as error:
            said.append(str(error))
    return [] if "within 0.5 s" in said[0] and "failed before" in said[1] else said


BODIES: dict[str, tuple[Callable[[mpi.MpiMover, int, int], list[str]], float]] = {
    "reductions": (reductions, 30.0),
    "movements": (movements, 30.0),
    "in_pieces": (in_pieces, 30.0),
    "parts_of_the_world": (parts_of_the_world, 30.0),
    "absence": (absence, 0.5),
}


def main() -> None:
    body, timeout_s = BODIES[sys.argv[1]]
    if body is reductions:
        from mpi4py import MPI  # noqa: F401  # as a user might, who then owns its beginning and its end
    rank, size = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    mover = mpi.MpiMover(rank, range(size), timeout_s=timeout_s)
    wrong = body(mover, rank, size)
    print(json.dumps([rank, wrong[:5]]), flush=True)
    mover.close()
    mpi.finish()


if __name__ == "__main__":
    main()
