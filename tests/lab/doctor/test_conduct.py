"""Checks are run to their end whatever they do."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tests.launch.jobs import wait_until

from hora.lab.doctor.check import Check, Finding
from hora.lab.doctor.conduct import conduct
from hora.lab.doctor.machine import Machine


def fine(machine: Machine) -> Finding:
    return Finding(name="fine", status="ok", told="yes")


def broken(machine: Machine) -> Finding:
    raise RuntimeError("no such thing")


def run(*checks: Check, machine: Machine | None = None) -> list[Finding]:
    return conduct(checks, machine or Machine({}), lambda check: None, lambda check, found: None)


def test_a_check_that_raises_is_a_finding() -> None:
    found = run(Check("broken", "tried", broken, room="r"), Check("fine", "tried", fine, room="r"))
    assert [(one.name, one.status, one.room) for one in found] == [("broken", "warning", "r"), ("fine", "ok", "r")]
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

    def sleeps(machine: Machine) -> Finding:
        machine.run(["sh", "-c", f"echo $$ > {pid_file}; exec sleep 60"], 60.0)
        return fine(machine)

    def waits(machine: Machine) -> Finding:
        wait_until(pid_file.exists, what="the command")
        return fine(machine)

    run(Check("waits", "", waits), Check("sleeps", "", sleeps, deadline_s=3.0), machine=machine)
    pid = pid_file.read_text().strip()
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or "sleep" not in Path(f"/proc/{pid}/comm").read_text())


def test_what_measures_time_is_alone() -> None:
    running: set[str] = set()
    beside: list[set[str]] = []

    def busy(machine: Machine) -> Finding:
        running.add("busy")
        time.sleep(0.01)
        running.discard("busy")
        return fine(machine)

    def timing(machine: Machine) -> Finding:
        beside.append(set(running))
        return fine(machine)

    checks = [Check(f"c{i}", "", timing if i % 3 == 0 else busy, alone=i % 3 == 0) for i in range(20)]
    assert len(run(*checks)) == 20
    assert beside == [set()] * 7
