"""Any order, by name: handles, polling, and operations submitted differently on every rank."""

from __future__ import annotations

import random
import threading
import time
from types import ModuleType

import torch
from tests.multi.body import body
from tests.multi.data import check, combine, process_sets, raises, strided, tensor, tensors
from tests.prompt import PROMPT_S


@body()
def two_hundred_in_any_order(hvd: ModuleType, rank: int, size: int) -> None:
    names = [f"t{i}" for i in range(200)]
    for repeat in range(3):  # the first time names are new, later they are known
        order = random.Random(rank * 1000 + repeat).sample(names, len(names))
        own = {name: tensor(rank, (1 + len(name) * 13,), seed=name) for name in names}
        handles = {name: hvd.allreduce_async_(own[name], name=name, op=hvd.Sum) for name in order}
        for name in random.Random(rank).sample(names, len(names)):
            result = hvd.synchronize(handles[name])
            check(result, combine(hvd.Sum, tensors(range(size), result.shape, seed=name)), name)


@body()
def kinds_mixed_in_any_order(hvd: ModuleType, rank: int, size: int) -> None:
    """Kinds have their own name spaces: the same name is a different operation for each."""
    own = tensor(rank, (size * 2, 3))
    parts = tensors(range(size), (size * 2, 3))
    kinds = {
        "allreduce": lambda name: hvd.allreduce_async(own, name=name, op=hvd.Sum),
        "allgather": lambda name: hvd.allgather_async(own, name=name),
        "broadcast": lambda name: hvd.broadcast_async(own, 0, name=name),
        "alltoall": lambda name: hvd.alltoall_async(own, name=name),
        "reducescatter": lambda name: hvd.reducescatter_async(own, name=name, op=hvd.Sum),
        "grouped": lambda name: hvd.grouped_allreduce_async([own, own], name=name, op=hvd.Sum),
    }
    expected = {
        "allreduce": combine(hvd.Sum, parts),
        "allgather": torch.cat(parts),
        "broadcast": parts[0],
        "alltoall": torch.cat([part[2 * rank : 2 * rank + 2] for part in parts]),
        "reducescatter": combine(hvd.Sum, parts)[2 * rank : 2 * rank + 2],
    }
    jobs = [(kind, f"n{i}") for kind in kinds for i in range(8)]
    random.Random(rank).shuffle(jobs)
    handles = {job: kinds[job[0]](job[1]) for job in jobs}
    for (kind, name), handle in handles.items():
        result = hvd.synchronize(handle)
        if kind == "grouped":
            for part in result:
                check(part, expected["allreduce"], name)
        else:
            check(result, expected[kind], (kind, name))


@body()
def fused_types_and_operations(hvd: ModuleType, rank: int, size: int) -> None:
    """Many small tensors of all types in flight at once: whatever is fused, every result is right."""
    jobs = [
        (dtype, op, count)
        for dtype in (torch.float32, torch.float16, torch.int32, torch.uint8)
        for op in (hvd.Sum, hvd.Max, hvd.Average)
        for count in (1, 7, 64, 1025)
    ]
    random.Random(rank).shuffle(jobs)
    handles = {
        job: hvd.allreduce_async(tensor(rank, (job[2],), job[0]), name=f"{job[0]}.{job[1].name}.{job[2]}", op=job[1])
        for job in jobs
    }
    for (dtype, op, count), handle in handles.items():
        check(hvd.synchronize(handle), combine(op, tensors(range(size), (count,), dtype)), (dtype, op, count))


@body()
def polling(hvd: ModuleType, rank: int, size: int) -> None:
    if size > 1 and rank == 0:
        handle = hvd.allreduce_async(torch.ones(3), name="late", op=hvd.Sum)
        assert not hvd.poll(handle), "the others have not submitted it yet"
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(3), name="late", op=hvd.Sum)
    deadline = time.monotonic() + 10
    while not hvd.poll(handle):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert hvd.synchronize(handle).tolist() == [size] * 3


@body()
def handles_are_used_once(hvd: ModuleType, rank: int, size: int) -> None:
    handle = hvd.allreduce_async(torch.ones(1), name="x")
    hvd.synchronize(handle)
    assert hvd.poll(handle) and hvd.synchronize(handle) is None, "as Horovod has it"
    for wrong in (987654321, 0, "x"):
        with raises(hvd.UsageError, repr(wrong)):
            hvd.synchronize(wrong)
        with raises(hvd.UsageError, repr(wrong)):
            hvd.poll(wrong)


@body()
def names_may_be_used_again(hvd: ModuleType, rank: int, size: int) -> None:
    for length in (3, 3, 5, 3):  # also with another shape
        check(hvd.allreduce(torch.ones(length), name="x", op=hvd.Sum), torch.full((length,), float(size)))
    for op in (hvd.Sum, hvd.Max, hvd.Sum):
        assert hvd.allreduce(torch.ones(1), name="x", op=op).item() == (size if op is hvd.Sum else 1)


