"""What findings add up to."""

from __future__ import annotations

from hora.doctor.check import CheckResult, can_run, summary


def test_what_stops_every_job_comes_first() -> None:
    gloo = CheckResult(name="gloo", status="problem", told="…", fix="Install torch.")
    job = CheckResult(name="job", status="problem", told="…", fix="Raise ulimit -u.", stops=True)
    clock = CheckResult(name="clock", status="warning", told="…")
    assert summary([clock, gloo, job]) == (
        "2 problems, 1 warning; the first thing to fix: job. Raise ulimit -u."
    )  # fmt: skip
    assert not can_run([gloo, job]) and can_run([gloo, clock])


def test_a_warning_is_named_where_nothing_is_worse() -> None:
    clock = CheckResult(name="clock", status="warning", told="…", fix="Use tsc.")
    assert summary([clock]) == "no problems, 1 warning; the first thing to fix: clock. Use tsc."
