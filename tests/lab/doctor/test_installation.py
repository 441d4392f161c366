"""The installation as it is here, and installations that are not in order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.lab.doctor.fakes import FakeMachine

from hora.config.env import environ
from hora.lab.doctor import installation
from hora.lab.doctor.machine import Disk, Machine

MOUNTS = "22 27 0:21 / / rw - ext4 /dev/vda rw\n23 22 0:40 / {place} rw,relatime - {kind} server:/export rw\n"


def test_this_installation() -> None:
    machine = Machine(environ())
    assert installation.python(machine).status in ("ok", "note")
    assert installation.core(machine).status == "ok"
    assert installation.compiler(machine).status == "ok"
    assert installation.allocator(machine).status == "ok"
    assert installation.start(machine).figures["python_s"] > 0


@pytest.mark.parametrize(
    ("environ", "status", "named"),
    [
        ({}, "ok", "nothing is set"),
        ({"HORA_LOG_LEVEL": "debug", "HOROVOD_AUTOTUNE": "1"}, "ok", "2 variables"),
        ({"HORA_FUSION_THRESHOLD": "much"}, "problem", "HORA_FUSION_THRESHOLD='much'"),
        ({"HORA_FUSION_TRESHOLD": "1"}, "warning", "HORA_FUSION_TRESHOLD"),
    ],
)
def test_settings(tmp_path: Path, environ: dict[str, str], status: str, named: str) -> None:
    found = installation.settings(FakeMachine(tmp_path, **environ))
    assert found.status == status and named in found.told and found.stops == (status == "problem")
    assert status != "warning" or found.fix == "Did you mean HORA_FUSION_THRESHOLD?"


def test_no_core(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.answer("why_not", 0, "the C core was not built when Hora was installed (no C compiler)\n")
    found = installation.core(machine)
    assert found.status == "warning" and "was not built" in found.told and "Gloo" in found.told and "gcc" in found.fix
    machine.answer("why_not", -4)
    assert "ended by SIGILL" in installation.core(machine).told


def test_compiler(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    assert installation.compiler(machine).status == "not here"
    machine = FakeMachine(tmp_path, CC="mycc -m64")
    machine.programs.add("mycc")
    machine.answer("-shared", 1, "", "try.c:1:10: fatal error: pthread.h: No such file or directory\ncompilation ended")
    machine.answer("--version", 0, "mycc 1.0\n")
    found = installation.compiler(machine)
    assert found.status == "note" and "pthread.h" in found.told and "libc6-dev" in found.fix
    assert machine.commands[0].startswith("/usr/bin/mycc -m64 ")


def test_another_hora_on_the_path(tmp_path: Path) -> None:
    script = tmp_path / "hora"
    script.write_text("#!/elsewhere/bin/python3\n")
    machine = FakeMachine(tmp_path)
    machine.which = lambda program: str(script)  # type: ignore[method-assign]
    found = installation.python(machine)
    assert found.status == "warning" and "/elsewhere/bin/python3" in found.told
    machine.which = lambda program: None  # type: ignore[method-assign]
    assert installation.python(machine).status == "note"


def test_allocator(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, LD_PRELOAD="/usr/lib/libjemalloc.so.2")
    assert installation.allocator(machine).status == "note"
    machine = FakeMachine(tmp_path)
    machine.answer("_alloc.so", 0, "False", "ERROR: ld.so: object '_alloc.so' cannot be preloaded")
    found = installation.allocator(machine)
    assert found.status == "warning" and "cannot be preloaded" in found.told


@pytest.mark.parametrize(
    ("place", "kind", "free", "status", "named"),
    [
        ("/scratch", "xfs", 8 << 30, "ok", "Python on ext4"),
        (sys.prefix, "nfs4", 8 << 30, "warning", "over the network"),
        (sys.prefix, "lustre", 8 << 30, "warning", "Python on lustre"),
        ("/tmp", "beegfs", 8 << 30, "warning", "temporary files on beegfs"),
        ("/scratch", "xfs", 100 << 20, "warning", "100 MB free"),
        ("/scratch", "xfs", 1 << 20, "problem", "only 1 MB left"),
    ],
)
def test_file_systems(tmp_path: Path, place: str, kind: str, free: int, status: str, named: str) -> None:
    machine = FakeMachine(tmp_path)
    machine.put("/proc/self/mountinfo", MOUNTS.format(place=place, kind=kind))
    machine.disks["/tmp"] = Disk(1 << 40, free)
    found = installation.file_systems(machine)
    assert found.status == status and named in found.told


def test_a_directory_for_temporary_files_that_is_not_there(tmp_path: Path) -> None:
    found = installation.file_systems(FakeMachine(tmp_path, TMPDIR="/gone"))
    assert found.status == "problem" and "/gone does not exist" in found.told


def test_start(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.answer("-c", 0, seconds=2.0)
    assert installation.start(machine).status == "warning"
    machine.answer("-c", 1, "", "ImportError: no msgspec")
    found = installation.start(machine)
    assert found.status == "problem" and found.stops and "no msgspec" in found.told
