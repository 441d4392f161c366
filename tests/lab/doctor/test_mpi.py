"""MPI here, and MPIs that do not fit together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.lab.doctor.fakes import FakeMachine

from hora.lab.doctor import mpi

OPEN = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
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
    assert mpi.launcher(machine).told == "Open MPI 4.1.4, /usr/bin/mpirun"
    assert mpi.bindings(machine).status == "ok" and "Open MPI 4.1.4, as mpirun" in mpi.bindings(machine).told


def test_two_mpis(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    found = mpi.bindings(with_mpi(tmp_path, HYDRA, "Open MPI v5.0.11, package: …"))
    assert found.status == "problem" and "mpirun is MPICH" in found.told and "alone" in found.told


def test_no_library(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    machine = FakeMachine(tmp_path)
    machine.answer("Get_library_version", 1, "", "RuntimeError: cannot load MPI library")
    found = mpi.bindings(machine)
    assert found.status == "problem" and "cannot load MPI library" in found.told


def test_no_launcher_or_a_broken_one(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    assert mpi.launcher(machine).status == "not here"
    machine.programs.add("mpiexec")
    machine.answer("mpiexec", 127, "", "error while loading shared libraries: libpmix.so.2")
    assert mpi.launcher(machine).status == "warning" and "libpmix" in mpi.launcher(machine).told
