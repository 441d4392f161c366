"""Allreduce: every element type, operation, shape, form, factor and process set, against numpy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import product
from types import ModuleType

import torch
from tests.multi.body import body
from tests.multi.data import (
    DTYPES,
    FLOATS,
    INTEGERS,
    SHAPES,
    check,
    combine,
    process_sets,
    raises,
    strided,
    tensor,
    tensors,
)

from hora.engine.session import engine


@body()
def every_dtype_and_op(hvd: ModuleType, rank: int, size: int) -> None:
    for dtype, op in product(DTYPES, (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product)):
        if dtype is torch.bool and op is hvd.Average:
            continue
        seed = f"{dtype}.{op.name}"
        result = hvd.allreduce(tensor(rank, (4, 9), dtype, seed), name=seed, op=op)
        check(result, combine(op, tensors(range(size), (4, 9), dtype, seed)), seed)


@body()
def every_shape(hvd: ModuleType, rank: int, size: int) -> None:
    for shape, dtype in product(SHAPES, (torch.float32, torch.bfloat16, torch.int64, torch.uint8)):
        seed = f"{dtype}.{shape}"
        own = tensor(rank, shape, dtype, seed)
        before = own.clone()
        check(
            hvd.allreduce(own, name=seed, op=hvd.Sum), combine(hvd.Sum, tensors(range(size), shape, dtype, seed)), seed
        )
        assert torch.equal(own, before), "the input of an out-of-place form must not change"


@body()
def every_form(hvd: ModuleType, rank: int, size: int) -> None:
    for shape in ((), (0,), (7,), (3, 5), (4100,)):
        parts = tensors(range(size), shape)
        expected = combine(hvd.Sum, parts)
        own = parts[rank]
        check(hvd.allreduce(own, op=hvd.Sum), expected)
        check(hvd.synchronize(hvd.allreduce_async(own, op=hvd.Sum)), expected)
        for in_place in (hvd.allreduce_, lambda t, op: hvd.synchronize(hvd.allreduce_async_(t, op=op))):
            target = own.clone()
            assert in_place(target, op=hvd.Sum) is target
            check(target, expected)


@body()
def tensors_that_are_not_contiguous(hvd: ModuleType, rank: int, size: int) -> None:
    shape = (6, 5)
    parts = tensors(range(size), shape)
    expected = combine(hvd.Sum, parts)
    for change in (strided, lambda t: t.t().contiguous().t(), lambda t: torch.flip(t, [0]).flip([0])):
        own = change(parts[rank])
        check(hvd.allreduce(own, op=hvd.Sum), expected)
        target = change(parts[rank])
        assert hvd.allreduce_(target, op=hvd.Sum) is target
        check(target, expected)
    # Only the slice is written, not what lies between.
    whole = torch.full((6, 10), -1.0)
    whole[:, ::2] = parts[rank]
    hvd.synchronize(hvd.allreduce_async_(whole[:, ::2], op=hvd.Sum))
    check(whole[:, ::2], expected)
    assert (whole[:, 1::2] == -1).all()


@body()
def scaled(hvd: ModuleType, rank: int, size: int) -> None:
    for dtype, op in product(FLOATS, (hvd.Average, hvd.Sum, hvd.Min, hvd.Max)):
        parts = tensors(range(size), (33,), dtype)
        for pre, post in ((0.5, 1.0), (1.0, -0.25), (2.0, 3.0)):
            result = hvd.allreduce(parts[rank], op=op, prescale_factor=pre, postscale_factor=post)
            check(result, combine(op, parts, pre, post), (dtype, op, pre, post))
    for dtype in INTEGERS:
        parts = tensors(range(size), (33,), dtype)
        result = hvd.allreduce(parts[rank], op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0)
        check(result, combine(hvd.Sum, parts, 2.0, 3.0), dtype)


@body()
def integer_averages_are_truncated_toward_zero(hvd: ModuleType, rank: int, size: int) -> None:
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        parts = [torch.tensor([-7, -1, 0, 1, 7, 5 + r], dtype=dtype) for r in range(size)]
        check(hvd.allreduce(parts[rank], op=hvd.Average), combine(hvd.Average, parts), dtype)


@body()
def large_integers_are_exact(hvd: ModuleType, rank: int, size: int) -> None:
    value = 2**53 + 1
    result = hvd.allreduce(torch.tensor([value, -value]), op=hvd.Sum)
    assert result.tolist() == [value * size, -value * size]


@body()
def average_spelled_the_old_way(hvd: ModuleType, rank: int, size: int) -> None:
    parts = tensors(range(size), (5,))
    check(hvd.allreduce(parts[rank], average=True), combine(hvd.Average, parts))
    check(hvd.allreduce(parts[rank], average=False), combine(hvd.Sum, parts))
    check(hvd.allreduce(parts[rank], True, "by.position"), combine(hvd.Average, parts))
    check(hvd.allreduce(parts[rank]), combine(hvd.Average, parts))


@body()
def infinities_and_nans(hvd: ModuleType, rank: int, size: int) -> None:
    for dtype in FLOATS:
        own = torch.tensor([float("inf"), float("nan") if rank == 0 else 1.0, -float("inf"), 1.0], dtype=dtype)
        result = hvd.allreduce(own, op=hvd.Sum)
        assert result[0] == float("inf") and result[2] == -float("inf") and result[3] == size
        assert result[1].isnan()


@body()
def the_same_bits_on_every_rank(hvd: ModuleType, rank: int, size: int) -> None:
    for dtype in FLOATS:
        for count in (1, 1003, 70001):
            result = hvd.allreduce(tensor(rank, (count,), dtype), op=hvd.Average)
            everyone = hvd.allgather(result.view(torch.uint8)).view(size, -1)
            assert (everyone == everyone[0]).all()


@body()
def sums_run_in_rank_order(hvd: ModuleType, rank: int, size: int) -> None:
    """Inside each host, then from host to host; small ones as on one host, if they travel with the agreement."""
    running = engine()
    for dtype in (torch.float32, torch.float64):
        for count in (1, 1003, 70001, 300000, 2_500_001):
            rides = running.transport in ("shm+tcp", "shm+ucx") and count * dtype.itemsize <= 8192
            hosts = [peer.host if "+" in running.transport and not rides else "" for peer in running.peers]
            parts = tensors(range(size), (count,), dtype)
            sums = [functools.reduce(torch.add, [p for p, h in zip(parts, hosts, strict=True) if h == host])
                    for host in dict.fromkeys(hosts)]  # fmt: skip
            expected = functools.reduce(torch.add, sums)
            assert torch.equal(hvd.allreduce(parts[rank], op=hvd.Sum), expected), (dtype, count)


@body()
def large_groups(hvd: ModuleType, rank: int, size: int) -> None:
    for count in (161, 1500):
        group = [torch.full((1 + i % 7,), float(i)) for i in range(count)]
        for result, i in zip(hvd.grouped_allreduce(group, name="g", op=hvd.Sum), range(count), strict=True):
            assert result.tolist() == [i * size] * (1 + i % 7)


@body()
def many_in_flight(hvd: ModuleType, rank: int, size: int) -> None:
    handles = [hvd.allreduce_async(torch.full((2,), float(i)), name=f"{i}", op=hvd.Sum) for i in range(3000)]
    for i, handle in enumerate(handles):
        assert hvd.synchronize(handle).tolist() == [i * size] * 2


@body()
def adasum(hvd: ModuleType, rank: int, size: int) -> None:
    if size == 3:
        with raises(hvd.UsageError, "pairs"):
            hvd.allreduce(torch.ones(4), op=hvd.Adasum)
        return
    same = hvd.allreduce(torch.tensor([3.0, 4.0]), op=hvd.Adasum)
    check(same, torch.tensor([3.0, 4.0]), "parallel: the mean")
    own = torch.zeros(size)
    own[rank] = rank + 1.0
    check(hvd.allreduce(own, op=hvd.Adasum), torch.arange(1.0, size + 1), "orthogonal: the sum")


@body()
def compressed(hvd: ModuleType, rank: int, size: int) -> None:
    parts = tensors(range(size), (50,))
    for compression, half in ((hvd.Compression.fp16, torch.float16), (hvd.Compression.bf16, torch.bfloat16)):
        expected = combine(hvd.Sum, [part.to(half) for part in parts]).float()
        result = hvd.allreduce(parts[rank], op=hvd.Sum, compression=compression)
        assert result.dtype == torch.float32
        check(result.to(half), expected.to(half))
        numbers = hvd.allreduce(torch.tensor([70000]), op=hvd.Sum, compression=compression)
        assert numbers.tolist() == [70000 * size], "integers are not compressed"
    group = hvd.grouped_allreduce([parts[rank], parts[rank].double()], op=hvd.Sum, compression=hvd.Compression.fp16)
    assert [t.dtype for t in group] == [torch.float32, torch.float64]


@body()
def groups(hvd: ModuleType, rank: int, size: int) -> None:
    shapes = ((), (0,), (5,), (300, 7), (2,))
    dtypes = (torch.float32, torch.float32, torch.float16, torch.float32, torch.int64)
    parts = [tensors(range(size), shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    expected = [combine(hvd.Sum, part) for part in parts]
    forms: tuple[Callable[[list[torch.Tensor]], list[torch.Tensor]], ...] = (
        lambda group: hvd.grouped_allreduce(group, name="g", op=hvd.Sum),
        lambda group: hvd.synchronize(hvd.grouped_allreduce_async(group, name="g", op=hvd.Sum)),
        lambda group: hvd.grouped_allreduce_(group, name="g", op=hvd.Sum),
        lambda group: hvd.synchronize(hvd.grouped_allreduce_async_(group, name="g", op=hvd.Sum)),
    )
    for number, form in enumerate(forms):
        group = [part[rank].clone() for part in parts]
        results = form(group)
        for result, value, own in zip(results, expected, group, strict=True):
            check(result, value)
            assert (result is own) == (number >= 2)


@body()
def sets(hvd: ModuleType, rank: int, size: int) -> None:
    with process_sets(hvd, size) as every:
        for process_set in every:
            if not process_set.included():
                continue
            for dtype, op in product((torch.float32, torch.int64), (hvd.Average, hvd.Sum, hvd.Max)):
                parts = tensors(process_set.ranks, (11, 3), dtype)
                result = hvd.allreduce(parts[process_set.rank()], name="x", op=op, process_set=process_set)
                check(result, combine(op, parts), (process_set, dtype, op))
            group = hvd.grouped_allreduce_([torch.ones(3), torch.ones(4)], op=hvd.Sum, process_set=process_set)
            assert [t[0].item() for t in group] == [process_set.size()] * 2


@body()
def sparse(hvd: ModuleType, rank: int, size: int) -> None:
    def own(r: int) -> torch.Tensor:
        dense = torch.zeros(6, 4)
        dense[r % 6] = r + 1.0
        dense[2] = 0.5
        return dense if r != 1 else torch.zeros(6, 4)  # rank 1 brings nothing

    total = torch.stack([own(r) for r in range(size)]).sum(0)
    for sparse_dims in (1, 2):
        mine = own(rank).to_sparse(sparse_dims)
        check(hvd.sparse_allreduce_async(mine, name="s", op=hvd.Sum)().to_dense(), total)
        check(hvd.sparse_allreduce_async(mine, name="s", op=hvd.Average)().to_dense(), total / size)
    first = hvd.sparse_allreduce_async(own(rank).to_sparse(), name="a", op=hvd.Sum)
    second = hvd.sparse_allreduce_async(own(rank).to_sparse(), name="b", op=hvd.Sum)
    check(second().to_dense(), first().to_dense())
