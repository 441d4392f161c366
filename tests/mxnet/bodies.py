"""Collectives and training in MXNet, against numpy and a single process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from tests import coarse

from hora.errors import MismatchError, UsageError
from hora.mxnet import adapter
from hora.ops import host

DTYPES = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")
COMBINE = {"Sum": np.sum, "Average": np.mean, "Min": np.min, "Max": np.max, "Product": np.prod}
BATCH, STEPS = 4, 3


def _array(rank: int, shape: tuple[int, ...] = (4, 3), dtype: str = "float32") -> Any:
    return np.random.default_rng([rank, *shape, 7]).integers(1, 4, shape).astype(dtype)


def _nd(rank: int, shape: tuple[int, ...] = (4, 3), dtype: str = "float32") -> Any:
    return mx.nd.array(_array(rank, shape, dtype), dtype=dtype)


def _check(result: Any, expected: Any, what: object = "") -> None:
    assert isinstance(result, mx.nd.NDArray), what
    assert result.shape == np.shape(expected), f"{what}: {result.shape} where {np.shape(expected)} was expected"
    assert np.allclose(result.asnumpy(), expected, rtol=1e-5), f"{what}: {result} where {expected} was expected"


@contextmanager
def _raises(kind: type[BaseException], *words: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def allreduce(hvd: Any, rank: int, size: int) -> None:
    for dtype in DTYPES:
        for op, combine in COMBINE.items():
            exact = combine(np.stack([_array(r, dtype=dtype) for r in range(size)]), axis=0).astype(dtype)
            result = hvd.allreduce(_nd(rank, dtype=dtype), name=f"{dtype}.{op}", op=getattr(hvd, op))
            _check(result, exact, (dtype, op))
            assert np.dtype(result.dtype).name == dtype
    total = sum(_array(r) for r in range(size))
    tensor = _nd(rank) + 0  # what MXNet is still computing
    assert hvd.allreduce_(tensor, average=False, name="in place") is tensor
    _check(tensor, total)
    _check(hvd.allreduce(_nd(rank), average=False, prescale_factor=0.5, postscale_factor=4.0), 2 * total)
    several = [_nd(rank), _nd(rank, (70001,)), _nd(rank, (2,), "int32")]
    hvd.grouped_allreduce_(several, average=False, name="group")
    for tensor, found in zip(
        several, (total, *(sum(_array(r, s) for r in range(size)) for s in ((70001,), (2,)))), strict=True
    ):
        _check(tensor, found)
    as_numpy = mx.np.array(_array(rank))
    assert type(hvd.allreduce(as_numpy, name="np")) is type(as_numpy)


def rows(hvd: Any, rank: int, size: int) -> None:
    own = _nd(rank, (rank + 1, 2))
    _check(hvd.allgather(own, name="uneven"), np.concatenate([_array(r, (r + 1, 2)) for r in range(size)]))
    (gathered,) = hvd.grouped_allgather([own], name="uneven")
    assert gathered.shape == (size * (size + 1) // 2, 2)
    received, counts = hvd.alltoall(_nd(rank, (2 * size, 3)), splits=mx.nd.array([2] * size, dtype="int32"), name="a")
    _check(received, np.concatenate([_array(r, (2 * size, 3))[2 * rank : 2 * rank + 2] for r in range(size)]))
    assert counts.asnumpy().tolist() == [2] * size
    total = sum(_array(r, (size, 2)) for r in range(size))
    _check(hvd.reducescatter(_nd(rank, (size, 2)), op=hvd.Sum, name="r"), total[rank : rank + 1])
    (averaged,) = hvd.grouped_reducescatter([_nd(rank, (size, 2))], name="r")
    _check(averaged, total[rank : rank + 1] / size)


def broadcast(hvd: Any, rank: int, size: int) -> None:
    root = size - 1
    _check(hvd.broadcast(_nd(rank), root, name="b"), _array(root))
    tensor = _nd(rank)
    assert hvd.broadcast_(tensor, root, name="b") is tensor
    _check(tensor, _array(root))
    assert hvd.broadcast_object({"rank": rank}, root, name="o") == {"rank": root}
    assert hvd.allgather_object(rank, name="o") == list(range(size))
    hvd.barrier()


def nothing_is_copied(hvd: Any, rank: int, size: int) -> None:
    tensor = _nd(rank, (1000,))
    seen = []
    real = host.start

    def watched(call: Any, arrays: Any, into: Any) -> Any:
        seen.append((host.address_of(arrays[0]), host.address_of(into[0])))
        return real(call, arrays, into)

    host.start = watched  # type: ignore[assignment]
    try:
        hvd.allreduce_(tensor, name="memory")
        address = host.address_of(adapter.view(tensor))
        assert seen.pop() == (address, address)
        result = hvd.allreduce(tensor, name="memory")
        assert seen.pop() == (address, host.address_of(adapter.view(result)))
    finally:
        host.start = real


def mistakes(hvd: Any, rank: int, size: int) -> None:
    with _raises(UsageError, "a list was given"):
        hvd.allreduce([1.0])
    with _raises(UsageError, "row_sparse", "tostype"):
        hvd.allreduce(mx.nd.sparse.zeros("row_sparse", (2, 2)))
    if size > 1:
        with _raises(MismatchError, "rank 0", "rank 1", "bodies.py"):
            hvd.allreduce(_nd(rank, (2 + rank,)), name="shapes")
    _check(hvd.allreduce(_nd(0), name="after"), _array(0))


def _network(deferred: bool = True) -> Any:
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, activation="tanh", in_units=0 if deferred else 5))
    net.add(gluon.nn.Dense(2, in_units=0 if deferred else 8))
    net.initialize(mx.init.Normal(0.5))
    return net


def _train(net: Any, trainer: Any, ranks: range, size: int) -> list[Any]:
    for step in range(STEPS):
        random = np.random.default_rng(step)
        x, y = random.normal(size=(BATCH * size, 5)), random.normal(size=(BATCH * size, 2))
        part = slice(BATCH * ranks.start, BATCH * ranks.stop)
        with autograd.record():
            loss = gluon.loss.L2Loss()(net(mx.nd.array(x[part])), mx.nd.array(y[part]))
        loss.backward()
        trainer.step(BATCH * len(ranks))
    return [p.data().asnumpy() for p in net.collect_params().values()]


def training_equals_one_worker_with_all_of_the_batch(hvd: Any, rank: int, size: int) -> None:
    options = {"learning_rate": 0.1, "momentum": 0.9}
    for deferred in (False, True):
        for more in ({}, {"gradient_predivide_factor": 4.0}, {"compression": hvd.Compression.fp16}):
            mx.random.seed(rank + 1)  # other weights on every rank, until they are broadcast
            net, single = _network(deferred), _network(deferred)
            hvd.broadcast_parameters(net.collect_params(), root_rank=0)
            net(mx.nd.ones((1, 5)))  # gives the parameters their shapes
            single(mx.nd.ones((1, 5)))
            for mine, other in zip(net.collect_params().values(), single.collect_params().values(), strict=True):
                other.set_data(mine.data())
            firsts = hvd.allgather_object([p.data().asnumpy().tolist() for p in net.collect_params().values()])
            assert all(first == firsts[0] for first in firsts)
            trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", dict(options), **more)
            found = _train(net, trainer, range(rank, rank + 1), size)
            plain = gluon.Trainer(single.collect_params(), "sgd", dict(options), kvstore=None)
            expected = _train(single, plain, range(size), size)
            tolerance = 3e-2 if "compression" in more else 1e-4
            for a, b in zip(found, expected, strict=True):
                assert np.allclose(a, b, rtol=tolerance, atol=tolerance / 10), (deferred, more)


def an_optimizer_for_module(hvd: Any, rank: int, size: int) -> None:
    optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=0.5))
    weight = mx.nd.zeros((3,))
    state = optimizer.create_state_multi_precision(0, weight)
    optimizer.update_multi_precision(0, weight, mx.nd.ones((3,)) * rank, state)
    _check(weight, np.full(3, -0.5 * np.mean(range(size))))
    optimizer.set_learning_rate(0.25)
    assert optimizer.learning_rate == 0.25
    parameters = {"a": mx.nd.ones((2,)) * rank}
    hvd.broadcast_parameters(parameters, root_rank=size - 1)
    _check(parameters["a"], np.full(2, size - 1))


def compressors_with_a_memory(hvd: Any, rank: int, size: int) -> None:
    parameter = gluon.Parameter("w", shape=(2, 3), init=mx.init.Zero())
    parameter.initialize()
    trainer = hvd.DistributedTrainer([parameter], "sgd", {"learning_rate": 1.0}, compression=coarse.Coarse())
    for step, expected in enumerate(coarse.averaged(size, 3)):
        before = parameter.data().asnumpy()
        with autograd.record():
            loss = (parameter.data() * mx.nd.array(coarse.gradient(rank, step))).sum()
        loss.backward()
        trainer.step(1)
        assert np.allclose(before - parameter.data().asnumpy(), expected, atol=1e-6)
