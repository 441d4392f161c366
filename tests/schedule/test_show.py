"""A schedule in a few lines: every epoch is in one of them."""

from __future__ import annotations

import itertools

from hora.schedule.show import EpochRange, _thinned


def test_a_long_schedule_is_shown_in_sixteen_stretches_without_a_gap() -> None:
    found = [EpochRange(epoch, epoch, float(epoch), epoch + 0.5) for epoch in range(50)]
    shown = _thinned(found)
    assert len(shown) == 16 and (shown[0].first, shown[-1].last) == (0, 49)
    assert [after.first - before.last for before, after in itertools.pairwise(shown)] == [1] * 15
    assert {stretch.last - stretch.first for stretch in shown} == {2, 3}
    assert all((s.begins, s.ends) == (float(s.first), s.last + 0.5) for s in shown)
    assert _thinned(found[:16]) == found[:16]
