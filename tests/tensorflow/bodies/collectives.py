"""Every collective, on every type, eagerly and in a graph, against numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from tests.tensorflow.data import array, both_ways, check, process_sets

from hora.engine.backend import Operation
from hora.tensorflow.adapter import as_array

TYPES = [
    tf.uint8,
    tf.int8,
    tf.uint16,
    tf.int16,
    tf.uint32,
    tf.int32,
    tf.int64,
    tf.float16,
    tf.bfloat16,
    tf.float32,
    tf.float64,
    tf.bool,
]
IN_GRAPHS = [tf.int64, tf.bfloat16, tf.float32, tf.bool]  # the bridge is the same for all; tracing takes its time


def every_collective_on_every_type(hvd: Any, rank: int, size: int) -> None:
    splits = [r % 2 + 1 for r in range(size)]  # everybody sends so many rows to rank r
    first, rows = 2 * rank + (rank > 0), 2 + (rank == 0)

    def work(dtype: Any) -> dict[str, Any]:
        """One function of all collectives: with one thread, all of them have to be begun before one is waited for."""
        own = tf.constant(array(rank, (3, 2), dtype))
        whole = tf.constant(array(rank, (2 * size + 1, 2), dtype))
        exchanged, received = hvd.alltoall(whole[: sum(splits)], splits)
        return {
            "sum": hvd.allreduce(own, op=hvd.Sum),
            "max": hvd.allreduce(own, op=hvd.Max),
            "number": hvd.allreduce(own[0, 0], op=hvd.Min),
            "empty": hvd.allreduce(own[:, :0], op=hvd.Sum),
            "root": hvd.broadcast(own, size - 1),
            "gathered": hvd.allgather(whole[: rank + 1]),
            "nothing": hvd.allgather(whole[:0]),
            "exchanged": exchanged,
            "received": received,
            "exchanged nothing": hvd.alltoall(whole[: 2 * size, :0]),
            "part": hvd.reducescatter(tf.cast(whole, tf.int32), op=hvd.Sum),
        }

    for dtype in TYPES if size == 2 else TYPES[::3]:
        parts = [array(r, (3, 2), dtype) for r in range(size)]
        wholes = [array(r, (2 * size + 1, 2), dtype) for r in range(size)]
        start = sum(splits[:rank])
        wide = bool if dtype is tf.bool else "int64"
        expected = {
            "sum": sum((p.astype(wide) for p in parts), np.zeros((3, 2), wide)).astype(parts[0].dtype),
            "max": np.max([p.astype("int64") for p in parts], axis=0).astype(parts[0].dtype),
            "number": np.min([p[0, 0].astype("int64") for p in parts]).astype(parts[0].dtype),
            "empty": np.zeros((3, 0), parts[0].dtype),
            "root": parts[-1],
            "gathered": np.concatenate([w[: r + 1] for r, w in enumerate(wholes)]),
            "nothing": wholes[0][:0],
            "exchanged": np.concatenate([w[start : start + splits[rank]] for w in wholes]),
            "received": np.full(size, splits[rank], "int32"),
            "exchanged nothing": wholes[0][: 2 * size, :0],
            "part": sum(w.astype("int32") for w in wholes)[first : first + rows],
        }
        ways = both_ways(lambda dtype=dtype: work(dtype)) if dtype in IN_GRAPHS else [("eager", work(dtype))]
        for way, results in ways:
            for what, result in results.items():
                check(result, expected[what], f"{way} {what} of {dtype.name}")


def operations_and_factors(hvd: Any, rank: int, size: int) -> None:
    own = [tf.constant([1.5, -2.0]) * (r + 1) for r in range(size)]
    parts = np.array([o.numpy() for o in own])

    def work() -> list[Any]:
        mine = own[rank]
        return [
            hvd.allreduce(mine),
            hvd.allreduce(mine, average=False),
            hvd.allreduce(mine, op=hvd.Product),
            hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0),
            hvd.allreduce(tf.constant([7, -7]) * (rank + 1), op=hvd.Average),
            hvd.reducescatter(tf.stack([mine] * size)),
            hvd.allreduce(mine, op=hvd.Sum, compression=hvd.Compression.fp16),
            hvd.allreduce(mine, op=hvd.Sum, compression=hvd.Compression.bf16),
            hvd.allreduce(tf.eye(2)[rank % 2], op=hvd.Adasum if size < 3 else hvd.Sum),  # orthogonal: they add up
        ]

    expected = [
        parts.mean(0),
        parts.sum(0),
        parts.prod(0),
        2 * parts.sum(0),
        np.trunc(np.array([7, -7]) * sum(range(1, size + 1)) / size).astype("int32"),
        parts.mean(0)[np.newaxis],
        parts.sum(0),
        parts.sum(0),
        np.array([(size + 1) // 2, size // 2], "float32"),
    ]
    for way, results in both_ways(work):
        for i, (result, wanted) in enumerate(zip(results, expected, strict=True)):
            check(result, wanted.astype("int32" if wanted.dtype == np.int32 else "float32"), f"{way} {i}")


def groups(hvd: Any, rank: int, size: int) -> None:
    def work() -> list[Any]:
        tensors = [tf.ones([2]) * (rank + 1), tf.ones([2, 1], tf.float64), tf.constant(rank, tf.int64)]
        gathered = hvd.grouped_allgather([tf.fill([rank, 2], 1.0), tf.constant([rank])])
        scattered = hvd.grouped_reducescatter([tf.ones([size]), tf.ones([size, 2], tf.float64)], op=hvd.Sum)
        return [*hvd.grouped_allreduce(tensors, op=hvd.Sum), *gathered, *scattered]

    total = sum(range(1, size + 1))
    expected = [
        np.full(2, total, "float32"),
        np.full((2, 1), size, "float64"),
        np.int64(total - size),
        np.ones((total - size, 2), "float32"),
        np.arange(size, dtype="int32"),
        np.full(1, size, "float32"),
        np.full((1, 2), size, "float64"),
    ]
    for way, results in both_ways(work):
        for i, (result, wanted) in enumerate(zip(results, expected, strict=True)):
            check(result, wanted, f"{way} {i}")


def slices(hvd: Any, rank: int, size: int) -> None:
    def work() -> list[Any]:
        values, indices = tf.ones([2, 3]) * (rank + 1), tf.constant([rank, 0], tf.int64)
        sparse = tf.IndexedSlices(values, indices, tf.constant([size + 1, 3], tf.int64))
        summed, averaged = hvd.allreduce(sparse, op=hvd.Sum), hvd.allreduce(sparse)
        (among, dense) = hvd.grouped_allreduce([sparse, tf.ones([2])], op=hvd.Sum, compression=hvd.Compression.fp16)
        assert all(isinstance(s, tf.IndexedSlices) for s in (summed, averaged, among))
        return [tf.convert_to_tensor(summed), tf.convert_to_tensor(averaged), tf.convert_to_tensor(among), dense]

    whole = np.zeros((size + 1, 3), "float32")
    for r in range(size):
        whole[r] += r + 1
        whole[0] += r + 1
    for way, (summed, averaged, among, dense) in both_ways(work):
        check(summed, whole, way)
        check(averaged, whole / size, way)
        check(among, whole, way)
        check(dense, np.full(2, size, "float32"), way)


def slices_of_integers(hvd: Any, rank: int, size: int) -> None:
    """They are averaged once those of equal index are added up, not truncated one by one."""
    for dtype in (tf.int32, tf.uint8, tf.int64):
        own = tf.IndexedSlices(tf.cast(tf.fill([2, 3], 1 + 2 * rank), dtype), tf.constant([0, rank]))
        for way, averaged in both_ways(lambda own=own: tf.math.unsorted_segment_sum(*_parts(hvd.allreduce(own)), size)):
            whole = np.zeros((size, 3))
            for r in range(size):
                whole[0] += 1 + 2 * r
                whole[r] += 1 + 2 * r
            np.testing.assert_allclose(averaged.numpy(), whole / size, 1e-6, err_msg=f"{way} {dtype.name}")
        summed = hvd.allreduce(own, op=hvd.Sum)
        assert summed.values.dtype is dtype and summed.values.shape == (2 * size, 3)


def _parts(slices: Any) -> tuple[Any, Any]:
    return slices.values, slices.indices


def process_sets_of_all_kinds(hvd: Any, rank: int, size: int) -> None:
    with process_sets(hvd, size) as sets:
        for process_set in sets:
            number = process_set.process_set_id
            for _, (included, members) in both_ways(
                lambda number=number: (hvd.process_set_included_op(number), hvd.size_op(number))
            ):
                assert int(included) == process_set.included() and int(members) == process_set.size()
            if not process_set.included():
                continue
            ranks = process_set.ranks

            def work(process_set: Any = process_set, ranks: list[int] = ranks) -> list[Any]:
                own = tf.constant([float(rank)])
                return [
                    hvd.allreduce(own, process_set=process_set),
                    hvd.allgather(own, process_set=process_set),
                    hvd.broadcast(own, ranks[-1], process_set=process_set),
                    hvd.reducescatter(tf.ones([len(ranks)]) * rank, op=hvd.Sum, process_set=process_set),
                ]

            for way, results in both_ways(work):
                wanted = [[np.mean(ranks)], ranks, [ranks[-1]], [sum(ranks)]]
                for result, expected in zip(results, wanted, strict=True):
                    check(result, np.array(expected, "float32"), f"{way} {process_set}")
            hvd.barrier(process_set)


def nothing_is_copied(hvd: Any, rank: int, size: int) -> None:
    """Eagerly: what the engine reads is the tensor's memory, and what it wrote is the result's."""
    for dtype in (tf.float32, tf.bfloat16, tf.float16, tf.bool, tf.int64):
        tensors = [tf.cast(tf.fill([1000 + i], 1), dtype) for i in range(3)]
        op = hvd.Max if dtype is tf.bool else hvd.Sum
        calls: list[Callable[[], list[Any]]] = [
            lambda tensors=tensors, op=op: [hvd.allreduce(tensors[0], op=op)],
            lambda tensors=tensors, op=op: hvd.grouped_allreduce(tensors, op=op),
            lambda tensors=tensors: [hvd.broadcast(tensors[0], 0)],
        ]
        for call in calls:
            with _submitted() as seen:
                results = call()
            read, written = seen.pop()
            assert read == [_address(tensor) for tensor in tensors[: len(results)]], dtype
            assert written == [_address(result) for result in results], dtype


def _address(tensor: Any) -> int:
    address: int = as_array(tensor).__array_interface__["data"][0]
    return address


@contextmanager
def _submitted() -> Iterator[list[tuple[list[int], list[int]]]]:
    """Where what is handed to the engine meanwhile lies."""
    seen: list[tuple[list[int], list[int]]] = []
    kinds = [kind for kind in Operation.__subclasses__() if "start" in vars(kind)]  # one of each backend
    starts = [kind.start for kind in kinds]

    def watched(start: Any) -> Any:
        def watch(operation: Any, inputs: Any, outputs: Any) -> Any:
            seen.append(([b.address for b in inputs], [b.address for b in outputs]))
            return start(operation, inputs, outputs)

        return watch

    for kind, start in zip(kinds, starts, strict=True):
        kind.start = watched(start)  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        for kind, start in zip(kinds, starts, strict=True):
            kind.start = start  # type: ignore[method-assign]
