"""The mover for GPUs with a stand-in for the GPU and for NCCL: values, what goes through the host, order of streams."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
from tests.transport.fake_cuda import FakeCuda, installed  # noqa: E402
from tests.transport.mpi_bodies import sample  # noqa: E402
from tests.transport.test_gloo import Store  # noqa: E402

from hora.errors import HorovodInternalError  # noqa: E402
from hora.transport import cuda  # noqa: E402
from hora.transport.arithmetic import adasum, reduce_parts, widen  # noqa: E402
from hora.transport.base import Buffer, DType, ReduceOp  # noqa: E402
from hora.transport.gloo import GlooMover  # noqa: E402
from hora.transport.nccl import NcclMover  # noqa: E402

SIZE = 3
EVERYONE = tuple(range(SIZE))
Array = np.ndarray[Any, Any]
Body = Callable[[NcclMover, int], Any]


def run(body: Body, size: int = SIZE, fake: FakeCuda | None = None) -> tuple[list[Any], FakeCuda]:
    """The body's result on each rank, a thread each; what it raises is its result."""
    with installed(fake or FakeCuda()) as device:
        store, results = Store(), [None] * size
        movers = [NcclMover(rank, GlooMover(rank, store), store, meet_s=10.0) for rank in range(size)]

        def one(rank: int) -> None:
            try:
                results[rank] = body(movers[rank], rank)
            except Exception as error:
                results[rank] = error  # type: ignore[call-overload]

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        for mover in movers:
            mover.close()
    return results, device


def tensor(array: Array, dtype: DType) -> Any:
    typed = torch.from_numpy(array.copy())
    return typed.view(torch.bfloat16) if dtype is DType.BFLOAT16 else typed


def buffer(tensor: Any, dtype: DType) -> Buffer:
    return Buffer(tensor.data_ptr(), dtype, tuple(tensor.shape), tensor, "cuda", cuda.device.mark(tensor.device))


def as_numpy(tensor: Any, dtype: DType) -> Array:
    found: Array = (tensor.view(torch.int16) if dtype is DType.BFLOAT16 else tensor).numpy().view(dtype.numpy)
    return found


def alike(found: Array, expected: Array, dtype: DType) -> bool:
    if dtype not in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64):
        return bool((found == expected).all())
    tolerance = {DType.FLOAT16: 4e-3, DType.BFLOAT16: 3e-2, DType.FLOAT32: 1e-5, DType.FLOAT64: 1e-12}[dtype]
    a, b = widen(found, dtype).astype("float64"), widen(expected, dtype).astype("float64")
    return np.allclose(a, b, rtol=tolerance, atol=50 * tolerance)


@pytest.mark.parametrize("dtype", list(DType))
def test_reductions(dtype: DType) -> None:
    ops = (ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MIN, ReduceOp.MAX)
    factors = ((1.0, 1.0), (0.5, 3.0))

    def body(mover: NcclMover, rank: int) -> list[str]:
        wrong = []
        for op, (prescale, postscale), in_place in product(ops, factors, (True, False)):
            how = {"op": op, "prescale": prescale, "postscale": postscale, "divisor": SIZE, "members": EVERYONE}
            for counts in ([5], [1, 700, 0, 33]):
                arrays = [sample(dtype, rank, count) for count in counts]
                inputs = [tensor(array, dtype) for array in arrays]
                outputs = inputs if in_place else [torch.empty_like(t) for t in inputs]
                mover.allreduce(
                    [buffer(t, dtype) for t in inputs], [buffer(t, dtype) for t in outputs], contributors=EVERYONE,
                    **how,  # type: ignore[arg-type]
                )  # fmt: skip
                for count, output in zip(counts, outputs, strict=True):
                    parts = [sample(dtype, r, count) for r in EVERYONE]
                    if not alike(
                        as_numpy(output, dtype), reduce_parts(parts, dtype, op, prescale, postscale, SIZE), dtype
                    ):
                        wrong.append(f"allreduce {op.name} {prescale} {count} of {counts}")
            if op in (ReduceOp.SUM, ReduceOp.AVERAGE):
                shares, low = [30, 20, 20], [0, 30, 50][rank]
                share = tensor(np.zeros(shares[rank], dtype.numpy), dtype)
                source = tensor(sample(dtype, rank, 70), dtype)
                mover.reducescatter(buffer(source, dtype), buffer(share, dtype), counts=shares, **how)  # type: ignore[arg-type]
                expected = reduce_parts([sample(dtype, r, 70) for r in EVERYONE], dtype, op, prescale, postscale, SIZE)
                if not alike(as_numpy(share, dtype), expected[low : low + shares[rank]], dtype):
                    wrong.append(f"reducescatter {op.name} {prescale}")
        return wrong

    assert run(body)[0] == [[]] * SIZE


