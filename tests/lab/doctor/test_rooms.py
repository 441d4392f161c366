"""The list of checks."""

from __future__ import annotations

import pytest

from hora.errors import UsageError
from hora.lab.doctor.rooms import ROOMS, choose


def test_every_check_has_a_name_in_its_room_a_deadline_and_says_what_it_tried() -> None:
    for room, checks in ROOMS.items():
        assert len({check.name for check in checks}) == len(checks)
        for check in checks:
            assert check.room == room and check.tried and 0 < check.deadline_s <= 300


def test_choosing() -> None:
    assert {check.room for check in choose(["limits"])} == {"limits"}
    assert {"gloo", "cuda"} & {check.name for check in choose(quick=True)} == set()
    assert len(choose()) == sum(map(len, ROOMS.values()))
    with pytest.raises(UsageError, match="limits: nofile"):
        choose(["nonsense"])
