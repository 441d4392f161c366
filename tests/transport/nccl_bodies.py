"""What ``test_nccl`` tries, in a process with the stand-in device: ``python -m tests.transport.nccl_bodies``.

The ranks are threads, each with a device of its own. Prints a JSON object: what was wrong, by the name of the body.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests import device as standin
from tests.device import nccl
from tests.transport.mpi_bodies import sample
from tests.transport.test_gloo import Store

from hora.errors import HorovodInternalError
from hora.transport import device
from hora.transport.arithmetic import adasum, reduce_parts, widen
from hora.transport.gloo import GlooMover
from hora.transport.nccl import NcclMover
from hora.types import Buffer, DType, ReduceOp

SIZE = 3
EVERYONE = tuple(range(SIZE))
Array = np.ndarray[Any, Any]
Body = Callable[[NcclMover, int], Any]
BODIES: dict[str, Callable[[], None]] = {}


def body(function: Callable[[], None]) -> Callable[[], None]:
    BODIES[function.__name__] = function
    return function


def run(body: Body, size: int = SIZE) -> list[Any]:
    """The body's result on each rank, a thread each; what it raises is its result."""
    nccl.groups.clear()
    nccl.recorded.clear()
    store, results = Store(), [None] * size
    movers = [NcclMover(rank, GlooMover(rank, store), store, meet_s=10.0) for rank in range(size)]

    def one(rank: int) -> None:
        try:
            device.current(rank, standin.KIND)
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
    return results


def tensor(array: Array, dtype: DType) -> torch.Tensor:
    typed = torch.from_numpy(array.copy())
    return (typed.view(torch.bfloat16) if dtype is DType.BFLOAT16 else typed).to(standin.KIND)


def buffer(tensor: torch.Tensor, dtype: DType) -> Buffer:
    ready = device.mark(tensor.device)
    return Buffer(tensor.data_ptr(), dtype, tuple(tensor.shape), tensor, standin.KIND, ready)


def as_numpy(mover: NcclMover, tensor: torch.Tensor, dtype: DType) -> Array:
    device.follow(mover.mark(), tensor.device)
    host = tensor.cpu()
    found: Array = (host.view(torch.int16) if dtype is DType.BFLOAT16 else host).numpy().view(dtype.numpy)
    return found


def alike(found: Array, expected: Array, dtype: DType) -> bool:
    if dtype not in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64):
        return bool((found == expected).all())
    tolerance = {DType.FLOAT16: 4e-3, DType.BFLOAT16: 3e-2, DType.FLOAT32: 1e-5, DType.FLOAT64: 1e-12}[dtype]
    a, b = widen(found, dtype).astype("float64"), widen(expected, dtype).astype("float64")
    return np.allclose(a, b, rtol=tolerance, atol=50 * tolerance)


def allreduce(mover: NcclMover, values: Any, dtype: DType, op: ReduceOp = ReduceOp.SUM, **how: Any) -> Any:
    """In place, over everyone; the caller's stream then waits for it."""
    found = values if isinstance(values, Buffer) else buffer(values, dtype)
    among = {"members": EVERYONE, "contributors": EVERYONE, "divisor": SIZE, **how}
    mover.allreduce([found], [found], op=op, prescale=1.0, postscale=1.0, **among)
    if found.device != "cpu":
        device.follow(mover.mark(), found.owner.device)
    return found.owner


@contextlib.contextmanager
def one_device_for_all() -> Iterator[None]:
    os.environ["STANDIN_NAMES"] = "one,one,one,one"
    try:
        yield
    finally:
        del os.environ["STANDIN_NAMES"]


