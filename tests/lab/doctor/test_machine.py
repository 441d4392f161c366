"""Commands end in time and leave nothing; jobs of the doctor's do not inherit a place in another job."""

from __future__ import annotations

import time
from pathlib import Path

from tests.launch.jobs import wait_until
from tests.prompt import PROMPT_S

from hora.lab.doctor.machine import Machine

PATH = {"PATH": "/usr/bin:/bin"}


def test_a_command_that_does_not_end_is_ended_with_its_children(tmp_path: Path) -> None:
    started = time.monotonic()
    ran = Machine(PATH).run(["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/pid; echo said; wait"], 0.5)
    assert ran.code is None and "said" in ran.out and "no answer" in ran.ended
    assert time.monotonic() - started < PROMPT_S
    child = Path("/proc") / (tmp_path / "pid").read_text().strip()
    wait_until(lambda: not child.exists() or "sleep" not in (child / "comm").read_text())


def test_how_it_went() -> None:
    machine = Machine(PATH)
    assert machine.run(["sh", "-c", "echo out; echo err >&2; exit 3"], 5.0)[:3] == (3, "out\n", "err\n")
    assert machine.run(["sh", "-c", "kill -SEGV $$"], 5.0).ended == "ended by SIGSEGV"
    missing = machine.run(["/nowhere/at-all"], 5.0)
    assert missing.code == 127 and "No such file" in missing.last
    assert machine.run(["cat"], 5.0, text="given").out == "given"


def test_a_job_of_the_doctors_has_a_place_of_its_own() -> None:
    machine = Machine({"HORA_RANK": "1", "OMPI_COMM_WORLD_RANK": "1", "HORA_LOG_LEVEL": "debug", "HOROVOD_SIZE": "2"})
    assert machine.job_environment(A="b") == {"HORA_LOG_LEVEL": "debug", "A": "b"}


def test_files(tmp_path: Path) -> None:
    machine = Machine({}, root=tmp_path)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "x").write_text("1\n")
    assert machine.read("/proc/x") == "1" and machine.read("/proc/y") is None
    assert machine.names("/proc") == ["x"] and machine.names("/sys") == []
