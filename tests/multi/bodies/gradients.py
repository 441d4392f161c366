"""Gradients against the formulas of ``hora.torch.autograd``, written out by hand."""

from __future__ import annotations

from types import ModuleType

import torch
from tests.multi.body import body
from tests.multi.data import check, process_sets, raises, tensor, tensors

from hora.ops.resolve import scattered_rows


def leaf(rank: int, shape: tuple[int, ...]) -> torch.Tensor:
    return tensor(rank, shape).requires_grad_()


@body()
def allreduce(hvd: ModuleType, rank: int, size: int) -> None:
    weights = tensors(range(size), (4, 3), seed="weights")
    total = torch.stack(weights).sum(0)
    for op, pre, post, factor in (
        (hvd.Sum, 1.0, 1.0, 1.0),
        (hvd.Average, 1.0, 1.0, 1.0 / size),
        (hvd.Sum, 0.5, 3.0, 1.5),
    ):
        x = leaf(rank, (4, 3))
        y = hvd.allreduce(x, name="y", op=op, prescale_factor=pre, postscale_factor=post)
        (y * weights[rank]).sum().backward()
        check(x.grad, total * factor, op)


@body()
def allreduce_twice(hvd: ModuleType, rank: int, size: int) -> None:
    x = leaf(rank, (5,))
    y = hvd.allreduce(x, name="y", op=hvd.Sum)
    (grad,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
    check(grad, 2 * size * torch.stack(tensors(range(size), (5,))).sum(0))
    (second,) = torch.autograd.grad(grad.sum(), x)
    check(second, torch.full((5,), 2.0 * size * size))


@body()
def allreduce_through_compression(hvd: ModuleType, rank: int, size: int) -> None:
    x = leaf(rank, (6,))
    hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.bf16).sum().backward()
    check(x.grad, torch.full((6,), float(size)))


@body()
def no_gradient_of_min(hvd: ModuleType, rank: int, size: int) -> None:
    x = leaf(rank, (3,))
    y = hvd.allreduce(x, op=hvd.Min)
    with raises(hvd.UsageError, "op=Min", "torch.no_grad()"):
        y.sum().backward()
    with torch.no_grad():
        assert not hvd.allreduce(x, op=hvd.Min).requires_grad


@body()
def grouped_allreduce(hvd: ModuleType, rank: int, size: int) -> None:
    x, y = leaf(rank, (3,)), leaf(rank, (2, 2))
    constant = torch.ones(2)
    a, b, _ = hvd.grouped_allreduce([x, y, constant], name="g", op=hvd.Sum)
    (a.sum() * (rank + 1) + 2 * b.sum()).backward()
    check(x.grad, torch.full((3,), size * (size + 1) / 2))
    check(y.grad, torch.full((2, 2), 2.0 * size))


@body()
def in_place(hvd: ModuleType, rank: int, size: int) -> None:
    x = leaf(rank, (3,))
    parameter = leaf(rank, (3,))
    hvd.broadcast_(parameter, 0)  # a leaf is given a new value, as with .data
    check(parameter.detach(), tensor(0, (3,)))
    hvd.allreduce_(parameter.view(-1), op=hvd.Sum)
    check(parameter.detach(), tensor(0, (3,)) * size)
    hvd.synchronize(hvd.broadcast_async_(parameter, 0))
    assert parameter.is_leaf and parameter.requires_grad
    inner = x * 2
    result = hvd.allreduce_(inner, name="inner", op=hvd.Sum)
    assert result is inner
    (result * (rank + 1)).sum().backward()
    check(x.grad, torch.full((3,), 2.0 * size * (size + 1) / 2))
    with raises(hvd.UsageError, "allreduce_async_", "torch.no_grad()"):
        hvd.allreduce_async_(x * 2, op=hvd.Sum)
    with torch.no_grad():
        hvd.broadcast_(x, 0)
    check(x, tensor(0, (3,)))


@body()
def overwritten_tensors_are_noticed(hvd: ModuleType, rank: int, size: int) -> None:
    x = leaf(rank, (3,))
    y = x.exp()  # backward needs its value
    with torch.no_grad():
        hvd.allreduce_(y.detach(), op=hvd.Sum)
    with raises(RuntimeError, "modified by an inplace operation"):
        y.sum().backward()


@body()
def allgather(hvd: ModuleType, rank: int, size: int) -> None:
    x = leaf(rank, (rank + 1, 2))
    rows = size * (size + 1) // 2
    weights = tensors(range(size), (rows, 2), seed="weights")
    (hvd.allgather(x, name="y") * weights[rank]).sum().backward()
    mean = torch.stack(weights).mean(0)
    start = rank * (rank + 1) // 2
    check(x.grad, mean[start : start + rank + 1])


@body()
def broadcast(hvd: ModuleType, rank: int, size: int) -> None:
    root = size - 1
    x = leaf(rank, (4,))
    weights = tensors(range(size), (4,), seed="weights")
    (hvd.broadcast(x, root, name="y") * weights[rank]).sum().backward()
    check(x.grad, torch.stack(weights).mean(0) if rank == root else torch.zeros(4))


@body()
def alltoall(hvd: ModuleType, rank: int, size: int) -> None:
    # Rank r sends r + 1 rows to each, and keeps one row back.
    x = leaf(rank, ((rank + 1) * size + 1, 2))
    y, received = hvd.alltoall(x, [rank + 1] * size, name="y")
    assert received.tolist() == [r + 1 for r in range(size)]
    (y * (rank + 1)).sum().backward()
    expected = torch.cat([torch.full((rank + 1, 2), to + 1.0) for to in range(size)] + [torch.zeros(1, 2)])
    check(x.grad, expected)


@body()
def reducescatter(hvd: ModuleType, rank: int, size: int) -> None:
    shares = [scattered_rows(7, size, r) for r in range(size)]
    upstream = torch.cat([torch.full((share, 2), r + 1.0) for r, share in enumerate(shares)])
    for op, pre, factor in ((hvd.Sum, 1.0, float(size)), (hvd.Average, 1.0, 1.0), (hvd.Sum, 0.5, size * 0.5)):
        x = leaf(rank, (7, 2))
        y = hvd.reducescatter(x, name="y", op=op, prescale_factor=pre)
        (y * (rank + 1)).sum().backward()
        check(x.grad, upstream * factor, op)


@body()
def sets(hvd: ModuleType, rank: int, size: int) -> None:
    with process_sets(hvd, size) as every:
        for process_set in every:
            if not process_set.included():
                continue
            x = leaf(rank, (3,))
            hvd.allreduce(x, name="y", op=hvd.Sum, process_set=process_set).sum().backward()
            check(x.grad, torch.full((3,), float(process_set.size())))
            x = leaf(rank, (2,))
            root = process_set.ranks[0]
            hvd.broadcast(x, root, name="y", process_set=process_set).sum().backward()
            check(x.grad, torch.full((2,), float(rank == root)))


@body()
def backward_in_another_order(hvd: ModuleType, rank: int, size: int) -> None:
    """Unnamed operations are paired with their own gradients, whichever a rank computes first."""
    x = leaf(rank, (2,))
    first = hvd.allreduce(x, op=hvd.Sum)
    second = hvd.allgather(x)
    expected_second = torch.full((2,), 3.0)
    # All ranks must go in the same order here, because backward blocks; but it need not be the order of the calls.
    (grad_second,) = torch.autograd.grad(3 * second.sum(), x)
    (grad_first,) = torch.autograd.grad(first.sum(), x)
    check(grad_first, torch.full((2,), float(size)))
    check(grad_second, expected_second)
