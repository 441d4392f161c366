"""Python, Hora, the C core and the frameworks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.doctor.fakes import FakeMachine

from hora.config.env import environ
from hora.doctor import software
from hora.doctor.machine import CommandResult, Disk, Machine

MOUNTS = "22 27 0:21 / / rw - ext4 /dev/vda rw\n23 22 0:40 / {place} rw,relatime - {kind} server:/export rw\n"


def test_this_installation() -> None:
    machine = Machine(environ())
    assert software.python(machine).status in ("ok", "note")
    assert software.core(machine).status == "ok"
    assert software.compiler(machine).status == "ok"
    assert software.allocator(machine).status == "ok"
    assert software.start(machine).figures["python_s"] > 0


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
    found = software.settings(FakeMachine(tmp_path, **environ))
    assert found.status == status and named in found.told and found.stops == (status == "problem")
    assert status != "warning" or found.fix == "Did you mean HORA_FUSION_THRESHOLD?"


def test_no_core(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.answer("why_not", 0, "the C core was not built when Hora was installed (no C compiler)\n")
    found = software.core(machine)
    assert found.status == "warning" and "was not built" in found.told and "Gloo" in found.told and "gcc" in found.fix
    machine.answer("why_not", -4)
    assert "ended by SIGILL" in software.core(machine).told


def test_compiler(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    assert software.compiler(machine).status == "not here"
    machine = FakeMachine(tmp_path, CC="mycc -m64")
    machine.programs.add("mycc")
    machine.answer("-shared", 1, "", "try.c:1:10: fatal error: pthread.h: No such file or directory\ncompilation ended")
    machine.answer("--version", 0, "mycc 1.0\n")
    found = software.compiler(machine)
    assert found.status == "note" and "pthread.h" in found.told and "libc6-dev" in found.fix
    assert machine.commands[0].startswith("/usr/bin/mycc -m64 ")


def test_another_hora_on_the_path(tmp_path: Path) -> None:
    script = tmp_path / "hora"
    script.write_text("#!/elsewhere/bin/python3\n")
    machine = FakeMachine(tmp_path)
    machine.which = lambda program: str(script)  # type: ignore[method-assign]
    found = software.python(machine)
    assert found.status == "warning" and "/elsewhere/bin/python3" in found.told
    machine.which = lambda program: None  # type: ignore[method-assign]
    assert software.python(machine).status == "note"


def test_allocator(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, LD_PRELOAD="/usr/lib/libjemalloc.so.2")
    assert software.allocator(machine).status == "note"
    machine = FakeMachine(tmp_path)
    machine.answer("_alloc.so", 0, "False", "ERROR: ld.so: object '_alloc.so' cannot be preloaded")
    found = software.allocator(machine)
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
    found = software.file_systems(machine)
    assert found.status == status and named in found.told


def test_a_directory_for_temporary_files_that_is_not_there(tmp_path: Path) -> None:
    found = software.file_systems(FakeMachine(tmp_path, TMPDIR="/gone"))
    assert found.status == "problem" and "/gone does not exist" in found.told


def test_start(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.answer("-c", 0, seconds=2.0)
    assert software.start(machine).status == "warning"
    machine.answer("-c", 1, "", "ImportError: no msgspec")
    found = software.start(machine)
    assert found.status == "problem" and found.stops and "no msgspec" in found.told


OLD, NEW = "1.13.1", "2.13.0+cpu"


def facts(version: str = NEW, seconds: float = 1.5, gloo: bool = True) -> str:
    said = {"version": version, "seconds": seconds, "threads": 8, "gloo": gloo}
    return f"\nsomething a library prints\n\nFACTS{json.dumps(said)}\n"


def test_torch_here() -> None:
    found = software.framework("torch", Machine(environ()))
    assert found.status in ("ok", "note") and "imported in" in found.told and "threads by default" in found.told


def test_what_is_not_installed() -> None:
    found = software.framework("mxnet", Machine(environ()))
    assert found.status == "not here"


@pytest.mark.parametrize(
    ("answer", "status", "named"),
    [
        ((0, facts()), "ok", "8 threads by default"),
        ((0, facts(version=OLD)), "warning", "2.4 and newer"),
        ((0, facts(seconds=40.0)), "note", "slow: on local disk"),
        ((0, facts(gloo=False)), "warning", "without Gloo"),
        ((-11, ""), "problem", "ended by SIGSEGV"),
        ((None, ""), "problem", "no answer within"),
        ((1, "", "ImportError: libcudart.so.12: cannot open shared object file"), "problem", "libcudart"),
    ],
)
def test_torch_elsewhere(tmp_path: Path, answer: tuple[int | None, str], status: str, named: str) -> None:
    machine = FakeMachine(tmp_path)
    machine.answer("import torch", *answer)
    found = software.framework("torch", machine)
    assert found.status == status and named in found.told


def test_slow_because_of_its_file_system(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.answer("import torch", 0, facts(seconds=40.0))
    machine.put("/proc/self/mountinfo", "22 27 0:21 / / rw - nfs4 server:/export rw\n")
    found = software.framework("torch", machine)
    assert found.status == "warning" and "it lies on nfs4 (/)" in found.told and "local disk" in found.fix


def test_quick_imports_nothing(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.quick = True
    assert software.framework("torch", machine).status == "ok" and machine.commands == []


@pytest.mark.parametrize(
    ("answers", "status", "named"),
    [
        ([(0, "")], "ok", "computes in bfloat16"),
        ([(None, "")], "ok", "computes in bfloat16"),  # a machine too busy to answer is no evidence
        ([(-4, ""), (0, "")], "warning", "ended by SIGILL) and does not with DNNL_MAX_CPU_ISA=AVX512_CORE_BF16"),
        ([(1, "RuntimeError: could not create a primitive")] * 2, "warning", "could not create a primitive), whatever"),
    ],
)
def test_bfloat16(tmp_path: Path, answers: list[tuple[int | None, str]], status: str, named: str) -> None:
    machine = FakeMachine(tmp_path)
    left = iter(answers)
    machine.run = lambda *_, **__: CommandResult((answer := next(left))[0], "", answer[1], 0.1)  # type: ignore[method-assign]
    found = software.bfloat16(machine)
    assert found.status == status and named in found.told and next(left, None) is None
    assert bool(found.fix) is (status == "warning")


def test_bfloat16_here() -> None:
    assert software.bfloat16(Machine(environ())).status in ("ok", "warning")
