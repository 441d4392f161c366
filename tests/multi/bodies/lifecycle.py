"""Beginnings and ends: init, shutdown, init again, and process sets."""

from __future__ import annotations

from types import ModuleType

import torch
from tests.multi.body import body
from tests.multi.data import raises

from hora.config.world import is_homogeneous, places
from hora.engine.session import engine


@body()
def the_world(hvd: ModuleType, rank: int, size: int) -> None:
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size()) == (rank, size)
    hosts = [peer.host for peer in engine().peers]
    assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == places(hosts)[rank]
    assert hvd.is_homogeneous() == is_homogeneous(hosts)
    hvd.init()  # a second call changes nothing
    assert hvd.allgather(torch.tensor([rank])).tolist() == list(range(size))


@body()
def again_after_shutdown(hvd: ModuleType, rank: int, size: int) -> None:
    for _ in range(3):
        hvd.shutdown()
        assert not hvd.is_initialized()
        hvd.init()
        assert (hvd.rank(), hvd.size()) == (rank, size)
        assert hvd.allreduce(torch.ones(3), name="x", op=hvd.Sum).tolist() == [size] * 3
        assert hvd.allgather(torch.tensor([rank])).tolist() == list(range(size))


@body()
def nothing_works_before_init(hvd: ModuleType, rank: int, size: int) -> None:
    hvd.shutdown()
    hvd.shutdown()  # twice is fine
    for call in (
        hvd.rank,
        hvd.size,
        hvd.local_rank,
        lambda: hvd.allreduce(torch.ones(2)),
        lambda: hvd.allreduce_(torch.ones(2)),
        lambda: hvd.allgather_async(torch.ones(2)),
        lambda: hvd.alltoall(torch.ones(4)),
        lambda: hvd.reducescatter(torch.ones(4)),
        lambda: hvd.broadcast_object(1),
        hvd.barrier,
        hvd.join,
    ):
        with raises(hvd.NotInitializedError, "init()"):
            call()
        with raises(ValueError):  # as Horovod's scripts catch it
            call()
    hvd.init()


@body()
def process_sets_given_to_init(hvd: ModuleType, rank: int, size: int) -> None:
    hvd.shutdown()
    mine = hvd.ProcessSet([size - 1])
    sets = [mine] if size > 1 else []
    hvd.init(process_sets=sets)
    for process_set in sets:
        assert process_set.ranks == [size - 1] or tuple(process_set.ranks) == (size - 1,)
        assert process_set.included() == (rank == size - 1)
        assert process_set.size() == 1
        if process_set.included():
            assert process_set.rank() == 0
            assert hvd.allreduce(torch.ones(2), process_set=process_set, op=hvd.Sum).tolist() == [1, 1]
    hvd.shutdown()
    hvd.init()


@body(sizes=(2, 3, 4))
def process_sets_come_and_go(hvd: ModuleType, rank: int, size: int) -> None:
    for _ in range(3):
        lower = hvd.add_process_set([0])
        rest = hvd.add_process_set(hvd.ProcessSet(list(range(1, size))))
        own = lower if rank == 0 else rest
        assert own.included() and own.rank() == (0 if rank == 0 else rank - 1)
        result = hvd.allreduce(torch.ones(2), name="x", op=hvd.Sum, process_set=own)
        assert result.tolist() == [own.size()] * 2
        assert hvd.remove_process_set(lower)
        assert hvd.remove_process_set(rest)
    assert not hvd.remove_process_set(hvd.global_process_set)


@body(sizes=(2, 3, 4))
def process_sets_that_cannot_be(hvd: ModuleType, rank: int, size: int) -> None:
    once = hvd.add_process_set([0])
    with raises(ValueError):
        hvd.add_process_set([0])  # the same ranks again
    with raises(ValueError):
        hvd.add_process_set([0, size])  # no such rank
    hvd.remove_process_set(once)
    assert hvd.allreduce(torch.ones(1), name="next", op=hvd.Sum).item() == size


@body(sizes=(3, 4))
def sets_work_side_by_side(hvd: ModuleType, rank: int, size: int) -> None:
    """The same name on two sets is two operations, and they do not wait for each other."""
    even, odd = list(range(0, size, 2)), list(range(1, size, 2))
    sets = [hvd.add_process_set(even), hvd.add_process_set(odd)]
    own = sets[rank % 2]
    for step in range(20):
        result = hvd.allreduce(torch.full((3,), float(step)), name="x", op=hvd.Sum, process_set=own)
        assert result.tolist() == [step * own.size()] * 3
    for process_set in sets:
        hvd.remove_process_set(process_set)


@body()
def probes(hvd: ModuleType, rank: int, size: int) -> None:
    assert hvd.gloo_built() is True
    for probe in (
        hvd.mpi_built,
        hvd.mpi_enabled,
        hvd.gloo_enabled,
        hvd.ddl_built,
        hvd.ccl_built,
        hvd.cuda_built,
        hvd.rocm_built,
    ):
        assert isinstance(probe(), bool)
    assert isinstance(hvd.nccl_built(), int)
