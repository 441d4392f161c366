"""Shared memory for real (the others: ``tests/cli/test_doctor.py``), then each way in which a transport can fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.lab.doctor.fakes import FakeMachine

from hora.config.env import environ
from hora.lab.doctor import transports
from hora.lab.doctor.machine import Machine
from hora.lab.doctor.probe import MARK


def said(transport: str, np: int = 2, seconds: float = 1e-5) -> str:
    times = {str(size): seconds for size in transports.SIZES}
    report = {"transport": transport, "seconds": times, "met_s": 0.1, "imported": []}
    return "\n".join(f"[{rank}]<stdout>:{MARK}{json.dumps({'rank': rank, **report})}" for rank in range(np))


def test_shared_memory_without_a_framework() -> None:
    found = transports.shared_memory(Machine(environ()))
    assert found.status == "ok" and "no framework was needed" in found.told
    assert set(found.figures) == {"seconds_4", "seconds_65536", "seconds_4194304"}


def test_a_job_of_three() -> None:
    found = transports.job(Machine(environ(), np=3))
    assert found.status == "ok" and "3 workers started" in found.told


def test_a_fallback_is_not_taken_for_the_transport(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.answer("probe", 0, said("gloo"))
    found = transports.shared_memory(machine)
    assert found.status == "problem" and "gloo was used instead" in found.told


@pytest.mark.parametrize(
    ("code", "out", "err", "named"),
    [
        (
            1,
            "",
            "[0]<stderr>:Traceback …\n[0]<stderr>:hora.errors.EnvironmentUnfit: no shared memory.\n+--",
            "no shared",
        ),
        (3, "", "hora: the command was not found. Check its name.\n", "was not found"),
        (5, "", "[1]<stderr>:rank 1: element 7 of 1024 is wrong\n", "element 7"),
        (None, "", "", "no answer"),
        (-11, "", "", "ended by SIGSEGV"),
    ],
)
def test_failures(tmp_path: Path, code: int | None, out: str, err: str, named: str) -> None:
    machine = FakeMachine(tmp_path)
    machine.answer("probe", code, out, err)
    for look in (transports.shared_memory, transports.job):
        found = look(machine)
        assert found.status == "problem" and named in found.told and found.fix
        assert found.stops == (look is transports.job)


def test_a_job_that_lost_a_worker_is_no_success(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, np=4)
    machine.answer("probe", 0, said("shm", np=3))
    assert transports.job(machine).status == "problem"


def test_without_mpi(tmp_path: Path) -> None:
    found = transports.mpi(FakeMachine(tmp_path))
    assert found.status == "not here" and "pip install" in found.fix


def test_nccl_needs_two_gpus(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    assert transports.nccl(machine).status == "not here"
    machine.programs.add("nvidia-smi")
    machine.answer("device_count", 0, 'FACTS{"count": 2, "built": "12.4", "nccl": "2.21.5", "no_peer": []}')
    machine.answer("probe cuda", 0, said("shm"))
    assert transports.nccl(machine).status == "ok"
    machine.answer("probe cuda", 1, "", "[0]<stderr>:RuntimeError: NCCL Error 2: unhandled system error")
    found = transports.nccl(machine)
    assert found.status == "problem" and "NCCL Error 2" in found.told and "NCCL_DEBUG" in found.fix
