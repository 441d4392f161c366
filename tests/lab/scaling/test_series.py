"""Weak and strong scaling as points."""

from __future__ import annotations

import pytest

from hora.errors import UsageError
from hora.lab.scaling.series import series
from hora.lab.throughput.grid import GridPoint


def test_strong_scaling_divides_and_measures_one_worker_with_a_share_of_the_batch() -> None:
    strong = series("strong", [4, 2], 64, 1, transport="gloo", cores=4)
    assert strong.points == (GridPoint(1, 64, 1), GridPoint(2, 32, 1, "gloo"), GridPoint(4, 16, 1, "gloo"))
    assert strong.alone == GridPoint(1, 16, 1) and strong.remedy is None


def test_weak_scaling_needs_no_more_than_its_points() -> None:
    weak = series("weak", [1, 2], 64, 1, cores=2)
    assert weak.all_points == weak.points == (GridPoint(1, 64, 1), GridPoint(2, 64, 1))


@pytest.mark.parametrize(("batch", "fits"), [(64, "60 or 72"), (7, "12")])
def test_an_uneven_division_is_refused_with_the_batches_that_fit(batch: int, fits: str) -> None:
    with pytest.raises(UsageError, match=f"{batch} cannot be divided among .* Give --batch {fits}, or other"):
        series("strong", [1, 2, 3, 4], batch, 1, cores=4)


def test_more_threads_than_cores_are_measured_beside_as_many_as_fit() -> None:
    assert series("weak", [1, 2], 64, 4, cores=4).remedy == GridPoint(2, 64, 2)
    assert series("weak", [1, 8], 64, 1, cores=4).remedy is None, "there are no fewer threads than one"
    assert series("weak", [1, 4], 64, 2, cores=4, hosts="h1:2,h2:2").remedy is None, "each host has two of the workers"


def test_of_ddp_only_several_workers_differ() -> None:
    by_ddp = series("weak", [1, 2], 64, 4, transport="gloo", strategy="ddp", cores=4)
    assert by_ddp.points == (GridPoint(1, 64, 4), GridPoint(2, 64, 4, "auto", "ddp"))  # transports are Hora's
    assert by_ddp.remedy is None  # the verdict is on Hora
