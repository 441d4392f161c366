"""`hora bench elastic`: figures of events that were made up, what a page shows, and one real kill."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from hora.bench.elastic import figures
from hora.bench.elastic.job import Event, _Log, missing, run
from hora.bench.elastic.result import ElasticFigure, ElasticResult, Line, lines
from hora.bench.elastic.worker import ElasticBenchPlan
from hora.transport import shm


def _steps(*rows: tuple[float, int, int, int, int]) -> list[Event]:
    """Steps as (when, generation, size, pid, number)."""
    return [Event(at, "step", generation, size, pid, step) for at, generation, size, pid, step in rows]


def test_a_step_that_was_nearly_over_is_no_recovery() -> None:
    events = [
        *_steps((1.0, 3, 3, 11, 40)),
        Event(1.01, "kill", 3, 3, 13),
        *_steps((1.02, 3, 3, 12, 41), (1.2, 4, 2, 11, 42), (1.3, 4, 2, 12, 42)),
    ]
    assert figures.recoveries(events) == pytest.approx([0.19])


def test_a_kill_that_nobody_recovered_from_is_not_counted() -> None:
    assert figures.recoveries([Event(0.0, "kill", 1, 2, 7), *_steps((1.0, 1, 2, 8, 1))]) == []


def test_the_longest_wait_of_those_who_trained_is_the_newcomers() -> None:
    events = _steps(
        (0.0, 1, 2, 11, 1), (0.1, 1, 2, 11, 2), (0.2, 1, 2, 11, 3), (0.6, 2, 3, 11, 4), (0.7, 2, 3, 11, 5),
        (0.0, 1, 2, 12, 1), (0.1, 1, 2, 12, 2), (0.2, 1, 2, 12, 3), (0.5, 2, 3, 12, 4),
    )  # fmt: skip
    assert figures.joins(events) == pytest.approx([0.3])


def test_a_step_that_is_taken_again_was_lost_and_counts_once() -> None:
    events = [
        Event(0.0, "ready", 0, 0, 11),
        *_steps((0.1, 1, 1, 11, 1), (0.2, 1, 1, 11, 2), (0.3, 2, 1, 11, 2), (0.4, 2, 1, 11, 3)),
    ]
    assert figures.lost_steps(events) == 1
    assert figures.goodput(events) == pytest.approx(0.75)


def test_what_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing("hora", "h1:2,h2:2") == "" and "between hosts" in missing("torchrun", "h1:2,h2:2")


def test_the_table_leaves_out_contenders_that_were_not_measured() -> None:
    result = ElasticResult(
        np=3, command="hora bench elastic", machine={}, versions={},
        lines=[Line(name="kill to step", unit="s", figures={"hora": ElasticFigure(value=0.03, p99=1.25, count=9)})],
    )  # fmt: skip
    assert lines(result) == [["", "Hora"], ["kill to step", "30 ms / 1.2 s (9)"]]


def test_what_a_process_printed_last_counts_though_it_has_ended() -> None:
    print_it = "print('@elastic step 1 2 3 4'); print('@elastic ready 0 0 3')"
    with subprocess.Popen([sys.executable, "-c", print_it], stdout=subprocess.PIPE, text=True) as process:
        process.wait(60)
        log = _Log()
        reader = log.read(process)
        deadline = time.monotonic() + 60
        assert log.until(lambda events: len(events) == 2, lambda: False, deadline)
        assert not log.until(lambda events: len(events) == 3, lambda: False, deadline)
        reader.join(60)
    assert [event.kind for event in log.events] == ["step", "ready"]


def test_a_commits_cost_is_of_turns_in_the_same_round_of_the_same_worker() -> None:
    """The second worker is twice as slow, and so is the second round: neither is what commits cost."""
    events = [
        Event(0.0, "cost", variant, number, pid, int(1e6 * pid * number * (1 + variant / 100)))
        for variant in range(3) for number in (1, 2) for pid in (1, 2)
    ]  # fmt: skip
    assert figures.costs(events, 1) == pytest.approx([1.0] * 4)
    assert figures.costs(events, 2) == pytest.approx([2.0] * 4)
    assert figures.standard_error(figures.costs(events, 2)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(not shm.available(), reason="the C core is not built")
def test_a_real_kill_is_recovered_from_and_nothing_is_lost() -> None:
    plan = ElasticBenchPlan(np=2, every_s=0.5, state_bytes=1 << 20)
    events = run("hora", plan, lambda events: len(figures.recoveries(events)) >= 1, hosts=None, limit_s=60.0)
    assert len(figures.recoveries(events)) >= 1 and figures.lost_steps(events) == 0
