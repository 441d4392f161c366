"""Frameworks that are there, are not, crash, hang, or are slow to import."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.lab.doctor.fakes import FakeMachine

from hora.config.env import environ
from hora.lab.doctor import frameworks
from hora.lab.doctor.machine import Machine, Ran

OLD, NEW = "1.13.1", "2.13.0+cpu"


def facts(version: str = NEW, seconds: float = 1.5, gloo: bool = True) -> str:
    said = {"version": version, "seconds": seconds, "threads": 8, "gloo": gloo}
    return f"\nsomething a library prints\n\nFACTS{json.dumps(said)}\n"


def test_torch_here() -> None:
    found = frameworks.framework("torch", Machine(environ()))
    assert found.status in ("ok", "note") and "imported in" in found.told and "threads by default" in found.told


def test_what_is_not_installed() -> None:
    found = frameworks.framework("mxnet", Machine(environ()))
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
    found = frameworks.framework("torch", machine)
    assert found.status == status and named in found.told


def test_slow_because_of_its_file_system(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.answer("import torch", 0, facts(seconds=40.0))
    machine.put("/proc/self/mountinfo", "22 27 0:21 / / rw - nfs4 server:/export rw\n")
    found = frameworks.framework("torch", machine)
    assert found.status == "warning" and "it lies on nfs4 (/)" in found.told and "local disk" in found.fix


def test_quick_imports_nothing(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.quick = True
    assert frameworks.framework("torch", machine).status == "ok" and machine.commands == []


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
    machine.run = lambda *_, **__: Ran((answer := next(left))[0], "", answer[1], 0.1)  # type: ignore[method-assign]
    found = frameworks.bfloat16(machine)
    assert found.status == status and named in found.told and next(left, None) is None
    assert bool(found.fix) is (status == "warning")


def test_bfloat16_here() -> None:
    assert frameworks.bfloat16(Machine(environ())).status in ("ok", "warning")
