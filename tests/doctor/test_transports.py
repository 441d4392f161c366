"""Every transport, and MPI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.doctor.fakes import FakeMachine

from hora.config.env import environ
from hora.doctor import transports
from hora.doctor.machine import Machine
from hora.doctor.probe import MARK
from hora.transport.fabric import library


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


def test_the_fastest_is_named_here_and_between_hosts(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.hosts = ("h1", "h2")
    machine.answer("probe", 0, said("shm", seconds=1e-5))
    transports.shared_memory(machine)
    machine.answer("probe", 0, said("gloo", seconds=1e-3))
    transports.gloo(machine)
    found = transports.fastest(machine)
    assert found.status == "ok" and "on this host: shared-memory at every size" in found.told
    assert "between h1 and h2: " in found.told
    assert transports.fastest(FakeMachine(tmp_path / "other")).status == "not here"


def test_without_mpi(tmp_path: Path) -> None:
    found = transports.mpi(FakeMachine(tmp_path))
    assert found.status == "not here" and "pip install" in found.fix


def test_ucx_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if library():
        found = transports.ucx(Machine(environ()))
        assert found.status == "ok" and found.told.startswith("UCX 1.") and "HORA_TRANSPORT=ucx" in found.told
    monkeypatch.setattr(transports, "library", lambda: "libucp.so.0")
    machine = FakeMachine(tmp_path)
    machine.answer("Fabric", 1, "", "hora.errors.EnvironmentUnfit: UCX does not start on eth0: No such device.")
    found = transports.ucx(machine)
    assert found.status == "problem" and "No such device" in found.told and "UCX_TLS" in found.fix
    monkeypatch.setattr(transports, "library", lambda: "")
    assert transports.ucx(machine).status == "not here"


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


OPEN = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-transports.org/community/help/\n"
HYDRA = "HYDRA build details:\n    Version:                                 4.0.2\n"


def with_mpi(root: Path, launcher: str, library: str) -> FakeMachine:
    machine = FakeMachine(root)
    machine.programs.add("mpirun")
    machine.answer("--version", 0, launcher)
    machine.answer("Get_library_version", 0, f"FACTS{json.dumps(library)}\n")
    return machine


def test_one_mpi(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    machine = with_mpi(tmp_path, OPEN, "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4")
    assert transports.launcher(machine).told == "Open MPI 4.1.4, /usr/bin/mpirun"
    assert (
        transports.bindings(machine).status == "ok" and "Open MPI 4.1.4, as mpirun" in transports.bindings(machine).told
    )


def test_two_mpis(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    found = transports.bindings(with_mpi(tmp_path, HYDRA, "Open MPI v5.0.11, package: …"))
    assert found.status == "problem" and "mpirun is MPICH" in found.told and "alone" in found.told


def test_no_library(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    machine = FakeMachine(tmp_path)
    machine.answer("Get_library_version", 1, "", "RuntimeError: cannot load MPI library")
    found = transports.bindings(machine)
    assert found.status == "problem" and "cannot load MPI library" in found.told


def test_no_launcher_or_a_broken_one(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    assert transports.launcher(machine).status == "not here"
    machine.programs.add("mpiexec")
    machine.answer("mpiexec", 127, "", "error while loading shared libraries: libpmix.so.2")
    assert transports.launcher(machine).status == "warning" and "libpmix" in transports.launcher(machine).told
