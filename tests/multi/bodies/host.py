"""Collectives on numpy arrays (``ops.host``), which the front-ends of other frameworks than torch stand on."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
from tests.multi.body import body
from tests.multi.data import process_sets, raises

from hora.errors import MismatchError
from hora.ops import host
from hora.ops.call import Call
from hora.types import Kind, ReduceOp, Reduction

DTYPES = [
    "uint8",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "float16",
    ml_dtypes.bfloat16,
    "float32",
    "float64",
    "bool",
]
Array = np.ndarray[Any, np.dtype[Any]]


def array(rank: int, shape: tuple[int, ...], dtype: Any) -> Array:
    """Small whole numbers: sums are exact in every type."""
    random = np.random.default_rng([rank, *shape, 7])
    return random.integers(0, 2 if dtype == "bool" else 4, shape).astype(dtype)


def same(result: Array, expected: Array) -> None:
    assert result.dtype == expected.dtype and result.shape == expected.shape, (result, expected)
    np.testing.assert_array_equal(result, expected)
    assert not result.size or host.address_of(result) % host.ALIGNMENT == 0


@body()
def every_collective_on_every_type(hvd: ModuleType, rank: int, size: int) -> None:
    with process_sets(hvd, size) as sets:
        for process_set in [s for s in sets if s.included()]:
            ranks, me = process_set.ranks, process_set.rank()
            for dtype in DTYPES:
                wide = bool if dtype == "bool" else "int64"
                for shape in [(), (0,), (5,), (3, 2)]:
                    own = array(rank, shape, dtype)
                    total = sum((array(r, shape, dtype).astype(wide) for r in ranks), np.zeros(shape, wide))
                    (summed,) = host.allreduce([own], Reduction(ReduceOp.SUM), f"s{shape}{dtype}", process_set).wait()
                    same(summed, np.asarray(total).astype(dtype))
                    call = Call(Kind.BROADCAST, f"b{shape}{dtype}", process_set, root=ranks[-1])
                    (sent,) = host.start(call, [own]).wait().tensors
                    same(sent, array(ranks[-1], shape, dtype))
                rows = [array(r, (r % 2 + 1, 3), dtype) for r in ranks]
                call = Call(Kind.ALLGATHER, None, process_set, grouped=True)
                (gathered, none), came, _ = host.start(call, [rows[me], rows[me][:, :0]]).wait()
                same(gathered, np.concatenate(rows))
                assert came == [tuple(len(r) for r in rows)] * 2 and none.shape[1] == 0
                splits = [r % 2 + 1 for r in ranks]  # everybody sends so many rows to rank r, the same to all
                whole = [array(r, (sum(splits) + 1, 2), dtype) for r in ranks]
                call = Call(Kind.ALLTOALL, None, process_set, splits=splits)
                (exchanged,), came, _ = host.start(call, [whole[me]]).wait()
                start = sum(splits[:me])
                same(exchanged, np.concatenate([w[start : start + splits[me]] for w in whole]))
                assert came == [(splits[me],) * len(ranks)]
                (narrow,), came_narrow, _ = host.start(call, [whole[me][:, :0]]).wait()
                assert came_narrow == came and narrow.shape == (len(exchanged), 0)
                if dtype == "bool":
                    continue
                blocks = [array(r, (2 * len(ranks) + 1, 2), dtype) for r in ranks]
                call = Call(Kind.REDUCESCATTER, None, process_set, Reduction(ReduceOp.SUM))
                (part,) = host.start(call, [blocks[me]]).wait().tensors
                first = 2 * me + (me > 0)
                expected = sum(b.astype("int64") for b in blocks)[first : first + 2 + (me == 0)]
                same(part, np.asarray(expected).astype(dtype))


@body()
def into_the_inputs_or_elsewhere(hvd: ModuleType, rank: int, size: int) -> None:
    total = sum(np.arange(6.0) * (r + 1) for r in range(size)).reshape(2, 3)
    own = (np.arange(6.0) * (rank + 1)).reshape(2, 3)
    place = np.zeros((2, 6))[:, ::2]  # not contiguous
    how = Reduction(ReduceOp.SUM)
    (result,) = host.allreduce([own], how, "elsewhere", hvd.global_process_set, into=[place]).wait()
    assert result is place
    np.testing.assert_array_equal(place, total)
    strided = np.repeat(own, 2, axis=1)[:, ::2]
    (result,) = host.allreduce([strided], how, "strided", hvd.global_process_set).wait()
    np.testing.assert_array_equal(result, total)
    (result,) = host.allreduce([own], how, "in place", hvd.global_process_set, into=[own]).wait()
    assert result is own
    np.testing.assert_array_equal(own, total)
    own[...] = rank
    call = Call(Kind.BROADCAST, "in place", hvd.global_process_set, root=size - 1)
    (result,) = host.start(call, [own], [own]).wait().tensors
    assert result is own and (own == size - 1).all()


@body(sizes=(2, 3, 4))
def a_mismatch_is_everybodys(hvd: ModuleType, rank: int, size: int) -> None:
    started = host.allreduce([np.zeros(rank + 1)], Reduction(ReduceOp.SUM), "uneven", hvd.global_process_set)
    with raises(MismatchError, "uneven"):
        started.wait()


@body()
def unsigned_integers(hvd: ModuleType, rank: int, size: int) -> None:
    """Values that a signed type of their size does not have; what does not fit wraps."""
    for dtype in ("uint16", "uint32"):
        top = int(np.iinfo(dtype).max)
        parts = [np.array([top - r, r, top // size], dtype) for r in range(size)]
        numbers = np.array([p.astype("int64") for p in parts])
        expected = {
            ReduceOp.SUM: numbers.sum(0), ReduceOp.MIN: numbers.min(0), ReduceOp.MAX: numbers.max(0),
            ReduceOp.AVERAGE: numbers.sum(0) // size,
        }  # fmt: skip
        for op, wanted in expected.items():
            (found,) = host.allreduce([parts[rank]], Reduction(op), f"{dtype}{op}", hvd.global_process_set).wait()
            same(found, wanted.astype(dtype))
        call = Call(Kind.BROADCAST, dtype, hvd.global_process_set, root=size - 1)
        (sent,) = host.start(call, [parts[rank]]).wait().tensors
        same(sent, parts[-1])