@pytest.mark.parametrize("shared", [False, True])
def test_movements(shared: bool) -> None:
    def body(mover: NcclMover, rank: int) -> list[str]:
        wrong = []
        for dtype in DType:
            for sizes in ([4, 4, 4], [1, 0, 30], [0, 0, 0]):
                mine = buffer(tensor(sample(dtype, rank, sizes[rank]), dtype), dtype)
                memory = mover.allocate(sum(sizes) * dtype.itemsize, mine)
                output = Buffer(memory.data_ptr(), dtype, (sum(sizes),), memory, "cuda")
                mover.allgather(mine, output, nbytes=[n * dtype.itemsize for n in sizes], members=EVERYONE)
                if memory.numpy().tobytes() != b"".join(sample(dtype, r, sizes[r]).tobytes() for r in EVERYONE):
                    wrong.append(f"allgather {dtype.name} {sizes}")
            for root in EVERYONE:
                source, target = (tensor(sample(dtype, rank, 7), dtype) for _ in range(2))
                mover.broadcast(buffer(source, dtype), buffer(target, dtype), root=root, members=EVERYONE)
                if as_numpy(target, dtype).tobytes() != sample(dtype, root, 7).tobytes():
                    wrong.append(f"broadcast {dtype.name} from {root}")
            # Rank r sends r + 2 * i elements to rank i, and keeps one that nobody gets.
            sent = [(rank + 2 * i) * dtype.itemsize for i in EVERYONE]
            received = [(r + 2 * rank) * dtype.itemsize for r in EVERYONE]
            mine = buffer(tensor(sample(dtype, rank, sum(sent) // dtype.itemsize + 1), dtype), dtype)
            memory = mover.allocate(sum(received), mine)
            output = Buffer(memory.data_ptr(), dtype, (sum(received) // dtype.itemsize,), memory, "cuda")
            mover.alltoall(mine, output, sent=sent, received=received, members=EVERYONE)
            parts = []
            for r in EVERYONE:
                cuts = np.cumsum([0, *(r + 2 * i for i in EVERYONE)])
                parts.append(sample(dtype, r, cuts[-1] + 1)[cuts[rank] : cuts[rank + 1]].tobytes())
            if memory.numpy().tobytes() != b"".join(parts):
                wrong.append(f"alltoall {dtype.name}")
        return wrong

    results, device = run(body, fake=FakeCuda(identity_of=lambda: "one for all") if shared else None)
    assert results == [[]] * SIZE
    assert bool(device.groups) is not shared


def allreduce(mover: NcclMover, values: Any, dtype: DType, op: ReduceOp = ReduceOp.SUM, **how: Any) -> Any:
    """In place, over everyone."""
    found = values if isinstance(values, Buffer) else buffer(values, dtype)
    among = {"members": EVERYONE, "contributors": EVERYONE, "divisor": SIZE, **how}
    mover.allreduce([found], [found], op=op, prescale=1.0, postscale=1.0, **among)
    return found.owner


def test_what_nccl_cannot_do_goes_through_the_host() -> None:
    def body(mover: NcclMover, rank: int) -> Any:
        everyone = (0, 1, 2, 3)
        values = tensor(sample(DType.FLOAT32, rank, 40), DType.FLOAT32)
        allreduce(mover, values, DType.FLOAT32, ReduceOp.ADASUM, members=everyone, contributors=everyone)
        expected = adasum([sample(DType.FLOAT32, r, 40) for r in everyone], DType.FLOAT32, 1.0, 1.0)
        averaged = allreduce(mover, torch.tensor([rank, -7]), DType.INT64, ReduceOp.AVERAGE, members=everyone,
                             contributors=everyone, divisor=4)  # fmt: skip
        return values.numpy().tobytes() == expected.tobytes(), averaged.tolist()

    results, device = run(body, 4)
    assert results == [(True, [1, -7])] * 4
    assert not device.groups
    assert [what for what, _, _ in device.log].count("settle") == 8  # before the host reads what the GPU wrote


def test_only_contributors_take_part_and_averages_divide_by_what_was_agreed() -> None:
    def body(mover: NcclMover, rank: int) -> Any:
        values = torch.full((10,), rank + 1.0)
        buffers = [buffer(values, DType.FLOAT32)] if rank != 1 else []
        mover.allreduce(
            buffers, buffers, op=ReduceOp.AVERAGE, prescale=1.0, postscale=1.0, members=EVERYONE, contributors=(0, 2),
            divisor=3,
        )  # fmt: skip
        return values[0].item()

    assert run(body)[0] == pytest.approx([4 / 3, 2.0, 4 / 3])


def test_what_is_on_the_host_never_meets_nccl() -> None:
    def body(mover: NcclMover, rank: int) -> float:
        array = np.full(3, rank + 1.0)
        host = Buffer(array.ctypes.data, DType.FLOAT64, array.shape, array)
        allreduce(mover, host, DType.FLOAT64)
        return float(array[0])

    results, device = run(body)
    assert (results, device.groups, list(device.log)) == ([6.0] * 3, [], [])


def test_streams_wait_for_each_other_in_order() -> None:
    def body(mover: NcclMover, rank: int) -> Any:
        values = torch.ones(4)
        found = buffer(values, DType.FLOAT32)
        allreduce(mover, found, DType.FLOAT32)
        finished = mover.mark()
        cuda.device.follow(finished, values.device)
        return found.ready, finished, values.data_ptr()

    results, device = run(body)
    for ready, finished, address in results:
        stream = finished.stream.name
        assert ready.stream.name.startswith("user") and stream.startswith("mover")
        on_mover = [(what, thing) for what, on, thing in device.log if on == stream]
        begun = on_mover.index(("allreduce", None))
        assert on_mover.index(("follow", ready)) < begun < on_mover.index(("mark", finished))
        assert on_mover.index(("keep", address)) < begun  # not given to others while the stream uses it
        assert ("follow", ready.stream.name, finished) in device.log


@pytest.mark.parametrize(
    ("fake", "said"),
    [
        (FakeCuda(identity_of=lambda: "GPU-1"), "ranks [0, 1, 2] use the same GPU"),
        (FakeCuda(why_not="torch has none"), "rank 0 has no NCCL (torch has none)"),
    ],
)
def test_all_decide_together_and_one_says_so_once(fake: FakeCuda, said: str, caplog: pytest.LogCaptureFixture) -> None:
    def body(mover: NcclMover, rank: int) -> list[float]:
        return [allreduce(mover, torch.full((4,), 1.0 + rank), DType.FLOAT32)[0].item() for _ in range(2)]

    with caplog.at_level(logging.WARNING, "hora"):
        results, device = run(body, fake=fake)
    assert (results, device.groups) == ([[6.0, 6.0]] * 3, [])
    assert len(caplog.records) == 1 and said in caplog.text


def test_after_an_abort_it_raises() -> None:
    def body(mover: NcclMover, rank: int) -> Any:
        allreduce(mover, torch.ones(4), DType.FLOAT32)
        mover.abort("rank 1 died")
        with pytest.raises(HorovodInternalError, match="rank 1 died"):
            allreduce(mover, torch.ones(4), DType.FLOAT32)

    results, device = run(body)
    assert results == [None] * 3 and all(group.aborted for group in device.groups)


def test_a_rank_that_does_not_say_which_gpu_it_uses_is_an_error_in_time() -> None:
    with installed(FakeCuda()):
        store = Store()
        mover = NcclMover(0, GlooMover(0, store), store, meet_s=0.2)
        with pytest.raises(HorovodInternalError, match="rank 1 did not say"):
            allreduce(mover, torch.ones(4), DType.FLOAT32)
        mover.close()
        mover.close()


def test_the_stand_in_has_the_methods_of_the_real_one() -> None:
    for name, method in inspect.getmembers(cuda.Cuda, inspect.isfunction):
        fake = getattr(FakeCuda, name)
        assert list(inspect.signature(fake).parameters) == list(inspect.signature(method).parameters), name


def test_the_calls_are_those_of_this_torch() -> None:
    """Torch binds them for all backends alike; the stand-in makes each of them on Gloo, but for this one."""
    signature = str(dist.ProcessGroupGloo._reduce_scatter_base.__doc__)
    assert "outputTensor: torch.Tensor, inputTensor: torch.Tensor, opts: " in signature
    assert "ReduceScatterOptions" in signature
    assert hasattr(dist.ReduceScatterOptions(), "reduceOp") and hasattr(dist.AllreduceOptions(), "reduceOp")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="hardware: no GPU")
def test_on_a_real_gpu_a_group_of_one_reduces_and_ends() -> None:
    store, values = Store(), torch.arange(5.0, device="cuda")
    mover = NcclMover(0, GlooMover(0, store), store)
    allreduce(mover, values, DType.FLOAT32, members=(0,), contributors=(0,), divisor=1)
    cuda.device.follow(mover.mark(), values.device)
    assert values.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    mover.close()
