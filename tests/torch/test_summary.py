"""The live line on one rank, with a clock of its own. Several ranks are in tests/multi/bodies/guards.py."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

import hora.torch as hvd
from hora.torch.summary import Figures, Summary, from_settings, line, slowest


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def run(summary: Summary, clock: Clock, steps: int, step_s: float, exposed_s: float = 0.01) -> None:
    for _ in range(steps):
        clock.now += step_s
        summary.end_step(exposed_s, 2_000_000, summary.is_due())


def test_in_a_log_there_is_a_line_every_few_seconds_and_one_at_the_end() -> None:
    clock, stream = Clock(), io.StringIO()
    summary = Summary(stream=stream, clock=clock)
    run(summary, clock, 121, 0.1)
    summary.close()
    summary.close()
    said = stream.getvalue().splitlines()
    assert len(said) == 4
    assert said[0] == "hora: step 2: 100 ms, of which 10.0 ms (10 %) waiting for others; 1.91 MB sent"
    assert said[-1].startswith("hora: step 121: 100 ms")


def test_on_a_terminal_the_line_is_rewritten() -> None:
    clock, stream = Clock(), Terminal()
    summary = Summary(stream=stream, clock=clock)
    run(summary, clock, 10, 1.0)
    summary.close()
    text = stream.getvalue()
    assert text.count("\r") == 9 and text.count("\n") == 1 and text.endswith("\n")


def test_the_ranks_are_asked_after_the_third_step_first() -> None:
    clock, due = Clock(), []
    summary = Summary(stream=io.StringIO(), clock=clock)
    for _ in range(4):
        due.append(summary.is_due())
        run(summary, clock, 1, 0.1)
    assert due == [False, False, True, False]


def test_on_a_terminal_nothing_is_said_of_nothing() -> None:
    clock, stream = Clock(), Terminal()
    summary = Summary(stream=stream, clock=clock)
    run(summary, clock, 1, 0.1)  # from where the first step is measured
    summary.close()
    assert stream.getvalue() == ""


def test_the_first_step_does_not_count_and_an_outlier_does_not_matter() -> None:
    clock = Clock()
    summary = Summary(stream=io.StringIO(), clock=clock)
    run(summary, clock, 1, 30.0)
    run(summary, clock, 20, 0.2)
    run(summary, clock, 1, 9.0)
    figures = summary.figures()
    assert figures.steps == 22 and abs(figures.step_s - 0.2) < 1e-9


def test_a_second_optimizer_says_so() -> None:
    clock, stream = Clock(), io.StringIO()
    for summary in (Summary(stream=io.StringIO(), clock=clock), Summary(stream=stream, clock=clock)):
        run(summary, clock, 3, 1.0)
    assert stream.getvalue().startswith("hora: optimizer 2, step 2:")


def test_nothing_is_said_of_no_steps() -> None:
    stream = io.StringIO()
    Summary(stream=stream).close()
    assert stream.getvalue() == ""


def test_a_closed_stream_does_not_end_the_training() -> None:
    clock, stream = Clock(), io.StringIO()
    summary = Summary(stream=stream, clock=clock)
    stream.close()
    run(summary, clock, 5, 10.0)


def test_settings_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    assert from_settings() is None
    hvd.shutdown()
    monkeypatch.setenv("HORA_SUMMARY", "1")
    hvd.init()
    assert from_settings() is not None


def test_units() -> None:
    assert "2.50 s, of which 120 µs (0 %)" in line(Figures(1, 2.5, 0.00012, 10))
    assert "; 10 B sent" in line(Figures(1, 2.5, 0.0, 10))
    assert "; 2.98 GB sent" in line(Figures(1, 2.5, 0.0, 3_200_000_000))


def test_alone_nobody_is_slowest() -> None:
    assert slowest({0: 0.3}) == (-1, 0.0)
