"""The plan against the published schedules: every expected number below is from a paper, a script or the study."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.errors import UsageError
from hora.schedule import Decay, LearningRatePlan, Warmup, parse_decay, parse_warmup

STUDY = {"base_lr": 0.1, "base_batch": 256, "decay": parse_decay("30,60,80"), "epochs": 90, "samples": 1_281_167}


def rates(plan: LearningRatePlan, epochs: int, digits: int = 4) -> list[float]:
    return [round(plan.lr_at_epoch(epoch), digits) for epoch in range(epochs)]


@pytest.mark.parametrize(
    ("warmup", "expected"),
    [
        ("stepping:5", [0.2667, 0.5333, 0.8, 1.0667, 1.3333, 1.6]),
        ("gradual:5", [0.05, 0.36, 0.67, 0.98, 1.29, 1.6]),
        ("gradual:10", [0.05, 0.205, 0.36, 0.515, 0.67, 0.825, 0.98, 1.135, 1.29, 1.445, 1.6]),
        ("none", [1.6, 1.6]),
    ],
)
def test_the_studys_warm_ups_for_32_workers_of_128(warmup: str, expected: list[float]) -> None:
    plan = LearningRatePlan(batch=128, workers=32, warmup=parse_warmup(warmup), **STUDY)
    assert rates(plan, len(expected)) == expected
    assert rates(plan, 90)[30] == 0.16 and rates(plan, 90)[60] == 0.016 and rates(plan, 90)[89] == 0.0016


def test_the_study_warms_up_only_large_batches() -> None:
    assert LearningRatePlan(batch=128, workers=2, warmup=Warmup("stepping", 5), **STUDY).lr_at_epoch(0) == 0.1
    assert LearningRatePlan(batch=64, workers=1, warmup=Warmup("gradual", 5), **STUDY).lr_at_epoch(0) == 0.025


def test_goyals_8k_run_rises_by_a_constant_each_iteration() -> None:
    plan = LearningRatePlan(batch=32, workers=256, warmup=Warmup("iteration", 5), **STUDY)
    assert plan.peak_lr == pytest.approx(3.2)
    warm = [plan.lr_at_epoch(step / plan.steps_per_epoch) for step in range(5 * plan.steps_per_epoch + 1)]
    assert warm[0] == pytest.approx(0.1) and warm[-1] == pytest.approx(3.2)
    increments = {round(after - before, 9) for before, after in itertools.pairwise(warm)}
    assert len(increments) == 1


@pytest.mark.parametrize("size", [1, 4, 16])
def test_horovods_callback(size: int) -> None:
    """Its formula, written as its PyTorch example has it."""
    plan = LearningRatePlan(
        base_lr=0.0125, base_batch=32, batch=32, workers=size, warmup=Warmup("horovod", 5), samples=32 * 100 * size,
        epochs=90, decay=parse_decay("30,60,80"),
    )  # fmt: skip
    for epoch in range(5):
        for batch in range(100):
            position = epoch + (batch + 1) / 100
            expected = 0.0125 * size * (1 / size) * (position * (size - 1) / 5 + 1)
            assert plan.lr_at_epoch(epoch + batch / 100) == pytest.approx(expected, rel=1e-12)
    assert plan.lr_at_epoch(5) == pytest.approx(0.0125 * size)


@pytest.mark.parametrize(("size", "accumulation"), [(1, 2), (4, 2), (2, 8)])
def test_horovods_warm_up_with_accumulation(size: int, accumulation: int) -> None:
    """Its example warms up from base * batches_per_allreduce, the rate of one worker, to size times as much."""
    plan = LearningRatePlan(
        base_lr=0.0125, base_batch=32, batch=32, workers=size, accumulation=accumulation,
        warmup=Warmup("horovod", 5), samples=32 * 100 * size * accumulation, epochs=90,
    )  # fmt: skip
    for epoch in range(5):
        for step in range(100):
            position = epoch + (step + 1) / 100
            expected = 0.0125 * accumulation * (position * (size - 1) / 5 + 1)
            assert plan.lr_at_epoch(epoch + step / 100) == pytest.approx(expected, rel=1e-12)
    assert plan.lr_at_epoch(5) == pytest.approx(0.0125 * size * accumulation)


def test_the_courses_resnet_56() -> None:
    plan = LearningRatePlan(
        base_lr=0.08, base_batch=128, batch=128, workers=16, warmup=Warmup("horovod", 20), samples=50_000, epochs=80,
        decay=parse_decay("41:0.125,61:0.025,71:0.005"),
    )  # fmt: skip
    assert plan.steps_per_epoch == 24 and plan.total_steps == 1920
    for epoch, rate in {20: 0.08, 40: 0.08, 41: 0.01, 60: 0.01, 61: 0.002, 70: 0.002, 71: 0.0004, 79: 0.0004}.items():
        assert plan.lr_at_epoch(epoch) == pytest.approx(rate * 16)


def test_mlperfs_lars() -> None:
    for workers, peak, warmup in ((16, 10.0, 5), (64, 25.0, 5), (128, 31.2, 25)):
        plan = LearningRatePlan(base_lr=None, rule="lars", batch=256, workers=workers, warmup=Warmup("zero", warmup),
                    decay=Decay("polynomial", 2.0), epochs=90)  # fmt: skip
        assert plan.peak_lr == peak
        assert plan.lr_at_epoch(0) == 0.0 and plan.lr_at_epoch(warmup) == peak
        middle = (90 + warmup) / 2
        assert plan.lr_at_epoch(middle) == pytest.approx(1e-4 + (peak - 1e-4) * 0.25)
        assert plan.lr_at_epoch(90) == pytest.approx(1e-4)


def test_cosine_after_the_warm_up() -> None:
    plan = LearningRatePlan(
        base_lr=0.4, base_batch=1024, batch=256, workers=4, warmup=Warmup("zero", 5), decay=Decay("cosine")
    )
    for epoch in (5, 30, 47.5, 89):
        expected = 0.4 * 0.5 * (1 + math.cos(math.pi * (epoch - 5) / 85))
        assert plan.lr_at_epoch(epoch) == pytest.approx(expected)


@given(workers=st.integers(1, 64), more=st.integers(1, 64), epoch=st.integers(0, 89))
def test_samples_are_what_counts_when_the_size_changes(workers: int, more: int, epoch: int) -> None:
    """A run that has seen whole epochs of samples is at the same epoch, whatever it goes on with."""
    samples = math.lcm(workers, more)
    plan = LearningRatePlan(batch=1, workers=workers, warmup=Warmup("iteration", 5), base_batch=64, samples=samples,
                decay=parse_decay("30,60,80"))  # fmt: skip
    peak = 0.1 * more / 64
    expected = 0.1 + epoch / 5 * (peak - 0.1) if epoch < 5 else peak * 0.1 ** sum(epoch >= at for at in (30, 60, 80))
    assert plan.resized(more).lr(epoch * samples) == pytest.approx(expected)


@given(
    st.integers(1, 512),
    st.integers(1, 256),
    st.sampled_from(["none", "stepping:5", "gradual:5", "iteration:5", "zero:5"]),
)
def test_no_rate_is_above_the_peak_or_below_zero(workers: int, batch: int, warmup: str) -> None:
    plan = LearningRatePlan(batch=batch, workers=workers, base_lr=0.1, base_batch=1, warmup=parse_warmup(warmup))
    for epoch in range(0, 90, 3):
        assert 0 <= plan.lr_at_epoch(epoch) <= plan.peak_lr * (1 + 1e-12)


@pytest.mark.parametrize("text", ["", "gradual:x", "gradual:0", "gradual:-1", "steep:5", "none:3", "gradual:nan"])
def test_a_warm_up_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="warm-up"):
        parse_warmup(text)


@pytest.mark.parametrize("text", ["", "30,x", "60,30", "30,30", "cosine:2", "every:0", "-3", "30:0.1:2"])
def test_a_decay_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="decay"):
        parse_decay(text)


@pytest.mark.parametrize("text", ["none", "30,60,80", "every:30", "41:0.125,61:0.025", "cosine", "polynomial:2"])
def test_a_decay_can_be_written_down_and_read_again(text: str) -> None:
    assert str(parse_decay(text)) == text


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"batch": -1}, {"base_lr": 0.0}, {"base_lr": None}, {"epochs": 0},
                                   {"warmup": Warmup("gradual", 100)}])  # fmt: skip
def test_a_plan_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        LearningRatePlan(**wrong)  # type: ignore[arg-type]


def test_cautions() -> None:
    assert not LearningRatePlan(batch=32, workers=8).cautions()
    assert "warm up" in LearningRatePlan(batch=128, workers=32).cautions()[0]
    assert "LARS" in LearningRatePlan(batch=256, workers=64, warmup=Warmup("iteration", 5)).cautions()[0]
    assert not LearningRatePlan(batch=256, workers=64, warmup=Warmup("zero", 5), rule="lars", base_lr=None).cautions()
    assert LearningRatePlan(batch=512, workers=128, warmup=Warmup("zero", 5), rule="lars", base_lr=None).cautions()
