"""Gloo as a mover, its ranks threads of this process; every result against the same arithmetic done on the spot."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hora.errors import HorovodInternalError
from hora.transport import exchange
from hora.transport.arithmetic import adasum, reduce_parts
from hora.types import Buffer, DType, ReduceOp

pytest.importorskip("torch.distributed")
from hora.transport.gloo import GlooMover

SIZE = 3
EVERYONE = tuple(range(SIZE))
Array = np.ndarray[Any, Any]


class Store:
    """A shared store in memory."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: key in self._values, timeout_s)
            return self._values.get(key)


def run(body: Callable[[GlooMover, int], Any], size: int = SIZE, timeout_s: float = 10.0) -> list[Any]:
    """The body's result on each rank; what it raises is its result."""
    store, results = Store(), [None] * size
    movers = [GlooMover(rank, store, timeout_s=timeout_s) for rank in range(size)]

    def one(rank: int) -> None:
        try:
            results[rank] = body(movers[rank], rank)
        except Exception as error:
            results[rank] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    for mover in movers:
        mover.close()
    return results


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


@pytest.mark.parametrize("dtype", list(DType))
def test_allreduce_fused_and_alone_small_and_large(dtype: DType) -> None:
    counts = [1, 5, 30_001, 30_000]
    how = {"members": EVERYONE, "contributors": EVERYONE, "prescale": 0.5, "postscale": 2.0, "divisor": SIZE}

    def body(mover: GlooMover, rank: int) -> list[str]:
        wrong = []
        for op in (ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT):
            for chosen in (counts, [5], [30_001], [30_000], [0]):
                arrays = [sample(dtype, rank, count) for count in chosen]
                outputs = [np.empty_like(array) for array in arrays]
                mover.allreduce([buffer(a, dtype) for a in arrays], [buffer(o, dtype) for o in outputs], op=op, **how)
                for count, output, array in zip(chosen, outputs, arrays, strict=True):
                    parts = [sample(dtype, r, count) for r in EVERYONE]
                    expected = reduce_parts(parts, dtype, op, 0.5, 2.0, SIZE)
                    if output.tobytes() != expected.tobytes() or array.tobytes() != parts[rank].tobytes():
                        wrong.append(f"{op.name} {count} of {chosen}")
        return wrong

    assert run(body) == [[]] * SIZE


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT32, DType.INT64])
def test_large_vectors_go_in_pieces(monkeypatch: pytest.MonkeyPatch, dtype: DType, size: int) -> None:
    """In place and not, one vector and several; the last piece is whole, or a rest, or must be padded."""
    monkeypatch.setattr(exchange, "_PIECE_BYTES", 8192)
    ranks = tuple(range(size))
    whole = 6 * size * 8192 // dtype.itemsize
    how = {"op": ReduceOp.AVERAGE, "members": ranks, "contributors": ranks, "prescale": 1.0, "postscale": 1.0}

    def body(mover: GlooMover, rank: int) -> list[str]:
        wrong = []
        for chosen in ([whole], [whole + size], [whole + 1], [whole - 1], [3, whole, 10_001]):
            for in_place in (True, False):
                arrays = [sample(dtype, rank, count) for count in chosen]
                outputs = arrays if in_place else [np.empty_like(array) for array in arrays]
                mover.allreduce([buffer(a, dtype) for a in arrays], [buffer(o, dtype) for o in outputs],
                                divisor=size, **how)  # fmt: skip
                for count, output in zip(chosen, outputs, strict=True):
                    parts = [sample(dtype, r, count) for r in ranks]
                    if output.tobytes() != reduce_parts(parts, dtype, how["op"], 1.0, 1.0, size).tobytes():
                        wrong.append(f"{count} of {chosen}, in place: {in_place}")
        return wrong

    assert run(body, size) == [[]] * size


