"""A step's time is divided into parts that were put together here."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from tests.lab.throughput.outcomes import outcome

from hora.lab.scaling.evidence import Evidence, Pauses, RunConditions, divide
from hora.lab.throughput.pool import Pool

CONDITIONS = RunConditions(workers=2, workers_per_host=2, batch=32, threads=1, cores=2)


def pool(step_s: float, **more: Any) -> Pool:
    return Pool([outcome([step_s] * 10, **more)])


def divided(
    conditions: RunConditions = CONDITIONS,
    *,
    job: float,
    ranks: tuple[float, float],
    alone: float,
    in_step: float = 0.0,
    meeting: float = 0.0,
    whole: float = 0.0,
    data: float = 0.0,
    pauses: Pauses | None = None,
) -> Evidence:
    met = pool(in_step, workers=2, data_s=data, result={"by_turns": {"meeting": meeting}}) if in_step else None
    found = divide(
        conditions,
        job=pool(job, workers=2, data_s=data),
        limit=pool(ranks[0], workers=2, ranks={1: ranks[1]}, data_s=data),
        alone=pool(alone, data_s=data),
        whole=pool(whole or alone, batch=64 if whole else 32, data_s=data),
        in_step=met,
        pauses=pauses,
    )
    assert found is not None
    return found


def test_each_part_is_found() -> None:
    """100 ms computing, 20 more beside another worker, 30 more for rank 1 and 10 by turns, 40 of moving: 200."""
    seen = divided(job=0.2, ranks=(0.12, 0.15), in_step=0.16, alone=0.1)
    assert math.isclose(seen.contention.value, 0.02 / 0.2)
    assert seen.slow_rank == 1 and math.isclose(seen.slow_rank_share, 0.03 / 0.2)
    assert math.isclose(seen.waiting.value, 0.04 / 0.2) and math.isclose(seen.moving.value, 0.04 / 0.2)
    assert math.isclose(seen.efficiency.value, 0.5) and math.isclose(seen.speed_up.value, 1.0)
    assert [part.part for part in seen.parts] == ["computing", "contention", "waiting", "moving", "data", "pauses"]
    assert math.isclose(seen.share("computing", "contention", "waiting", "moving"), 1.0)


def test_waiting_for_the_slower_worker_is_not_moving() -> None:
    """As it was on two quiet cores: meeting costs what Hora costs, so moving 12 MB costs nothing."""
    seen = divided(job=0.196, ranks=(0.18, 0.182), in_step=0.196, alone=0.178)
    assert seen.share("moving") == 0.0 and math.isclose(seen.share("waiting"), 0.016 / 0.196)


def test_the_bare_meeting_is_moving_not_waiting() -> None:
    """A link with 50 ms of latency: meeting costs 50 ms although nobody is late, and gradients 150."""
    seen = divided(job=0.25, ranks=(0.1, 0.1), in_step=0.15, meeting=0.05, alone=0.1)
    assert seen.share("waiting") == pytest.approx(0.0) and seen.share("moving") == pytest.approx(0.6)
    three = msgspec.structs.replace(seen, batches=1.0)
    assert three.latency == pytest.approx(2 * 0.05 / 0.25), "one exchange of gradients and one meeting"
    assert math.isnan(seen.latency), "how many exchanges there are is not known"


def test_waiting_for_data_is_no_part_of_the_machine_or_of_communication() -> None:
    seen = divided(job=0.2, ranks=(0.15, 0.15), in_step=0.15, alone=0.15, data=0.08)
    assert math.isclose(seen.share("data"), 0.4) and seen.share("contention") == 0.0
    assert math.isclose(seen.share("moving"), 0.25)


def test_pauses_are_spread_over_the_steps_of_an_epoch() -> None:
    """6 s of validation and four checkpoints of 1 s in an epoch of 100 steps: 100 ms a step of 200."""
    pauses = Pauses(validation_s=6.0, save_s=1.0, save_every=0.25, steps_per_epoch=100)
    seen = divided(job=0.1, ranks=(0.1, 0.1), in_step=0.1, alone=0.1, pauses=pauses)
    assert seen.share("pauses") == pytest.approx(0.5) and seen.total_s == pytest.approx(0.2)
    assert Pauses(save_s=1.0, save_every=0).save_step_s == 0.0, "only at the end"


def test_a_slow_first_rank_is_seen_although_it_is_as_slow_alone() -> None:
    seen = divided(job=0.2, ranks=(0.2, 0.1), in_step=0.2, alone=0.2)
    assert seen.slow_rank == 0 and math.isclose(seen.slow_rank_share, 0.5)
    assert seen.contention.value == seen.moving.value == 0.0
    assert math.isclose(seen.efficiency.value, 1.0), "which says nothing here"


def test_strong_scaling_pays_for_smaller_batches() -> None:
    """32 images take 60 ms, although 64 take 100."""
    conditions = msgspec.structs.replace(CONDITIONS, mode="strong")
    seen = divided(conditions, job=0.08, ranks=(0.06, 0.06), in_step=0.06, alone=0.06, whole=0.1)
    assert math.isclose(seen.share("small batch"), 0.01 / 0.08)
    assert math.isclose(seen.share("moving"), 0.02 / 0.08)
    assert math.isclose(seen.efficiency.value, 100 / 80 / 2)


def test_what_disturbs_a_run_by_turns_disturbs_all_of_it() -> None:
    """In one of two runs everything took three times as long: nothing of that is waiting or moving."""

    def runs(step_s: float, **more: Any) -> Pool:
        return Pool([outcome([times * step_s] * 10, workers=2, turn=times, **more) for times in (1, 3)])

    limit = Pool([outcome([t * 0.1] * 10, workers=2, turn=t, ranks={1: t * 0.1}) for t in (1, 3)])
    met = runs(0.1, result={"by_turns": {"meeting": 0.0}})
    seen = divide(CONDITIONS, job=runs(0.1), limit=limit, in_step=met, alone=pool(0.1), whole=pool(0.1))
    assert seen is not None and seen.share("moving", "waiting") == pytest.approx(0.0)
    assert seen.efficiency.low < 0.5, "but efficiency is not sure"


@pytest.mark.parametrize("missing", ["job", "alone"])
def test_nothing_is_said_without_the_job_or_one_worker_alone(missing: str) -> None:
    pools = {"job": pool(0.2, workers=2), "limit": Pool([]), "alone": pool(0.1), "whole": pool(0.1)}
    assert divide(CONDITIONS, **{**pools, missing: Pool([])}) is None
    seen = divide(CONDITIONS, **pools)
    assert seen is not None and math.isnan(seen.communication.value), "without a limit it is not known"


def test_a_link_between_hosts_has_a_rate_and_a_share() -> None:
    """13.5 MB a step to the other of two hosts, 900 ms more than in step: 120 Mbit/s, and 90 % of the step."""
    conditions = msgspec.structs.replace(CONDITIONS, hosts=2, workers_per_host=1)
    seen = divided(conditions, job=1.0, ranks=(0.1, 0.1), in_step=0.1, alone=0.1)
    link = msgspec.structs.replace(seen, gradient_bytes=13.5e6).link
    assert link is not None and link.mbit_per_s == pytest.approx(120.0) and link.share == pytest.approx(0.9)
    assert msgspec.structs.replace(seen, conditions=CONDITIONS, gradient_bytes=13.5e6).link is None, (
        "on one host there is none"
    )
