"""Objects survive the trip, and those that cannot make it raise at the other end too."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pytest

from hora.errors import HorovodInternalError
from hora.ops.objects import pack, unpack

KEY = b"known to the ranks of this job"


@pytest.mark.parametrize("value", [None, 0, "text", {"a": [1, 2.5, (True, None)]}, b""])
def test_there_and_back(value: object) -> None:
    data, failure = pack(value, KEY, 0)
    assert failure is None
    assert unpack(data, KEY, sender=0) == value


def test_a_lambda_goes_with_its_code() -> None:
    offset = 3
    data, failure = pack(lambda x: x + offset, KEY, 0)
    assert failure is None
    assert unpack(data, KEY, sender=0)(4) == 7


def test_a_failure_reaches_the_receiver() -> None:
    data, failure = pack(threading.Lock(), KEY, 3)
    assert isinstance(failure, TypeError)
    with pytest.raises(HorovodInternalError, match=r"rank 3 could not .*lock"):
        unpack(data, KEY, sender=3)


def test_stand_ins() -> None:
    class Thing: ...

    thing = Thing()
    data, _ = pack([thing, 1, thing], KEY, 0, persistent_id=lambda value: "thing" if value is thing else None)
    replacement = Thing()
    received = unpack(data, KEY, 0, persistent_load=lambda recipe: replacement if recipe == "thing" else None)
    assert received == [replacement, 1, replacement]


class Evil:
    """Unpickling one creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_what_somebody_else_made_is_not_unpickled(tmp_path: Path) -> None:
    proof = tmp_path / "was here"
    pickle.loads(pickle.dumps(Evil(proof)))
    assert proof.exists()
    proof.unlink()
    bare = b"\0" + pickle.dumps(Evil(proof))
    stranger, _ = pack(Evil(proof), b"another key", 1)
    another_rank, _ = pack(Evil(proof), KEY, 2)
    for data in (bare, stranger, another_rank):
        with pytest.raises(HorovodInternalError, match="came as the object of rank 1 are not what it sent"):
            unpack(data, KEY, 1)
    assert not proof.exists()


def test_every_byte_counts() -> None:
    data, _ = pack({"epoch": 3}, KEY, 0)
    for at in range(len(data)):
        altered = bytearray(data)
        altered[at] ^= 1
        with pytest.raises(HorovodInternalError, match="not what it sent"):
            unpack(bytes(altered), KEY, 0)
    for cut in (b"", data[:10], data[:32], data[:-1], data + b"\0"):
        with pytest.raises(HorovodInternalError, match=f"the {len(cut)} bytes"):
            unpack(cut, KEY, 0)


def test_a_failure_that_somebody_else_made_up_is_not_believed() -> None:
    with pytest.raises(HorovodInternalError, match="not what it sent"):
        unpack(bytes(32) + b"\1TypeError: send me your password", KEY, 0)
