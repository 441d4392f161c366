"""Allgather, broadcast, alltoall and reducescatter against numpy."""

from __future__ import annotations

from itertools import product
from types import ModuleType

import torch
from tests.multi.body import body
from tests.multi.data import DTYPES, SHAPES, check, combine, process_sets, strided, tensor, tensors

from hora.ops.resolve import scattered_rows


def rows_of(rank: int, base: int = 1) -> int:
    """Uneven, and none at all on rank 2."""
    return 0 if rank == 2 else base + rank


@body()
def allgather_every_dtype(hvd: ModuleType, rank: int, size: int) -> None:
    for dtype in DTYPES:
        parts = [tensor(r, (rows_of(r), 3), dtype) for r in range(size)]
        check(hvd.allgather(parts[rank], name=f"{dtype}"), torch.cat(parts), dtype)


@body()
def allgather_every_shape(hvd: ModuleType, rank: int, size: int) -> None:
    for shape in SHAPES[1:]:
        parts = tensors(range(size), shape)
        check(hvd.allgather(parts[rank]), torch.cat(parts), shape)
        check(hvd.allgather(strided(parts[rank])), torch.cat(parts), shape)
    for base in (0, 1, 1000, 70001):
        parts = [tensor(r, (rows_of(r, base), 2)) for r in range(size)]
        check(hvd.synchronize(hvd.allgather_async(parts[rank])), torch.cat(parts), base)
    # Rows without elements are still rows.
    assert hvd.allgather(torch.empty(rank + 1, 0, 2)).shape == (size * (size + 1) // 2, 0, 2)


@body()
def allgather_result_is_ones_own(hvd: ModuleType, rank: int, size: int) -> None:
    first = hvd.allgather(torch.full((3,), float(rank)), name="g")
    kept = first.clone()
    first += 1  # writable
    second = hvd.allgather(torch.full((3,), float(rank)), name="g")
    assert torch.equal(first, kept + 1) and torch.equal(second, kept), "results must not share memory"


@body()
def allgather_groups(hvd: ModuleType, rank: int, size: int) -> None:
    def own(r: int) -> list[torch.Tensor]:
        return [
            tensor(r, (rows_of(r), 2)),
            tensor(r, (4,), torch.int64),
            torch.empty(r, 0),
            tensor(r, (rows_of(r, 300),), torch.uint8),
        ]

    expected = [torch.cat(parts) for parts in zip(*(own(r) for r in range(size)), strict=True)]
    handle = hvd.grouped_allgather_async(own(rank), name="g")
    for results in (hvd.synchronize(handle), hvd.grouped_allgather(own(rank), name="g")):
        for result, value in zip(results, expected, strict=True):
            check(result, value)


@body()
def broadcast_every_dtype_and_root(hvd: ModuleType, rank: int, size: int) -> None:
    for dtype, root in product(DTYPES, range(size)):
        own = tensor(rank, (5, 2), dtype)
        before = own.clone()
        check(hvd.broadcast(own, root, name="b"), tensor(root, (5, 2), dtype), (dtype, root))
        assert torch.equal(own, before)


@body()
def broadcast_every_shape_and_form(hvd: ModuleType, rank: int, size: int) -> None:
    root = size - 1
    for shape in SHAPES:
        own, expected = tensor(rank, shape), tensor(root, shape)
        check(hvd.broadcast(own, root), expected, shape)
        check(hvd.synchronize(hvd.broadcast_async(own, root)), expected, shape)
        for change in (torch.clone, strided):
            target = change(own)
            assert hvd.broadcast_(target, root) is target
            check(target, expected, shape)
            target = change(own)
            assert hvd.synchronize(hvd.broadcast_async_(target, root)) is target
            check(target, expected, shape)


def splits_of(rank: int, size: int) -> list[int]:
    """What ``rank`` sends: uneven, some of it nothing."""
    return [(rank + 2 * to) % 4 for to in range(size)]


def exchanged(rank: int, size: int, parts: list[torch.Tensor]) -> torch.Tensor:
    """What alltoall must give ``rank``."""
    pieces = []
    for sender, part in enumerate(parts):
        splits = splits_of(sender, size)
        start = sum(splits[:rank])
        pieces.append(part[start : start + splits[rank]])
    return torch.cat(pieces)


@body()
def alltoall_uneven(hvd: ModuleType, rank: int, size: int) -> None:
    for dtype in DTYPES:
        parts = [tensor(r, (sum(splits_of(r, size)), 3), dtype) for r in range(size)]
        splits = splits_of(rank, size)
        expected = exchanged(rank, size, parts)
        received_expected = [splits_of(r, size)[rank] for r in range(size)]
        for given in (splits, torch.tensor(splits), torch.tensor(splits, dtype=torch.int32), tuple(splits)):
            result, received = hvd.alltoall(parts[rank], given, name="a")
            check(result, expected, dtype)
            assert received.dtype == torch.int32 and received.tolist() == received_expected
        result, received = hvd.synchronize(hvd.alltoall_async(strided(parts[rank]), splits, name="a"))
        check(result, expected, dtype)


@body()
def alltoall_even(hvd: ModuleType, rank: int, size: int) -> None:
    for each in (0, 1, 500, 20001):
        parts = tensors(range(size), (each * size, 2))
        expected = torch.cat([part[rank * each : (rank + 1) * each] for part in parts])
        check(hvd.alltoall(parts[rank]), expected)
        check(hvd.synchronize(hvd.alltoall_async(parts[rank])), expected)


@body()
def alltoall_rows_that_stay(hvd: ModuleType, rank: int, size: int) -> None:
    own = torch.arange(10.0) + 100 * rank
    result, received = hvd.alltoall(own, [1] * size)
    assert result.tolist() == [rank + 100.0 * r for r in range(size)]
    nothing, received = hvd.alltoall(own, [0] * size)
    assert nothing.shape == (0,) and received.tolist() == [0] * size
    narrow, received = hvd.alltoall(own.reshape(-1, 1)[:, :0], [r + 1 for r in range(size)] if size < 4 else [1] * size)
    each = rank + 1 if size < 4 else 1
    assert narrow.shape == (each * size, 0) and received.tolist() == [each] * size and narrow.dtype == own.dtype


def scattered(rank: int, size: int, total: torch.Tensor) -> torch.Tensor:
    shares = [scattered_rows(len(total), size, r) for r in range(size)]
    return total[sum(shares[:rank]) : sum(shares[: rank + 1])]


@body()
def reducescatter_every_dtype(hvd: ModuleType, rank: int, size: int) -> None:
    for dtype, op, rows in product(DTYPES, (hvd.Sum, hvd.Average), (0, 1, size, 7)):
        if dtype is torch.bool and op is hvd.Average:
            continue
        parts = tensors(range(size), (rows, 2), dtype)
        expected = scattered(rank, size, combine(op, parts))
        check(hvd.reducescatter(parts[rank], name="r", op=op), expected, (dtype, op, rows))


@body()
def reducescatter_every_shape_and_form(hvd: ModuleType, rank: int, size: int) -> None:
    for shape in SHAPES[1:]:
        parts = tensors(range(size), shape)
        expected = scattered(rank, size, combine(hvd.Sum, parts))
        check(hvd.reducescatter(parts[rank], op=hvd.Sum), expected, shape)
        check(hvd.reducescatter(strided(parts[rank]), op=hvd.Sum), expected, shape)
        check(hvd.synchronize(hvd.reducescatter_async(parts[rank], op=hvd.Sum)), expected, shape)
    parts = tensors(range(size), (9,))
    check(hvd.reducescatter(parts[rank]), scattered(rank, size, combine(hvd.Average, parts)), "Average by default")
    result = hvd.reducescatter(parts[rank], op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    check(result, scattered(rank, size, combine(hvd.Sum, parts, 0.5, 4.0)))


@body()
def reducescatter_groups(hvd: ModuleType, rank: int, size: int) -> None:
    shapes = ((7, 2), (size,), (1000, 3), (0, 2))
    parts = [tensors(range(size), shape) for shape in shapes]
    own = [part[rank] for part in parts]
    expected = [scattered(rank, size, combine(hvd.Sum, part)) for part in parts]
    handle = hvd.grouped_reducescatter_async(own, name="g", op=hvd.Sum)
    for results in (hvd.synchronize(handle), hvd.grouped_reducescatter(own, name="g", op=hvd.Sum)):
        for result, value in zip(results, expected, strict=True):
            check(result, value)


@body()
def sets(hvd: ModuleType, rank: int, size: int) -> None:
    with process_sets(hvd, size) as every:
        for process_set in every:
            if not process_set.included():
                continue
            ranks, index, n = process_set.ranks, process_set.rank(), process_set.size()
            own = tensor(rank, (rank + 1, 2))
            gathered = torch.cat([tensor(r, (r + 1, 2)) for r in ranks])
            check(hvd.allgather(own, name="x", process_set=process_set), gathered)
            root = ranks[-1]  # a global rank
            check(hvd.broadcast(tensor(rank, (3,)), root, name="x", process_set=process_set), tensor(root, (3,)))
            exchange = torch.full((n,), float(rank))
            check(hvd.alltoall(exchange, name="x", process_set=process_set), torch.tensor([float(r) for r in ranks]))
            parts = tensors(ranks, (5, 2))
            result = hvd.reducescatter(parts[index], name="x", op=hvd.Sum, process_set=process_set)
            check(result, scattered(index, n, combine(hvd.Sum, parts)))
            hvd.barrier(process_set)


@body(sizes=(2,))
def examples_of_the_table(hvd: ModuleType, rank: int, size: int) -> None:
    """The docstrings' examples, to the letter."""

    def here(*values: list[float]) -> torch.Tensor:
        return torch.tensor(values[rank])

    assert hvd.allreduce(here([1.0, 2.0], [3.0, 6.0]), op=hvd.Sum).tolist() == [4, 8]
    assert hvd.allreduce(here([1.0, 2.0], [3.0, 6.0])).tolist() == [2, 4]
    assert hvd.allgather(here([1.0], [2.0, 3.0])).tolist() == [1, 2, 3]
    assert hvd.broadcast(here([1.0, 2.0], [3.0, 6.0]), 1).tolist() == [3, 6]
    received, _ = hvd.alltoall(here([1.0, 2.0, 3.0], [4.0, 5.0]), ([1, 2], [1, 1])[rank])
    assert received.tolist() == ([1, 4], [2, 3, 5])[rank]
    scattered = hvd.reducescatter(here([1.0, 2.0, 3.0], [10.0, 20.0, 30.0]), op=hvd.Sum)
    assert scattered.tolist() == ([11, 22], [33])[rank]
