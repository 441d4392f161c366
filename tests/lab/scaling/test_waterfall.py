"""A step is divided into parts worked out here by hand; none is below nothing, and together they are the step."""

from __future__ import annotations

import math
from itertools import pairwise, product

import pytest

from hora.lab.scaling.show import waterfall_lines
from hora.lab.scaling.waterfall import PARTS, Levels, above_ideal, lost, parts, plain


def seconds(levels: Levels) -> dict[str, float]:
    return {part.part: round(part.seconds, 9) for part in parts(levels)}


def test_every_part_is_the_difference_of_what_was_measured() -> None:
    """100 ms alone; 20 more in contention, 30 more in step, 40 more with gradients; 50 for data, 10 of pauses: 250."""
    levels = Levels(ideal=0.1, alone=0.1, limit=0.12, in_step=0.15, job=0.19, data=0.05, pauses=0.01)
    assert seconds(levels) == {
        "computing": 0.1, "contention": 0.02, "waiting": 0.03, "moving": 0.04, "data": 0.05, "pauses": 0.01
    }  # fmt: skip
    found = parts(levels)
    assert lost(found, "computing") == pytest.approx(0.1 / 0.25)
    assert lost(found, "waiting", "moving") == pytest.approx(0.28)


def test_strong_scaling_begins_with_a_share_of_the_whole_batch() -> None:
    """64 images take 100 ms, so 32 should take 50, and take 60."""
    found = seconds(Levels(ideal=0.05, alone=0.06, limit=0.06, in_step=0.07, job=0.08))
    assert found["computing"] == 0.05 and found["small batch"] == 0.01 and found["contention"] == 0.0


def test_what_was_not_measured_is_no_part_or_has_no_figure() -> None:
    found = {part.part: part for part in parts(Levels(ideal=0.1, alone=0.1, limit=0.11, job=0.15))}
    assert "waiting" not in found and "moving" not in found, "which cannot be told apart"
    assert found["communication"].seconds == pytest.approx(0.04)
    assert math.isnan(found["pauses"].share) and plain([found["pauses"]])[0]["share"] is None
    assert sum(part.share for part in found.values() if part.part != "pauses") == pytest.approx(1.0)


@pytest.mark.parametrize("levels", list(product((0.08, 0.1, 0.12), repeat=4)))
def test_in_whatever_order_noise_puts_them_parts_are_the_step(levels: tuple[float, float, float, float]) -> None:
    alone, limit, in_step, job = levels
    found = parts(Levels(ideal=alone, alone=alone, limit=limit, in_step=in_step, job=job, data=0.02))
    known = [part for part in found if math.isfinite(part.share)]
    assert all(part.seconds >= 0 for part in known)
    assert sum(part.seconds for part in known) == pytest.approx(job + 0.02)
    assert sum(part.share for part in known) == pytest.approx(1.0)
    assert all(part.part in PARTS for part in found)


@pytest.mark.parametrize(
    ("value", "flagged"), [(1.88, True), (1.021, True), (1.02, False), (0.5, False), (None, False)]
)
def test_more_than_ideal_is_flagged(value: float | None, flagged: bool) -> None:
    assert above_ideal(value) is flagged


def test_bars_begin_where_the_one_before_ends_and_fit() -> None:
    found = plain(parts(Levels(ideal=0.1, alone=0.1, limit=0.12, in_step=0.15, job=0.19, data=0.05, pauses=0.01)))
    lines = waterfall_lines(found, 80)
    assert max(map(len, lines)) <= 80 and len(lines) == len(found) + 1
    bars = [(line.index("█"), line.rindex("█") + 1) for line in lines]
    begin, end = bars[-1]
    assert bars[0][0] == begin and bars[-2][1] == end, "the last line is the whole step"
    assert all(before[1] == after[0] for before, after in pairwise(bars[:-1]))
