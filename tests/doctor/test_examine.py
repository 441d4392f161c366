"""Checks are chosen, run and shown."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console
from tests.launch.jobs import wait_until

from hora.doctor.check import Check, CheckResult
from hora.doctor.examine import GROUPS, DoctorReport, choose, conduct
from hora.doctor.machine import Machine
from hora.errors import UsageError


def fine(machine: Machine) -> CheckResult:
    return CheckResult(name="fine", status="ok", told="yes")


def broken(machine: Machine) -> CheckResult:
    raise RuntimeError("no such thing")


def run(*checks: Check, machine: Machine | None = None) -> list[CheckResult]:
    return conduct(checks, machine or Machine({}), lambda check: None, lambda check, found: None)


def test_a_check_that_raises_is_a_finding() -> None:
    found = run(Check("broken", "tried", broken, group="r"), Check("fine", "tried", fine, group="r"))
    assert [(one.name, one.status, one.group) for one in found] == [("broken", "warning", "r"), ("fine", "ok", "r")]
    assert "RuntimeError: no such thing" in found[0].told


def test_a_check_that_hangs_is_given_up() -> None:
    forever = threading.Event()
    try:
        found = run(
            Check("stuck", "tried", lambda machine: [fine(machine)] * forever.wait(60), deadline_s=0.2),
            Check("fine", "tried", fine),
        )
    finally:
        forever.set()
    assert [one.status for one in found] == ["problem", "ok"]
    assert "no result within" in found[0].told


def test_commands_of_a_check_that_was_given_up_are_ended(tmp_path: Path) -> None:
    machine = Machine({"PATH": "/usr/bin:/bin"})
    pid_file = tmp_path / "pid"

    def sleeps(machine: Machine) -> CheckResult:
        machine.run(["sh", "-c", f"echo $$ > {pid_file}; exec sleep 60"], 60.0)
        return fine(machine)

    def waits(machine: Machine) -> CheckResult:
        wait_until(pid_file.exists, what="the command")
        return fine(machine)

    run(Check("waits", "", waits), Check("sleeps", "", sleeps, deadline_s=3.0), machine=machine)
    name = Path(f"/proc/{pid_file.read_text().strip()}/comm")

    def ended() -> bool:
        try:
            return "sleep" not in name.read_text()
        except OSError:  # it has gone, at the latest while it is read
            return True

    wait_until(ended, what="the end of the command")


def test_what_measures_time_is_alone() -> None:
    running: set[str] = set()
    beside: list[set[str]] = []

    def busy(machine: Machine) -> CheckResult:
        running.add("busy")
        time.sleep(0.01)
        running.discard("busy")
        return fine(machine)

    def timing(machine: Machine) -> CheckResult:
        beside.append(set(running))
        return fine(machine)

    checks = [Check(f"c{i}", "", timing if i % 3 == 0 else busy, exclusive=i % 3 == 0) for i in range(20)]
    assert len(run(*checks)) == 20
    assert beside == [set()] * 7


def test_every_check_has_a_name_in_its_group_a_deadline_and_says_what_it_tried() -> None:
    for group, checks in GROUPS.items():
        assert len({check.name for check in checks}) == len(checks)
        for check in checks:
            assert check.group == group and check.tried and 0 < check.deadline_s <= 300


def test_choosing() -> None:
    assert {check.group for check in choose(["limits"])} == {"limits"}
    assert {"gloo", "cuda"} & {check.name for check in choose(quick=True)} == set()
    assert len(choose()) == sum(map(len, GROUPS.values()))
    with pytest.raises(UsageError, match="limits: nofile"):
        choose(["nonsense"])


LONG = "h1 cannot connect to h2 (10.0.0.2: Connection refused, 192.168.7.2: no answer within 3 s), so no job can run"
CHECKS = [Check(name, "", lambda machine: [], group=group) for group, name in [("a", "one"), ("b", "shared-memory")]]


def finding(check: Check, **more: str) -> CheckResult:
    return CheckResult(name=check.name, group=check.group, status="problem", told=LONG, fix=more.get("fix", "Open it."))


def shown(width: int, terminal: bool, order: list[int], encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=width, force_terminal=terminal, no_color=True, highlight=False)
    report = DoctorReport(console, CHECKS)
    for number in order:
        report.add(CHECKS[number], [finding(CHECKS[number])])
    stream.flush()
    stream.seek(0)
    return stream.read()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_fit_and_everything_is_there(width: int) -> None:
    text = shown(width, True, [0, 1])
    lines = text.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(text.replace("\x1b[1m", "").replace("\x1b[0m", "").split())
    assert "✗ problem one" in words and "fix: Open it." in words and "no job can run" in words.replace("\n", " ")


def test_groups_keep_their_order() -> None:
    text = shown(80, True, [1, 0])
    assert text.index("one") < text.index("shared-memory")


def test_a_log_has_a_line_a_finding() -> None:
    lines = shown(80, False, [0, 1]).splitlines()
    assert len(lines) == 2 and lines[0] == f"problem   a/one: {LONG}. Fix: Open it."


def test_a_terminal_without_unicode() -> None:
    assert "x problem" in shown(80, True, [0, 1], "ascii").replace("\x1b[1m", "").replace("\x1b[0m", "")
