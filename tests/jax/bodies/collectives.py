"""Every collective, eagerly and compiled, against numpy."""

from __future__ import annotations

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tests.jax.data import DTYPES, array, check, ways, wide

from hora.ops import host

COMBINE = {"Sum": np.sum, "Average": np.mean, "Min": np.min, "Max": np.max, "Product": np.prod}


def allreduce_every_dtype_and_op(hvd: Any, rank: int, size: int) -> None:
    ops = [op for op in COMBINE if op != "Average"]
    cases = [(d, op) for d, op in product(DTYPES, ops) if not (d == "bool" and op in ("Sum", "Product"))]
    cases += [(d, "Average") for d in ("float32", "float16", "bfloat16")]

    def all_of_them(mine: list[Any]) -> list[Any]:
        return [hvd.allreduce(x, name=f"{d}.{op}", op=getattr(hvd, op)) for x, (d, op) in zip(mine, cases, strict=True)]

    own = [array(rank, (3,), dtype) for dtype, _ in cases]
    for way, work in ways(all_of_them):
        for result, (dtype, op) in zip(work(own), cases, strict=True):
            exact = COMBINE[op](np.stack([wide(array(r, (3,), dtype)) for r in range(size)]), axis=0)
            check(result, np.asarray(jnp.asarray(exact, dtype)), (way, dtype, op), dtype)


def allreduce_shapes_and_factors(hvd: Any, rank: int, size: int) -> None:
    for shape in ((), (0,), (1,), (70001,), (5, 1, 7, 2)):
        for way, work in ways(
            lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)  # unnamed, too
        ):
            expected = 2 * np.sum([wide(array(r, shape)) for r in range(size)], axis=0)
            check(work(array(rank, shape)), expected, (way, shape))


