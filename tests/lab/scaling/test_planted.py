"""A bottleneck that is planted in real workers is named. A dozen: ``python -m tests.lab.scaling.planted_runs``."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.scaling.planted_runs import PLANTED, ask, right


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_slow_rank_is_named_and_the_rows_are_consistent(tmp_path: Path) -> None:
    planted = next(planted for planted in PLANTED if planted.name == "slow-rank")
    shorter = planted._replace(arguments=planted.arguments.replace("--steps 16", "--steps 10"))
    found = ask(shorter, tmp_path, repeats=1)
    assert right(planted, found), found["findings"]
    assert found["findings"][0]["mode"] == "weak" and found["findings"][0]["gain"] > 0.3
    one, two = found["rows"]
    assert (one["workers"], two["workers"], one["speed_up"]) == (1, 2, 1.0)
    assert two["efficiency"] == pytest.approx(two["images_per_s"] / one["images_per_s"] / 2, rel=1e-4)
    assert two["efficiency_low"] <= two["efficiency"] <= two["efficiency_high"]
    assert two["ideal_images_per_s"] == pytest.approx(2 * one["images_per_s"], rel=1e-4)
