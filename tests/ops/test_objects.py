"""Objects survive the trip, and those that cannot make it raise at the other end too."""

from __future__ import annotations

import threading

import pytest

from hora.errors import HorovodInternalError
from hora.ops.objects import pack, unpack


@pytest.mark.parametrize("value", [None, 0, "text", {"a": [1, 2.5, (True, None)]}, b""])
def test_there_and_back(value: object) -> None:
    data, failure = pack(value)
    assert failure is None
    assert unpack(data, sender=0) == value


def test_a_lambda_goes_with_its_code() -> None:
    offset = 3
    data, failure = pack(lambda x: x + offset)
    assert failure is None
    assert unpack(data, sender=0)(4) == 7


def test_a_failure_reaches_the_receiver() -> None:
    data, failure = pack(threading.Lock())
    assert isinstance(failure, TypeError)
    with pytest.raises(HorovodInternalError, match=r"rank 3 could not .*lock"):
        unpack(data, sender=3)


def test_stand_ins() -> None:
    class Thing: ...

    thing = Thing()
    data, _ = pack([thing, 1, thing], persistent_id=lambda value: "thing" if value is thing else None)
    replacement = Thing()
    received = unpack(data, 0, persistent_load=lambda recipe: replacement if recipe == "thing" else None)
    assert received == [replacement, 1, replacement]