def groups(hvd: Any, rank: int, size: int) -> None:
    shapes, dtypes = ((3,), (2, 2), (70001,)), ("float32", "int32", "float32")
    mine = [array(rank, shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    for way, work in ways(lambda xs: hvd.grouped_allreduce(xs, name="group", op=hvd.Sum)):
        for result, shape, dtype in zip(work(mine), shapes, dtypes, strict=True):
            check(result, sum(wide(array(r, shape, dtype)) for r in range(size)), way, dtype)
    for way, work in ways(lambda xs: hvd.grouped_allgather(xs, name="group")):
        for result, shape, dtype in zip(work(mine), shapes, dtypes, strict=True):
            check(result, np.concatenate([wide(array(r, shape, dtype)) for r in range(size)]), way, dtype)


def allgather(hvd: Any, rank: int, size: int) -> None:
    for way, work in ways(lambda x: hvd.allgather(x, name="equal")):
        check(work(array(rank)), np.concatenate([wide(array(r)) for r in range(size)]), way)
    uneven = hvd.allgather(array(rank, (rank, 2)), name="uneven")
    check(uneven, np.concatenate([wide(array(r, (r, 2))) for r in range(size)]))


def broadcast(hvd: Any, rank: int, size: int) -> None:
    for root in range(size):
        for way, work in ways(lambda x, root=root: hvd.broadcast(x, root, name=f"from.{root}")):
            check(work(array(rank)), wide(array(root)), way)


def alltoall(hvd: Any, rank: int, size: int) -> None:
    def sent(r: int) -> Any:
        return wide(array(r, (2 * size, 3)))

    for way, work in ways(lambda x: hvd.alltoall(x, name="equal")):
        expected = np.concatenate([sent(r)[2 * rank : 2 * rank + 2] for r in range(size)])
        check(work(array(rank, (2 * size, 3))), expected, way)
    splits = list(range(size))  # rank i gets i rows of everybody's
    received, rows = hvd.alltoall(array(rank, (2 * size * size, 2)), splits=splits, name="uneven")
    start = sum(splits[:rank])
    parts = [wide(array(r, (2 * size * size, 2)))[start : start + rank] for r in range(size)]
    check(received, np.concatenate(parts))
    check(rows, [rank] * size, "rows", "int32")


def reducescatter(hvd: Any, rank: int, size: int) -> None:
    rows = 2 * size + 1  # one more for the lowest rank
    total = sum(wide(array(r, (rows, 2))) for r in range(size))
    first = 0 if rank == 0 else 2 * rank + 1
    own = total[first : first + (3 if rank == 0 else 2)]
    for way, work in ways(lambda x: hvd.reducescatter(x, name="rows", op=hvd.Sum)):
        check(work(array(rank, (rows, 2))), own, way)
    (averaged,) = hvd.grouped_reducescatter([array(rank, (rows, 2))], name="rows")
    check(averaged, own / size)


def asynchronous_forms(hvd: Any, rank: int, size: int) -> None:
    total = sum(wide(array(r)) for r in range(size))
    handles = [hvd.allreduce_async(array(rank), name=f"h{i}", op=hvd.Sum) for i in range(3)]
    handles.append(hvd.reducescatter_async(array(rank, (size, 2)), name="h", op=hvd.Sum))
    handles.append(hvd.broadcast_async(array(rank), size - 1, name="h"))
    gathered = hvd.grouped_allgather_async([array(rank), array(rank, (2,))], name="h")
    for handle in handles[:3]:
        check(hvd.synchronize(handle), total)
        assert hvd.poll(handle)
    check(hvd.synchronize(handles[3]), sum(wide(array(r, (size, 2))) for r in range(size))[rank : rank + 1])
    check(hvd.synchronize(handles[4]), wide(array(size - 1)))
    one, other = hvd.synchronize(gathered)
    assert one.shape == (4 * size, 3) and other.shape == (2 * size,)
    received, rows = hvd.synchronize(hvd.alltoall_async(array(rank, (size, 2)), splits=[1] * size, name="h"))
    assert received.shape == (size, 2) and rows.tolist() == [1] * size


def process_sets(hvd: Any, rank: int, size: int) -> None:
    last = hvd.add_process_set([size - 1]) if size > 1 else hvd.global_process_set
    if last.included():
        for way, work in ways(lambda x: hvd.allreduce(x, name="alone", process_set=last)):
            check(work(array(rank)), wide(array(rank)), way)
    if size > 1:
        hvd.remove_process_set(last)


def nothing_is_copied(hvd: Any, rank: int, size: int) -> None:
    """The engine is given the very memory that JAX has, and JAX takes the memory that the engine filled."""
    seen: list[tuple[list[int], list[int]]] = []
    real = host.start

    def watched(call: Any, arrays: Any, into: Any = None) -> Any:
        started = real(call, arrays, into)

        def note(results: Any) -> Any:
            seen.append(([host.address_of(x) for x in arrays], [host.address_of(x) for x in results.tensors]))
            return results

        return started.then(note)

    host.start = watched  # type: ignore[assignment]
    try:
        for dtype in ("float32", "bfloat16", "bool"):
            x = array(rank, (1000, 7), dtype)
            y = hvd.allreduce(x, name="memory", op=hvd.Max)
            assert seen.pop() == ([x.unsafe_buffer_pointer()], [y.unsafe_buffer_pointer()]), dtype
        x = array(rank, (1000, 7))
        jax.jit(lambda x: hvd.allreduce(x * 2, name="memory", op=hvd.Sum) + 1)(x).block_until_ready()
        read, written = seen.pop()
        assert read == written, "a temporary of the program is reduced where it lies"
    finally:
        host.start = real


def joining(hvd: Any, rank: int, size: int) -> None:
    step = jax.jit(lambda x: hvd.allreduce(x, name="data", op=hvd.Sum))
    for i in range(rank + 1):
        check(step(jnp.ones(3)), np.full(3, size - i))
    assert hvd.join() == size - 1


def objects(hvd: Any, rank: int, size: int) -> None:
    assert hvd.broadcast_object({"from": rank}, root_rank=size - 1, name="o") == {"from": size - 1}
    assert hvd.allgather_object([rank] * rank, name="o") == [[r] * r for r in range(size)]
    hvd.barrier()