@body()
def in_place_again_and_again(hvd: ModuleType, rank: int, size: int) -> None:
    """The second call under a name takes a shorter way; nothing else may differ, whatever changes between calls."""
    for step in range(20):
        own = torch.full((3,), float(rank + step))
        assert hvd.allreduce_(own, name="x", op=hvd.Sum) is own
        check(own, torch.full((3,), float(sum(r + step for r in range(size)))))
    for op, dtype, shape in (
        (hvd.Max, torch.float32, (3,)),
        (hvd.Average, torch.float32, (3,)),
        (hvd.Sum, torch.float64, (3,)),
        (hvd.Sum, torch.int32, (3,)),
        (hvd.Sum, torch.float32, (1, 3)),
        (hvd.Sum, torch.float32, (70001,)),
        (hvd.Sum, torch.float32, (3,)),
    ):
        for repeat in range(3):
            parts = tensors(range(size), shape, dtype, seed=str(repeat))
            expected = combine(op, parts)  # before parts[rank] is overwritten
            check(hvd.allreduce_(parts[rank], name="x", op=op), expected, (op, dtype, shape, repeat))
    for change in (strided, torch.clone, strided):
        parts = tensors(range(size), (3,))
        check(hvd.allreduce_(change(parts[rank]), name="x", op=hvd.Sum), combine(hvd.Sum, parts))
    handle = hvd.allreduce_async_(torch.ones(3), name="x", op=hvd.Sum)  # the long way in between
    assert hvd.synchronize(handle).tolist() == [size] * 3
    assert hvd.allreduce_(torch.ones(3), name="x", op=hvd.Sum).tolist() == [size] * 3


@body()
def in_place_again_after_init(hvd: ModuleType, rank: int, size: int) -> None:
    for _ in range(3):
        for _ in range(3):
            assert hvd.allreduce_(torch.ones(2), name="x", op=hvd.Sum).tolist() == [size] * 2
        hvd.shutdown()
        with raises(hvd.NotInitializedError):
            hvd.allreduce_(torch.ones(2), name="x", op=hvd.Sum)
        hvd.init()


@body()
def in_place_again_in_sets(hvd: ModuleType, rank: int, size: int) -> None:
    for _ in range(2):  # sets of the same ranks come again under new numbers
        with process_sets(hvd, size) as every:
            for process_set in every:
                for _ in range(3 * process_set.included()):
                    result = hvd.allreduce_(torch.ones(2), name="x", op=hvd.Sum, process_set=process_set)
                    assert result.tolist() == [process_set.size()] * 2


@body()
def barrier(hvd: ModuleType, rank: int, size: int) -> None:
    for late in range(size):
        begin = time.monotonic()
        if rank == late:
            time.sleep(0.05)
        hvd.barrier()
        assert time.monotonic() - begin < PROMPT_S
    arrived = hvd.allgather(torch.tensor([time.monotonic()], dtype=torch.float64))  # one host: one clock
    hvd.barrier()
    assert time.monotonic() >= arrived.max().item()


@body()
def several_threads(hvd: ModuleType, rank: int, size: int) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(20):
                result = hvd.allreduce(torch.full((4,), float(number)), name=f"thread.{number}.{step}", op=hvd.Sum)
                check(result, torch.full((4,), float(number * size)))
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures and not any(thread.is_alive() for thread in threads), failures


@body()
def forgotten_inputs_stay_alive(hvd: ModuleType, rank: int, size: int) -> None:
    handles = [hvd.allreduce_async(torch.full((5000,), float(i)), name=f"{i}", op=hvd.Sum) for i in range(50)]
    clutter = [torch.full((5000,), -1.0) for _ in range(100)]
    for i, handle in enumerate(handles):
        check(hvd.synchronize(handle), torch.full((5000,), float(i * size)))
    assert clutter


@body(sizes=(2, 3, 4))
def a_late_rank_is_waited_for(hvd: ModuleType, rank: int, size: int) -> None:
    """Longer than the core waits in one go; also by operations that are known and take the short way."""
    for turn in range(4):
        if rank == turn % size:
            time.sleep(0.5)  # being late, not a way to synchronise
        own = torch.full((4,), rank + 1.0)
        hvd.allreduce_(own, name="late", op=hvd.Sum)
        assert own.tolist() == [size * (size + 1) / 2] * 4


@body(sizes=(2, 3))
def a_name_in_flight_is_refused_on_the_short_way_too(hvd: ModuleType, rank: int, size: int) -> None:
    for _ in range(3):
        hvd.allreduce_(torch.ones(4), name="x", op=hvd.Sum)
    if rank == 0:  # before the others come: nobody can have finished it
        handle = hvd.allreduce_async_(torch.ones(4), name="x", op=hvd.Sum)
        with raises(hvd.DuplicateNameError, "x"):
            hvd.allreduce_(torch.ones(4), name="x", op=hvd.Sum)
        hvd.allreduce(torch.ones(1), name="go")
        assert hvd.synchronize(handle).tolist() == [size] * 4
    else:
        hvd.allreduce(torch.ones(1), name="go")
        assert hvd.allreduce_(torch.ones(4), name="x", op=hvd.Sum).tolist() == [size] * 4