def test_adasum_works_by_tensor() -> None:
    def body(mover: GlooMover, rank: int) -> bool:
        arrays = [sample(DType.FLOAT32, rank, count) for count in (3, 20_000)]
        buffers = [buffer(array) for array in arrays]
        everyone = (0, 1, 2, 3)
        mover.allreduce(
            buffers, buffers, op=ReduceOp.ADASUM, prescale=1.0, postscale=1.0, members=everyone, contributors=everyone,
            divisor=4,
        )  # fmt: skip
        return all(
            np.array_equal(
                array, adasum([sample(DType.FLOAT32, r, array.size) for r in everyone], DType.FLOAT32, 1.0, 1.0)
            )
            for array in arrays
        )

    assert run(body, 4) == [True] * 4


def test_only_contributors_take_part() -> None:
    def body(mover: GlooMover, rank: int) -> list[float]:
        array = np.full(10_000, rank + 1.0)
        buffers = [buffer(array)] if rank != 1 else []
        mover.allreduce(
            buffers, buffers, op=ReduceOp.AVERAGE, prescale=1.0, postscale=1.0, members=EVERYONE, contributors=(0, 2),
            divisor=3,
        )  # fmt: skip
        return [array[0], array[-1]]

    assert run(body) == [[4 / 3] * 2, [2.0] * 2, [4 / 3] * 2]


@pytest.mark.parametrize("sizes", [[4, 4, 4], [1, 2, 3], [0, 50_000, 7], [0, 0, 0]])
def test_allgather_of_any_sizes(sizes: list[int]) -> None:
    def body(mover: GlooMover, rank: int) -> list[int]:
        output = np.empty(sum(sizes), "uint8")
        mover.allgather(buffer(np.full(sizes[rank], rank, "uint8")), buffer(output), nbytes=sizes, members=EVERYONE)
        return output.tolist()

    expected = [rank for rank, size in enumerate(sizes) for _ in range(size)]
    assert run(body) == [expected] * SIZE


def test_broadcast_alltoall_and_reducescatter() -> None:
    def body(mover: GlooMover, rank: int) -> Any:
        source, target = np.full(3, rank, "int16"), np.zeros(3, "int16")
        mover.broadcast(buffer(source), buffer(target), root=2, members=EVERYONE)
        sent, received = np.arange(6, dtype="uint8") + 10 * rank, np.empty(3 * rank, "uint8")
        splits = [0, 1, 2]
        mover.alltoall(buffer(sent), buffer(received), sent=splits, received=[rank] * SIZE, members=EVERYONE)
        share = np.empty([2, 1, 0][rank], "float32")
        mover.reducescatter(
            buffer(np.arange(3, dtype="float32") + rank), buffer(share), op=ReduceOp.AVERAGE, prescale=1.0,
            postscale=2.0, counts=[2, 1, 0], members=EVERYONE, divisor=3,
        )  # fmt: skip
        return target.tolist(), source[0], received.tolist(), share.tolist()

    assert run(body) == [
        ([2, 2, 2], 0, [], [2.0, 4.0]),
        ([2, 2, 2], 1, [0, 10, 20], [6.0]),
        ([2, 2, 2], 2, [1, 2, 11, 12, 21, 22], []),
    ]


def test_an_absent_rank_is_an_error_in_time_and_the_mover_is_done_for() -> None:
    def body(mover: GlooMover, rank: int) -> Any:
        array = np.zeros(3)
        mover.broadcast(buffer(array), buffer(array), root=0, members=EVERYONE)
        if rank == 2:
            return None
        for _ in range(2):
            with pytest.raises(HorovodInternalError, match="Gloo"):
                mover.allgather(buffer(array), buffer(np.zeros(9)), nbytes=[24] * 3, members=EVERYONE)
        return "told"

    assert run(body, timeout_s=0.5) == ["told", "told", None]


def test_a_rank_that_never_connects_is_an_error_in_time() -> None:
    mover = GlooMover(0, Store(), timeout_s=0.3)
    array = np.zeros(3)
    with pytest.raises(HorovodInternalError, match="could not connect 2 ranks"):
        mover.broadcast(buffer(array), buffer(array), root=0, members=(0, 1))
    mover.close()
    mover.close()
