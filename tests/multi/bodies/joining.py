"""Join: ranks that run out of data before the others."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from tests.multi.body import body
from tests.multi.data import check, raises, tensor


def steps_of(rank: int) -> int:
    """Rank r has r + 1 batches."""
    return rank + 1


def active(step: int, size: int) -> list[int]:
    return [rank for rank in range(size) if steps_of(rank) > step]


@body()
def sum_of_uneven_data(hvd: ModuleType, rank: int, size: int) -> None:
    for step in range(steps_of(rank)):
        result = hvd.allreduce(tensor(rank, (5,), seed=str(step)), name=f"step.{step}", op=hvd.Sum)
        check(result, torch.stack([tensor(r, (5,), seed=str(step)) for r in active(step, size)]).sum(0))
    assert hvd.join() == size - 1
    check(hvd.allreduce(torch.ones(2), name="after", op=hvd.Sum), torch.full((2,), float(size)))


@body()
def averages(hvd: ModuleType, rank: int, size: int) -> None:
    for average_active in (False, True):
        for step in range(steps_of(rank)):
            result = hvd.allreduce(torch.full((3,), 6.0), name="x", op=hvd.Average)
            brought = len(active(step, size))
            expected = 6.0 if average_active else 6.0 * brought / size
            check(result, torch.full((3,), expected), (average_active, step))
        assert hvd.join(average_active=average_active) == size - 1


@body(sizes=(2, 3, 4))
def least_greatest_and_product(hvd: ModuleType, rank: int, size: int) -> None:
    """Who has joined brings nothing: not a zero, which would spoil these."""
    for step in range(steps_of(rank)):
        for op, expected in ((hvd.Min, 2.0 + step), (hvd.Max, size + 1.0), (hvd.Product, None)):
            value = hvd.allreduce(torch.tensor([rank + 2.0]), name=f"x.{op.name}", op=op).item()
            if expected is None:
                expected = 1.0
                for r in active(step, size):
                    expected *= r + 2.0
            assert value == expected, (step, op, value, expected)
    hvd.join()


@body()
def in_place_again_and_again(hvd: ModuleType, rank: int, size: int) -> None:
    for _ in range(3):
        hvd.allreduce_(torch.ones(2), name="x", op=hvd.Sum)
    for step in range(steps_of(rank)):
        for _ in range(3):
            result = hvd.allreduce_(torch.ones(2), name="x", op=hvd.Sum)
            assert result.tolist() == [len(active(step, size))] * 2
    hvd.join()
    assert hvd.allreduce_(torch.ones(2), name="x", op=hvd.Sum).tolist() == [size] * 2


@body()
def groups(hvd: ModuleType, rank: int, size: int) -> None:
    for step in range(steps_of(rank)):
        pair = hvd.grouped_allreduce([torch.ones(3), torch.ones(2, dtype=torch.int64)], name="g", op=hvd.Sum)
        assert [t[0].item() for t in pair] == [len(active(step, size))] * 2
    hvd.join()


@body(sizes=(2, 3, 4))
def others_are_refused_while_a_rank_has_joined(hvd: ModuleType, rank: int, size: int) -> None:
    if rank == 0:
        assert hvd.join() in range(size)
        return
    operations: list[Callable[[], object]] = [
        lambda: hvd.allgather(torch.ones(2), name="x"),
        lambda: hvd.broadcast(torch.ones(2), 1, name="x"),
        lambda: hvd.alltoall(torch.ones(2 * size), name="x"),
        lambda: hvd.reducescatter(torch.ones(2 * size), name="x"),
    ]
    for operation in operations:
        with raises(hvd.HorovodInternalError, "join"):
            operation()
    hvd.join()


@body(sizes=(2, 3, 4))
def a_barrier_counts_who_has_joined(hvd: ModuleType, rank: int, size: int) -> None:
    """As in Horovod: it holds up those who still work, and does not need those who have joined."""
    for round in range(3):
        for step in range(steps_of(rank)):
            hvd.barrier()
            result = hvd.allreduce(torch.ones(2), name=f"{round}.{step}", op=hvd.Sum)
            check(result, torch.full((2,), float(len(active(step, size)))))
            hvd.barrier()
        assert hvd.join() == size - 1
    hvd.barrier()  # of everybody again
    check(hvd.allreduce(torch.ones(2), name="after", op=hvd.Sum), torch.full((2,), float(size)))


@body()
def again_and_again(hvd: ModuleType, rank: int, size: int) -> None:
    for round in range(5):
        last = (round % size + size - 1) % size
        for step in range(1 + (rank == last) * 2):
            hvd.allreduce(torch.ones(1), name=f"{step}", op=hvd.Sum)
        assert hvd.join() in range(size)


@body()
def unnamed_calls_match_again_after_a_join(hvd: ModuleType, rank: int, size: int) -> None:
    """Ranks that made different numbers of unnamed calls before they joined count from the same number afterwards."""
    for _ in range(steps_of(rank)):
        hvd.allreduce(torch.ones(2))
    hvd.join()
    check(hvd.allreduce(torch.tensor([float(rank)]), op=hvd.Sum), torch.tensor([size * (size - 1) / 2]))
    assert hvd.allgather(torch.tensor([rank])).tolist() == list(range(size))
