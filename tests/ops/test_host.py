"""``ops.host`` alone: what it refuses, and that it reads and writes where it was told to.

What it computes with several ranks is in ``tests/multi/bodies/host.py``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hora.engine import session
from hora.engine.backend import UnderWay
from hora.engine.core import Engine
from hora.engine.process_set import global_process_set as everyone
from hora.engine.tableoperation import TableOperation
from hora.errors import UsageError
from hora.ops import host
from hora.ops.call import Call, Results
from hora.types import Buffer, DType, Kind, ReduceOp, Reduction

SUM = Reduction(ReduceOp.SUM)


def start(kind: Kind, *arrays: Any, into: Any = None, **said: Any) -> UnderWay[Results[Any]]:
    return host.start(Call(kind, "x", everyone, **said), arrays, into)


@pytest.fixture
def alone() -> Iterator[Engine]:
    session.init()
    yield session.engine()
    session.shutdown()


@pytest.fixture
def submitted(alone: Engine, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Buffer, ...]]:
    """The inputs and outputs of what was handed to the engine."""
    seen: list[tuple[Buffer, ...]] = []
    start = TableOperation.start

    def watch(operation: Any, inputs: Any, outputs: Any) -> Any:
        seen.append((*inputs, *outputs))
        return start(operation, inputs, outputs)

    monkeypatch.setattr(TableOperation, "start", watch)
    return seen


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.name)
def test_types(dtype: DType) -> None:
    numpy = ml_dtypes.bfloat16 if dtype is DType.BFLOAT16 else dtype.numpy
    assert host.dtype_of(np.zeros(2, numpy)) is dtype


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param([1.0], "a list was given", id="list"),
        pytest.param(np.float32(1), "a float32 was given", id="scalar"),
        pytest.param(np.zeros(2, "complex64"), "array.view(array.real.dtype)", id="complex"),
        pytest.param(np.zeros(2, "uint64"), "an array of uint64 was given", id="unsigned"),
        pytest.param(np.zeros(2, ">f4"), "newbyteorder", id="byte-order"),
        pytest.param(np.zeros(2, ml_dtypes.float8_e5m2), "Convert it to bfloat16", id="float8"),
        pytest.param(np.array(["a"]), "allgather_object", id="text"),
    ],
)
def test_what_cannot_be_carried_is_refused_before_anything_is_sent(
    submitted: list[Any], given: Any, words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        host.allreduce([given], SUM, "x", everyone)
    assert words in str(caught.value)
    assert not submitted


def test_read_and_written_where_it_lies(submitted: list[tuple[Buffer, ...]]) -> None:
    own, place = np.ones(5, "float32"), np.empty(5, "float32")
    host.allreduce([own], SUM, "x", everyone, into=[place]).wait()
    start(Kind.BROADCAST, own, root=0, into=[own]).wait()
    for kind in (Kind.ALLGATHER, Kind.ALLTOALL, Kind.REDUCESCATTER):
        start(kind, own).wait()
    assert all(buffers[0].address == host.address_of(own) for buffers in submitted)
    assert [buffers[1].address for buffers in submitted[:2]] == [host.address_of(place), host.address_of(own)]


def test_an_array_that_is_not_contiguous_is_left_alone(alone: Engine) -> None:
    own = np.arange(12.0).reshape(3, 4)[:, ::2]
    (result,) = host.allreduce([own], Reduction(ReduceOp.SUM, 2.0), "x", everyone).wait()
    np.testing.assert_array_equal(own, [[0, 2], [4, 6], [8, 10]])
    np.testing.assert_array_equal(result, 2 * own)
    np.testing.assert_array_equal(start(Kind.ALLTOALL, own, splits=[2]).wait().tensors[0], own[:2])


def test_into_must_fit(alone: Engine) -> None:
    with pytest.raises(UsageError, match="one array of the same type and shape"):
        host.allreduce([np.ones(2)], SUM, "x", everyone, into=[np.ones(2, "float32")])
    locked = np.ones(2)
    locked.flags.writeable = False
    with pytest.raises(UsageError, match="cannot be written to"):
        host.allreduce([np.ones(2)], SUM, "x", everyone, into=[locked])
    assert host.allreduce([locked], SUM, "x", everyone).wait()[0].tolist() == [1, 1]


def test_shapes_that_make_no_sense(alone: Engine) -> None:
    with pytest.raises(UsageError, match="grouped_allreduce of an empty list"):
        host.allreduce([], SUM, "x", everyone)
    with pytest.raises(UsageError, match="allgather of a 0-d tensor"):
        start(Kind.ALLGATHER, np.array(1.0))


def test_rows_without_elements_are_exchanged(alone: Engine) -> None:
    given = np.zeros((2, 0, 3), "int16")
    (array,), (rows,), _ = start(Kind.ALLTOALL, given).wait()
    assert (array.shape, array.dtype, rows) == ((2, 0, 3), given.dtype, (2,))


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_unsigned_integers_keep_their_values(alone: Engine, dtype: str) -> None:
    own = np.array([[np.iinfo(dtype).max], [1]], dtype)
    place = np.empty_like(own)
    (kept,) = host.allreduce([own], SUM, "x", everyone, into=[place]).wait()
    assert kept is place
    for result in (
        kept,
        *host.allreduce([own, np.ones(2)], Reduction(ReduceOp.AVERAGE), "x", everyone, grouped=True).wait()[:1],
        *start(Kind.BROADCAST, own, root=0).wait().tensors,
        *start(Kind.ALLGATHER, own).wait().tensors,
        *start(Kind.ALLTOALL, own).wait().tensors,
        *start(Kind.REDUCESCATTER, own).wait().tensors,
    ):
        assert result.dtype == own.dtype
        np.testing.assert_array_equal(result, own)
    with pytest.raises(UsageError, match="one array of the same type and shape"):
        host.allreduce([own], SUM, "x", everyone, into=[place.astype("int32")])


def test_no_framework_is_imported() -> None:
    code = "import sys, hora.ops.host; print({'torch', 'tensorflow', 'jax', 'ml_dtypes'} & set(sys.modules) or 'none')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "none"
