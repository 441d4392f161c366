"""Speed from a run's lines: against numpy, and against what the interval promises."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from hora.lab.trial.measure import first_batch_s, interval, speed, training_time, warmup
from hora.workloads import WorkloadOptions
from hora.workloads.folder import RunNote


def lines(step_s: list[float], batch: int = 32, last: int = 0) -> list[dict[str, float]]:
    made, samples = [], 0
    for number, seconds in enumerate(step_s, start=1):
        size = last if last and number == len(step_s) else batch
        samples += size
        made.append({"step": number, "samples": samples, "images_per_s": size / seconds, "data_s": seconds / 10})
    return made


def test_the_speed_is_that_of_the_median_steady_step() -> None:
    step_s = [9.0, *np.random.default_rng(1).uniform(0.1, 0.2, 99)]
    found = speed(lines(step_s))
    steady = step_s[10:]
    assert found.warmup_steps == 10 and found.step_s == pytest.approx(steady)
    assert found.images_per_s == pytest.approx(32 / np.median(steady))
    assert found.data_s == pytest.approx(np.median(steady) / 10)
    assert found.low < found.images_per_s < found.high
    assert found.study == pytest.approx(32 / np.mean(step_s)) and found.study_steps == 100


def test_the_studys_formula_takes_the_first_200_with_the_first() -> None:
    step_s = [20.0, *[0.5] * 199, *[7.0] * 300]
    found = speed(lines(step_s))
    assert found.study == pytest.approx(32 / np.mean(step_s[:200])) and found.study_steps == 200


def test_a_smaller_last_step_is_no_step_like_the_others() -> None:
    found = speed(lines([0.1] * 19 + [0.001], last=3))
    assert len(found.step_s) == 14 and found.images_per_s == pytest.approx(320)


def test_a_run_that_went_on_does_not_know_its_first_steps_samples() -> None:
    assert len(speed(lines([0.1] * 30)[10:]).step_s) == 19 - 5


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_few_steps_are_better_than_none(steps: int) -> None:
    found = speed(lines([0.5] * steps))
    assert len(found.step_s) == steps - warmup(steps)
    assert math.isnan(found.images_per_s) if steps == 0 else found.images_per_s == pytest.approx(64)


def test_lines_that_say_nothing_of_a_step_are_left_out() -> None:
    assert speed([{"step": 1}, *lines([0.5] * 4), {"step": 5, "samples": None}]).images_per_s == pytest.approx(64)


@pytest.mark.parametrize("count", [5, 12, 41, 2000])
def test_the_interval_holds_the_median_in_nine_of_ten_cases(count: int) -> None:
    """The true median of an exponential distribution is ln 2; the order statistics are exact, not asymptotic."""
    random = np.random.default_rng(count)
    held = 0
    for _ in range(400):
        low, high = interval(random.exponential(size=count).tolist())
        held += low <= math.log(2) <= high
    exact = 1 - 2 * sum(math.comb(count, k) for k in range(_rank(count) + 1)) / 2**count
    assert exact >= (0.9 if count > 4 else 0)
    assert abs(held / 400 - exact) < 0.06


def _rank(count: int) -> int:
    """How many of the values are outside on each side, from the definition."""
    total, rank = 0, 0
    while (total := total + math.comb(count, rank)) / 2**count <= 0.05:
        rank += 1
    return max(0, rank - 1)


def test_the_time_of_training_begins_after_the_first_step(tmp_path: Path) -> None:
    assert training_time(tmp_path) == (-math.inf, math.inf) and math.isnan(first_batch_s(tmp_path, 0.0))
    note = RunNote(WorkloadOptions(out=str(tmp_path)), {}, workers=1)
    began, ended = training_time(tmp_path)
    assert ended == math.inf and math.isnan(first_batch_s(tmp_path, began))
    note.first_step()
    note.end(None, {"first_batch_s": 0.125})
    first, last = training_time(tmp_path)
    assert began <= first <= last < math.inf
    assert first_batch_s(tmp_path, began - 3.0) == pytest.approx(first - began + 3.0)


def test_the_first_batch_of_another_host_is_by_its_own_clock(tmp_path: Path) -> None:
    note = RunNote(WorkloadOptions(out=str(tmp_path)), {}, workers=1)
    note._file.host["hostname"] = "elsewhere"
    note.first_step()
    note.end(None, {"first_batch_s": 0.125})
    assert first_batch_s(tmp_path, 0.0) == 0.125
