"""System calls, where they work and where a sandbox takes them away."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.doctor.fakes import FakeMachine

from hora.config.env import environ
from hora.lab.doctor import kernel
from hora.lab.doctor.machine import Machine

FINE = ['{"memfd_create": ""}', '{"pidfd_open": ""}', '{"futex": ""}', '{"SCM_RIGHTS": ""}', '{"/proc/PID/fd": ""}']


def test_this_kernel() -> None:
    found = kernel.calls(Machine(environ()))
    assert found.status == "ok" and "memfd_create, pidfd_open, futex" in found.told


@pytest.mark.parametrize(
    ("lines", "code", "status", "named"),
    [
        ([*FINE[:1], '{"pidfd_open": "Function not implemented"}', *FINE[2:]], 0, "warning", "four times a second"),
        (['{"memfd_create": "Operation not permitted"}', *FINE[1:]], 0, "problem", "Gloo must carry"),
        (FINE[:2], -31, "problem", "futex does not work (ended by SIGSYS)"),
        ([], None, "problem", "no answer"),
    ],
)
def test_a_sandbox(tmp_path: Path, lines: list[str], code: int | None, status: str, named: str) -> None:
    machine = FakeMachine(tmp_path)
    machine.answer("syscalls", code, "\n".join(lines))
    found = kernel.calls(machine)
    assert found.status == status and named in found.told and "seccomp" in found.fix
