"""The room of leftovers: what earlier jobs left behind. Hora's jobs leave nothing, so whatever is found means that
somebody killed a launcher together with its guardian, or that the machine was taken down in between."""

from __future__ import annotations

from hora.lab.doctor.check import Check, Finding
from hora.lab.doctor.machine import Machine
from hora.launch.guardian import COOKIE

__all__ = ["CHECKS"]


def processes(machine: Machine) -> Finding:
    """A job's processes carry its cookie; a job that is alive has a guardian, which names it on its command line."""
    members: dict[str, list[str]] = {}
    guarded = {machine.environ.get(COOKIE, "")}  # the doctor may itself run in a job
    for pid in filter(str.isdigit, machine.names("/proc")):
        words = (machine.read(f"/proc/{pid}/cmdline") or "").split("\0")
        if any(word.endswith("guardian.py") for word in words):
            guarded |= set(words)
        for variable in (machine.read(f"/proc/{pid}/environ") or "").split("\0"):
            if variable.startswith(f"{COOKIE}="):
                members.setdefault(variable.partition("=")[2], []).append(pid)
    left = [pid for cookie, pids in members.items() if cookie not in guarded for pid in pids]
    if not left:
        alive = sum(cookie in guarded and cookie != "" for cookie in members)
        told = "no process of an earlier job is left" + (f"; running now: {alive} job(s)" if alive else "")
        return Finding(name="processes", status="ok", told=told)
    shown = ", ".join(left[:8]) + (" …" if len(left) > 8 else "")
    return Finding(
        name="processes",
        status="warning",
        told=f"{len(left)} processes of jobs whose launcher is gone still hold cores and memory: pid {shown}",
        fix=f"kill {' '.join(left)}",
    )


def files(machine: Machine) -> Finding:
    """Hora makes no named segments; DataLoader workers that were killed do leave files in /dev/shm."""
    stale = [name for name in machine.names("/dev/shm") if name.startswith("torch_") and not _alive(machine, name)]
    ours = [name for name in machine.names("/dev/shm") if "hora" in name]
    if not stale and not ours:
        return Finding(name="segments", status="ok", told="no file of an ended job is in /dev/shm")
    return Finding(
        name="segments",
        status="warning",
        told=f"{len(stale) + len(ours)} files in /dev/shm belong to no running process and take memory",
        fix=f"rm {' '.join('/dev/shm/' + name for name in [*stale, *ours][:8])}" + (" …" if len(stale) > 8 else ""),
    )


def _alive(machine: Machine, name: str) -> bool:
    """``torch_<pid>_<number>_<number>``."""
    pid = name.split("_")[1]
    return not pid.isdigit() or machine.read(f"/proc/{pid}/stat") is not None


CHECKS = (
    Check("processes", "looked for processes with a job's mark and without its guardian", processes),
    Check("segments", "looked for files of ended processes in /dev/shm", files),
)
