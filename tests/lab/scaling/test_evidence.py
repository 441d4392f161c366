"""A step's time is divided into parts that were put together here."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.lab.throughput.outcomes import outcome

from hora.lab.scaling.evidence import Evidence, Place, divide
from hora.lab.throughput.pool import Pool

PLACE = Place(workers=2, workers_per_host=2, batch=32, threads=1, cores=2)


def pool(step_s: float, **more: Any) -> Pool:
    return Pool([outcome([step_s] * 10, **more)])


def divided(
    place: Place = PLACE, *, job: float, ranks: tuple[float, float], alone: float, whole: float = 0.0, data: float = 0.0
) -> Evidence:
    found = divide(
        place,
        job=pool(job, workers=2, data_s=data),
        limit=pool(ranks[0], workers=2, ranks={1: ranks[1]}, data_s=data),
        alone=pool(alone, data_s=data),
        whole=pool(whole or alone, batch=64 if whole else 32, data_s=data),
    )
    assert found is not None
    return found


def test_each_part_is_found() -> None:
    """100 ms computing, 20 more beside another worker, 30 more on rank 1, 50 of communication: 200."""
    seen = divided(job=0.2, ranks=(0.12, 0.15), alone=0.1)
    assert math.isclose(seen.machine.value, 0.02 / 0.2)
    assert seen.slow_rank == 1 and math.isclose(seen.slow_rank_share, 0.03 / 0.2)
    assert math.isclose(seen.communication.value, 0.05 / 0.2)
    assert math.isclose(seen.efficiency.value, 0.5)
    parts = seen.alone_s / seen.step_s + seen.machine.value + seen.slow_rank_share + seen.communication.value
    assert math.isclose(parts, 1.0)


def test_waiting_for_data_is_no_part_of_the_machine_or_of_communication() -> None:
    seen = divided(job=0.2, ranks=(0.15, 0.15), alone=0.15, data=0.08)
    assert math.isclose(seen.input, 0.4) and seen.machine.value == 0.0
    assert math.isclose(seen.communication.value, 0.25)


def test_a_slow_first_rank_is_seen_although_it_is_as_slow_alone() -> None:
    seen = divided(job=0.2, ranks=(0.2, 0.1), alone=0.2)
    assert seen.slow_rank == 0 and math.isclose(seen.slow_rank_share, 0.5)
    assert seen.machine.value == seen.communication.value == 0.0
    assert math.isclose(seen.efficiency.value, 1.0), "which says nothing here"


def test_strong_scaling_pays_for_smaller_batches() -> None:
    """32 images take 60 ms, although 64 take 100."""
    place = Place(mode="strong", workers=2, workers_per_host=2, batch=32, threads=1, cores=2)
    seen = divided(place, job=0.08, ranks=(0.06, 0.06), alone=0.06, whole=0.1)
    assert math.isclose(seen.small_batch.value, 0.01 / 0.08)
    assert math.isclose(seen.communication.value, 0.02 / 0.08)
    assert math.isclose(seen.efficiency.value, 100 / 80 / 2)


def test_a_disturbed_run_is_not_taken_for_a_bottleneck() -> None:
    quiet, disturbed = outcome([0.1] * 10, workers=2), outcome([0.3] * 10, workers=2, turn=1)
    limit = pool(0.1, workers=2, ranks={1: 0.1})
    seen = divide(PLACE, job=Pool([disturbed, quiet]), limit=limit, alone=pool(0.1), whole=pool(0.1))
    assert seen is not None and seen.communication.value == 0.0
    assert seen.efficiency.low < 0.5, "but efficiency is not sure"


@pytest.mark.parametrize("missing", ["job", "alone"])
def test_nothing_is_said_without_the_job_or_one_worker_alone(missing: str) -> None:
    pools = {"job": pool(0.2, workers=2), "limit": Pool([]), "alone": pool(0.1), "whole": pool(0.1)}
    assert divide(PLACE, **{**pools, missing: Pool([])}) is None
    seen = divide(PLACE, **pools)
    assert seen is not None and math.isnan(seen.communication.value), "without a limit it is not known"
