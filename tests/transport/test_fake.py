"""The fake transport: blocking or not, and strict about who calls what."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from tests.transport.fake import Exchange, FakeMover, NotYet

from hora.errors import HorovodInternalError
from hora.transport.base import Mover
from hora.types import Buffer, DType, ReduceOp


def buffer(array: np.ndarray[Any, Any]) -> Buffer:
    return Buffer(array.ctypes.data, DType[array.dtype.name.upper()], array.shape, array)


def allreduce(mover: Mover, array: np.ndarray[Any, Any], ranks: tuple[int, ...] = (0, 1), **changes: Any) -> None:
    call = {
        "op": ReduceOp.SUM,
        "prescale": 1.0,
        "postscale": 1.0,
        "members": (0, 1),
        "contributors": ranks,
        "divisor": 2,
    }
    mover.allreduce([buffer(array)], [buffer(array)], **{**call, **changes})


def test_without_patience_the_call_is_made_again() -> None:
    exchange = Exchange()
    a, b = np.ones(2), np.ones(2)
    first, second = FakeMover(exchange, 0), FakeMover(exchange, 1)
    for _ in range(3):
        with pytest.raises(NotYet):
            allreduce(first, a)
    allreduce(second, b)
    allreduce(first, a)
    assert a.tolist() == b.tolist() == [2, 2] and exchange.calls == 1 and not exchange._slots


def test_with_patience_it_blocks_and_gives_up_in_time() -> None:
    exchange = Exchange()
    a, b = np.ones(2), np.ones(2)
    thread = threading.Thread(target=lambda: allreduce(FakeMover(exchange, 0, 5.0), a))
    thread.start()
    allreduce(FakeMover(exchange, 1, 5.0), b)
    thread.join(5)
    assert a.tolist() == b.tolist() == [2, 2]
    with pytest.raises(HorovodInternalError, match=r"ranks \[1\] did not take part"):
        allreduce(FakeMover(exchange, 0, 0.05), a)


def test_different_calls_at_the_same_point_are_a_bug_and_said_to_be() -> None:
    exchange = Exchange()
    with pytest.raises(NotYet):
        allreduce(FakeMover(exchange, 0), np.ones(2))
    with pytest.raises(AssertionError, match="rank 1"):
        allreduce(FakeMover(exchange, 1), np.ones(3))


def test_who_brings_nothing_is_left_out() -> None:
    exchange = Exchange()
    array, other = np.ones(2), np.ones(2)
    allreduce(FakeMover(exchange, 1), other, ranks=(0,))
    allreduce(FakeMover(exchange, 0), array, ranks=(0,), op=ReduceOp.AVERAGE)
    assert array.tolist() == [0.5, 0.5] and other.tolist() == [1, 1]


def test_closed_is_closed() -> None:
    mover = FakeMover(Exchange(), 0)
    mover.close()
    mover.close()
    with pytest.raises(HorovodInternalError, match="closed"):
        allreduce(mover, np.ones(2), ranks=(0,))