@body
def reductions() -> None:
    ops = (ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MIN, ReduceOp.MAX)
    factors = ((1.0, 1.0), (0.5, 3.0))

    def body(mover: NcclMover, rank: int) -> list[str]:
        wrong = []
        for dtype, op, (prescale, postscale), in_place in product(DType, ops, factors, (True, False)):
            how = {"op": op, "prescale": prescale, "postscale": postscale, "divisor": SIZE, "members": EVERYONE}
            for counts in ([5], [1, 700, 0, 33]):
                inputs = [tensor(sample(dtype, rank, count), dtype) for count in counts]
                outputs = inputs if in_place else [torch.empty_like(t) for t in inputs]
                mover.allreduce(
                    [buffer(t, dtype) for t in inputs], [buffer(t, dtype) for t in outputs], contributors=EVERYONE,
                    **how,  # type: ignore[arg-type]
                )  # fmt: skip
                for count, output in zip(counts, outputs, strict=True):
                    parts = [sample(dtype, r, count) for r in EVERYONE]
                    expected = reduce_parts(parts, dtype, op, prescale, postscale, SIZE)
                    if not alike(as_numpy(mover, output, dtype), expected, dtype):
                        wrong.append(f"allreduce {op.name} {dtype.name} {prescale} {count} of {counts}")
            if op in (ReduceOp.SUM, ReduceOp.AVERAGE) and in_place:
                shares, low = [30, 20, 20], [0, 30, 50][rank]
                share = tensor(np.zeros(shares[rank], dtype.numpy), dtype)
                source = tensor(sample(dtype, rank, 70), dtype)
                mover.reducescatter(buffer(source, dtype), buffer(share, dtype), counts=shares, **how)  # type: ignore[arg-type]
                expected = reduce_parts([sample(dtype, r, 70) for r in EVERYONE], dtype, op, prescale, postscale, SIZE)
                if not alike(as_numpy(mover, share, dtype), expected[low : low + shares[rank]], dtype):
                    wrong.append(f"reducescatter {op.name} {dtype.name} {prescale}")
        return wrong

    assert (found := run(body)) == [[]] * SIZE, found
    assert nccl.groups


