"""Join: ranks that run out of data before the others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import ModuleType

import torch
from tests.multi.body import body
from tests.multi.data import check, raises, tensor

from hora.engine.explain import compact_ranks


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
    for average_active in (False, True, False):
        for step in range(steps_of(rank)):
            result = hvd.allreduce(torch.full((3,), 6.0), name="x", op=hvd.Average)
            brought = len(active(step, size))
            expected = 6.0 if average_active else 6.0 * brought / size
            check(result, torch.full((3,), expected), (average_active, step))
        assert hvd.join(average_active=average_active) == size - 1


@body(sizes=(3, 4))
def averages_where_ranks_say_different_things(hvd: ModuleType, rank: int, size: int) -> None:
    """They are over active ranks if one of the absent said so, whoever it was, and nobody remembers the last join."""
    for said in (*product((False, True), repeat=size), (False,) * size):
        for step in range(steps_of(rank)):
            expected = 12.0 if any(said[:step]) else 12.0 * len(active(step, size)) / size
            for count in (3, 5000):
                result = hvd.allreduce(torch.full((count,), 12.0), name=f"x{count}", op=hvd.Average)
                check(result, torch.full((count,), expected), (said, step))
        assert hvd.join(average_active=said[rank]) == size - 1


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


@body(sizes=(2, 4))
def adasum_is_refused_while_a_rank_has_joined(hvd: ModuleType, rank: int, size: int) -> None:
    """Also if those who are left are a power of two: an Adasum of fewer ranks is another result."""
    for step in range(steps_of(rank)):
        hvd.allreduce(torch.ones(2), name="step", op=hvd.Sum)
        if step:
            joined = compact_ranks(range(step))
            with raises(hvd.HorovodInternalError, f"{joined} {'has' if step == 1 else 'have'} joined"):
                hvd.allreduce(torch.ones(4), name="ada", op=hvd.Adasum)
            with raises(hvd.HorovodInternalError, "but Adasum needs all members"):
                hvd.allreduce(torch.ones(5000), name="large", op=hvd.Adasum)
        else:
            check(hvd.allreduce(torch.ones(4), name="ada", op=hvd.Adasum), torch.ones(4))
    hvd.join()
    check(hvd.allreduce(torch.ones(4), name="ada", op=hvd.Adasum), torch.ones(4))


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


@body(sizes=(2, 3, 4))
def what_was_not_waited_for_before_is_there_after(hvd: ModuleType, rank: int, size: int) -> None:
    """Submitted by ranks that join early, before the others come to it, and by the last, who joins at once."""
    for early in range(size):
        for count in (3, 5000, 200_003):
            if rank != early:  # so that they come to "x" after that rank has joined
                hvd.allreduce(torch.ones(2), name=f"busy {count}", op=hvd.Sum)
            handle = hvd.allreduce_async(torch.full((count,), rank + 1.0), name="x", op=hvd.Sum)
            hvd.join()
            check(hvd.synchronize(handle), torch.full((count,), size * (size + 1) / 2))


@body(sizes=(2, 3, 4))
def another_shape_under_the_same_name_after_a_join(hvd: ModuleType, rank: int, size: int) -> None:
    """A rank that had joined is back while the others may still carry out what they did without it."""
    for round in range(12):
        count = (3, 5000, 70_001)[round % 3]
        for step in range(steps_of((rank + round) % size)):
            present = [r for r in range(size) if steps_of((r + round) % size) > step]
            result = hvd.allreduce(torch.full((count,), float(rank + step)), name="x", op=hvd.Sum)
            check(result, torch.full((count,), float(sum(r + step for r in present))), (round, step))
        assert (hvd.join() + round) % size == size - 1


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
