"""What bodies of TensorFlow have in common: data of every rank, comparing, and running eagerly and in a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

_RELATIVE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-12}


def array(rank: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """Small whole numbers of one rank, the same wherever they are computed: sums are exact in every type."""
    random = np.random.default_rng([rank, *shape, 7])
    return random.integers(0, 2 if dtype is tf.bool else 4, shape).astype(dtype.as_numpy_dtype)


def both_ways(work: Callable[[], Any]) -> Iterator[tuple[str, Any]]:
    """What the function gives eagerly, and twice in a graph."""
    yield "eager", work()
    traced = tf.function(work)
    yield "graph", traced()
    yield "graph again", traced()


def check(result: Any, expected: Any, what: object = "") -> None:
    """Same type, same shape, same values: exactly, or nearly for floating point."""
    found, wanted = np.asarray(result.numpy()), np.asarray(expected)
    assert found.dtype == wanted.dtype, f"{what}: {found.dtype} where {wanted.dtype} was expected"
    assert found.shape == wanted.shape, f"{what}: {found.shape} where {wanted.shape} was expected"
    tolerance = _RELATIVE.get(wanted.dtype.name, 0.0)
    fine = np.allclose(found.astype("float64"), wanted.astype("float64"), rtol=tolerance, atol=4 * tolerance)
    assert fine, f"{what}: {found} where {wanted} was expected"


@contextmanager
def process_sets(hvd: Any, size: int) -> Iterator[list[Any]]:
    """The global set, the even ranks, the last two, and the last alone: as many as differ at this size."""
    wanted = {tuple(range(0, size, 2)), tuple(range(size))[-2:], (size - 1,)} - {tuple(range(size))}
    added = [hvd.add_process_set(list(ranks)) for ranks in sorted(wanted)]
    yield [hvd.global_process_set, *added]
    # Not in a finally: after a failure ranks are out of step, and this is a collective.
    for process_set in added:
        hvd.remove_process_set(process_set)


@contextmanager
def raises(kind: type[BaseException], *words: str) -> Iterator[None]:
    """Like pytest.raises, with every word required in the message."""
    try:
        yield
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in: {error}"
        return
    raise AssertionError(f"{kind.__name__} was not raised")