def movements(mover: NcclMover, rank: int) -> list[str]:
    wrong = []
    for dtype in DType:
        for sizes in ([4, 4, 4], [1, 0, 30], [0, 0, 0]):
            mine = buffer(tensor(sample(dtype, rank, sizes[rank]), dtype), dtype)
            memory = mover.allocate(sum(sizes) * dtype.itemsize, mine)
            output = Buffer(memory.data_ptr(), dtype, (sum(sizes),), memory, standin.KIND)
            mover.allgather(mine, output, nbytes=[n * dtype.itemsize for n in sizes], members=EVERYONE)
            expected = b"".join(sample(dtype, r, sizes[r]).tobytes() for r in EVERYONE)
            if as_numpy(mover, memory, DType.UINT8).tobytes() != expected:
                wrong.append(f"allgather {dtype.name} {sizes}")
            device.keep(memory)
        for root in EVERYONE:
            source, target = (tensor(sample(dtype, rank, 7), dtype) for _ in range(2))
            mover.broadcast(buffer(source, dtype), buffer(target, dtype), root=root, members=EVERYONE)
            if as_numpy(mover, target, dtype).tobytes() != sample(dtype, root, 7).tobytes():
                wrong.append(f"broadcast {dtype.name} from {root}")
        # Rank r sends r + 2 * i elements to rank i, and keeps one that nobody gets.
        sent = [(rank + 2 * i) * dtype.itemsize for i in EVERYONE]
        received = [(r + 2 * rank) * dtype.itemsize for r in EVERYONE]
        mine = buffer(tensor(sample(dtype, rank, sum(sent) // dtype.itemsize + 1), dtype), dtype)
        memory = mover.allocate(sum(received), mine)
        output = Buffer(memory.data_ptr(), dtype, (sum(received) // dtype.itemsize,), memory, standin.KIND)
        mover.alltoall(mine, output, sent=sent, received=received, members=EVERYONE)
        parts = []
        for r in EVERYONE:
            cuts = np.cumsum([0, *(r + 2 * i for i in EVERYONE)])
            parts.append(sample(dtype, r, cuts[-1] + 1)[cuts[rank] : cuts[rank + 1]].tobytes())
        if as_numpy(mover, memory, DType.UINT8).tobytes() != b"".join(parts):
            wrong.append(f"alltoall {dtype.name}")
        device.keep(memory)
    return wrong


@body
def movements_by_nccl() -> None:
    assert (found := run(movements)) == [[]] * SIZE, found
    assert len(nccl.groups) == SIZE


@body
def movements_through_the_host() -> None:
    with one_device_for_all():
        assert (found := run(movements)) == [[]] * SIZE, found
    assert not nccl.groups


@body
def what_nccl_cannot_do_goes_through_pinned_memory() -> None:
    def body(mover: NcclMover, rank: int) -> Any:
        everyone = {"members": (0, 1, 2, 3), "contributors": (0, 1, 2, 3), "divisor": 4}
        values = tensor(sample(DType.FLOAT32, rank, 40), DType.FLOAT32)
        allreduce(mover, values, DType.FLOAT32, ReduceOp.ADASUM, **everyone)
        expected = adasum([sample(DType.FLOAT32, r, 40) for r in range(4)], DType.FLOAT32, 1.0, 1.0)
        whole = torch.tensor([rank, -7], device=standin.KIND)
        averaged = allreduce(mover, whole, DType.INT64, ReduceOp.AVERAGE, **everyone)
        return values.cpu().numpy().tobytes() == expected.tobytes(), averaged.tolist()

    before = [standin.count(what) for what in ("to pinned", "from pinned", "synchronize")]
    assert run(body, 4) == [(True, [1, -7])] * 4
    after = [standin.count(what) for what in ("to pinned", "from pinned", "synchronize")]
    assert [b - a for a, b in zip(before, after, strict=True)] == [8, 8, 8], (before, after)
    assert not nccl.groups


@body
def only_contributors_take_part() -> None:
    def body(mover: NcclMover, rank: int) -> Any:
        values = torch.full((10,), rank + 1.0, device=standin.KIND)
        buffers = [buffer(values, DType.FLOAT32)] if rank != 1 else []
        mover.allreduce(
            buffers, buffers, op=ReduceOp.AVERAGE, prescale=1.0, postscale=1.0, members=EVERYONE, contributors=(0, 2),
            divisor=3,
        )  # fmt: skip
        if rank != 1:
            device.follow(mover.mark(), values.device)
        return round(values[0].item(), 4)

    assert (found := run(body)) == [1.3333, 2.0, 1.3333], found


@body
def what_is_on_the_host_never_meets_nccl() -> None:
    def body(mover: NcclMover, rank: int) -> float:
        array = np.full(3, rank + 1.0)
        allreduce(mover, Buffer(array.ctypes.data, DType.FLOAT64, array.shape, array), DType.FLOAT64)
        return float(array[0])

    assert (run(body), nccl.groups, nccl.recorded) == ([6.0] * 3, [], [])


@body
def a_result_that_was_not_waited_for_is_an_error() -> None:
    """The stand-in notices; so all the other bodies, which raise nothing, wait where they have to."""

    def body(mover: NcclMover, rank: int) -> str:
        values = torch.ones(4, device=standin.KIND)
        found = buffer(values, DType.FLOAT32)
        mover.allreduce(
            [found], [found], op=ReduceOp.SUM, prescale=1.0, postscale=1.0, members=EVERYONE, contributors=EVERYONE,
            divisor=3,
        )  # fmt: skip
        finished = mover.mark()
        try:
            values.sum().item()
        except RuntimeError as error:
            device.follow(finished, values.device)
            return f"{'without having waited' in str(error)} {values.sum().item()}"
        return "it could be read"

    assert (found := run(body)) == ["True 12.0"] * 3, found
    assert len(standin.faults()) == 3


@body
def data_that_is_not_ready_is_an_error() -> None:
    def body(mover: NcclMover, rank: int) -> str:
        stream = device.stream(torch.device(standin.KIND, rank))
        too_early = device.mark(torch.device(standin.KIND, rank))
        with device.on(stream):
            values = torch.ones(4, device=standin.KIND)
        found = Buffer(values.data_ptr(), DType.FLOAT32, (4,), values, standin.KIND, too_early)
        try:
            allreduce(mover, found, DType.FLOAT32, ReduceOp.SUM, members=(rank,), contributors=(rank,), divisor=1)
        except HorovodInternalError as error:
            device.settle(stream)
            return str("without having waited" in str(error))
        return "it was sent"

    assert (found := run(body)) == ["True"] * 3, found
    assert len(standin.faults()) == 3


@body
def the_calls_of_nccl_in_their_order() -> None:
    def body(mover: NcclMover, rank: int) -> None:
        for _ in range(2):
            allreduce(mover, torch.ones(4, device=standin.KIND), DType.FLOAT32, members=(rank,), contributors=(rank,))

    run(body, 1)
    expected = ["ncclGetUniqueId", "ncclCommInitRank 0 of 1", "ncclAllReduce", "ncclAllReduce", "ncclCommAbort"]
    assert nccl.recorded == expected, nccl.recorded

    def exchange(mover: NcclMover, rank: int) -> None:
        mine = buffer(torch.arange(6, dtype=torch.uint8, device=standin.KIND), DType.UINT8)
        memory = mover.allocate(6, mine)
        output = Buffer(memory.data_ptr(), DType.UINT8, (6,), memory, standin.KIND)
        mover.alltoall(mine, output, sent=[2, 2, 2], received=[2, 2, 2], members=EVERYONE)
        device.follow(mover.mark(), memory.device)
        device.keep(memory)

    run(exchange)
    assert (nccl.recorded.count("ncclGroupStart"), nccl.recorded.count("ncclGroupEnd")) == (3, 3)
    assert [nccl.recorded.count(f"ncclSend to {r}") for r in EVERYONE] == [3, 3, 3]


@body
def an_error_in_the_background_is_told_at_the_next_call() -> None:
    def body(mover: NcclMover, rank: int) -> str:
        values = torch.ones(4, device=standin.KIND)
        allreduce(mover, values, DType.FLOAT32, members=(rank,), contributors=(rank,))
        for group in nccl.groups:
            group.failure = "the link is down"
        try:
            allreduce(mover, values, DType.FLOAT32, members=(rank,), contributors=(rank,))
        except HorovodInternalError as error:
            return str(error)
        return ""

    assert run(body, 1) == ["NCCL can no longer move data: a communicator failed meanwhile (COMM_ERROR)"]


@body
def all_decide_together_and_one_says_so_once() -> None:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("hora").addHandler(handler)

    def body(mover: NcclMover, rank: int) -> list[float]:
        values = [torch.full((4,), 1.0 + rank, device=standin.KIND) for _ in range(2)]
        return [allreduce(mover, value, DType.FLOAT32)[0].item() for value in values]

    with one_device_for_all():
        assert run(body) == [[6.0, 6.0]] * 3
    [text] = said
    assert "ranks [0, 1, 2] use the same GPU" in text, text
    said.clear()
    library = dist.ProcessGroupStandin  # type: ignore[attr-defined]
    del dist.ProcessGroupStandin  # type: ignore[attr-defined]
    assert run(body) == [[6.0, 6.0]] * 3
    dist.ProcessGroupStandin = library  # type: ignore[attr-defined]
    [text] = said
    assert "rank 0 has no NCCL (torch" in text and not nccl.groups, text


@body
def after_an_abort_it_raises() -> None:
    def body(mover: NcclMover, rank: int) -> str:
        allreduce(mover, torch.ones(4, device=standin.KIND), DType.FLOAT32)
        mover.abort("rank 1 died")
        try:
            allreduce(mover, torch.ones(4, device=standin.KIND), DType.FLOAT32)
        except HorovodInternalError as error:
            return str("rank 1 died" in str(error))
        return "nothing"

    assert run(body) == ["True"] * 3 and all(group.aborted for group in nccl.groups)


@body
def a_rank_that_does_not_say_which_device_it_uses_is_an_error_in_time() -> None:
    store = Store()
    mover = NcclMover(0, GlooMover(0, store), store, meet_s=0.2)
    try:
        allreduce(mover, torch.ones(4, device=standin.KIND), DType.FLOAT32)
    except HorovodInternalError as error:
        assert "rank 1 did not say" in str(error)
    else:
        raise AssertionError("it went on")
    mover.close()
    mover.close()


@body
def connections_go_over_the_interface_that_is_named() -> None:
    store = Store()
    mover = NcclMover(0, GlooMover(0, store), store, interface="eth7")
    allreduce(mover, torch.ones(4, device=standin.KIND), DType.FLOAT32, members=(0,), contributors=(0,))
    assert nccl.groups[-1].interface == "eth7"
    os.environ["NCCL_SOCKET_IFNAME"] = "ib0"  # the user's choice
    other = NcclMover(0, GlooMover(0, store), store, interface="eth7")
    allreduce(other, torch.ones(4, device=standin.KIND), DType.FLOAT32, members=(0,), contributors=(0,))
    assert nccl.groups[-1].interface == "ib0"
    mover.close()
    other.close()


@body
def tensors_of_another_device_of_the_same_process() -> None:
    store = Store()
    mover = NcclMover(0, GlooMover(0, store), store)
    alone = {"members": (0,), "contributors": (0,), "divisor": 1}
    allreduce(mover, torch.ones(4, device=f"{standin.KIND}:0"), DType.FLOAT32, **alone)
    elsewhere = torch.full((4,), 5.0, device=f"{standin.KIND}:2")
    found = buffer(elsewhere, DType.FLOAT32)
    mover.allreduce([found], [found], op=ReduceOp.AVERAGE, prescale=2.0, postscale=1.0, **alone)  # type: ignore[arg-type]
    device.follow(mover.mark(), elsewhere.device)
    assert elsewhere.tolist() == [10.0] * 4, elsewhere
    mover.close()


def main() -> None:
    os.environ["STANDIN_DEVICES"] = "4"
    nccl.install()
    said = {}
    for name, function in BODIES.items():
        standin.faults()
        try:
            function()
            said[name] = "\n".join(standin.faults())
        except BaseException:
            said[name] = traceback.format_exc()
    os.write(1, json.dumps(said).encode() + b"\n")


if __name__ == "__main__":
    main()
