"""The room of limits: ulimits and the cgroup's limit on processes, against what a job of N workers needs."""

from __future__ import annotations

import os

from hora.lab.doctor import cgroup
from hora.lab.doctor.check import Check, Finding
from hora.lab.doctor.machine import Machine, size

__all__ = ["CHECKS"]

_UNLIMITED = 1 << 63
_FILES, _FILES_A_WORKER = 64, 8  # of the launcher: a socket, a process handle, pipes and files for output
_THREADS_A_WORKER = 16  # of a framework, its pools and Hora


def _limit(machine: Machine, title: str) -> tuple[int, int]:
    """Soft and hard, from /proc/self/limits."""
    for line in (machine.read("/proc/self/limits") or "").splitlines():
        if line.startswith(title):
            soft, hard = line[len(title) :].split()[:2]
            return _value(soft), _value(hard)
    return _UNLIMITED, _UNLIMITED


def _value(text: str) -> int:
    return int(text) if text.isdigit() else _UNLIMITED


def _shown(value: int) -> str:
    return "unlimited" if value >= _UNLIMITED else str(value)


def open_files(machine: Machine) -> Finding:
    soft, hard = _limit(machine, "Max open files")
    need = _FILES + _FILES_A_WORKER * machine.np
    told = f"{_shown(soft)} open files; {machine.np} workers need about {need}"
    if soft >= need:
        return Finding(name="nofile", status="ok", told=told)
    raise_it = f"ulimit -n {need}" if hard >= need else f"the hard limit is {_shown(hard)}: raise it in limits.conf"
    return Finding(name="nofile", status="problem", told=told, fix=raise_it)


def processes(machine: Machine) -> Finding:
    need = _THREADS_A_WORKER * machine.np
    soft, _ = _limit(machine, "Max processes")
    uid = _uid(machine)
    used = sum(
        _threads(machine, pid) for pid in machine.names("/proc") if pid.isdigit() and _owner(machine, pid) == uid
    )
    left = _UNLIMITED if uid == 0 else soft - used  # root is not bound by it
    pids = cgroup.limits(machine).pids_left
    where = "ulimit -u"
    if pids is not None and pids < left:
        left, where = pids, "the cgroup's pids.max"
    told = f"{_shown(left) if left < _UNLIMITED else 'any number of'} more processes and threads"
    told += f"; {machine.np} workers need about {need}"
    if left >= need:
        return Finding(name="nproc", status="ok", told=told)
    fix = f"Raise {where}, or use fewer workers and threads (OMP_NUM_THREADS=1)."
    return Finding(name="nproc", status="problem", told=f"{told}, and {where} forbids it", fix=fix)


def locked_memory(machine: Machine) -> Finding:
    soft, _ = _limit(machine, "Max locked memory")
    cards = machine.names("/sys/class/infiniband")
    told = f"{_shown(soft) if soft >= _UNLIMITED else size(soft)} of locked memory"
    if soft >= _UNLIMITED or not cards:
        return Finding(name="memlock", status="ok", told=told + ("" if cards else "; nothing here locks any"))
    return Finding(
        name="memlock",
        status="warning",
        told=f"{told}, and {', '.join(cards)} needs to lock its buffers: MPI and NCCL fail or are slow over it",
        fix="ulimit -l unlimited (in limits.conf, and in slurmd's unit: LimitMEMLOCK=infinity)",
    )


def core_files(machine: Machine) -> Finding:
    soft, _ = _limit(machine, "Max core file size")
    pattern = machine.read("/proc/sys/kernel/core_pattern") or "core"
    if soft == 0:
        told = "a crash leaves no core file (ulimit -c 0); PYTHONFAULTHANDLER=1 shows where it was"
        return Finding(name="core-files", status="ok", told=told)
    told = f"a crash leaves a core file of a worker's whole memory, by the pattern {pattern!r}"
    return Finding(name="core-files", status="note", told=told, fix="ulimit -c 0 if disks fill up.")


def other_limits(machine: Machine) -> Finding:
    """Limits that are unlimited everywhere but on some login nodes, where jobs then die of them."""
    bound = []
    for title, flag, what in (
        ("Max file size", "-f", "no file or shared memory may be larger"),
        ("Max cpu time", "-t", "a worker is killed when it has used so many seconds"),
        ("Max address space", "-v", "frameworks reserve more than that"),
        ("Max data size", "-d", "frameworks need more than that"),
    ):
        soft, _ = _limit(machine, title)
        if soft < _UNLIMITED:
            bound.append((f"ulimit {flag} is {soft}: {what}", f"ulimit {flag} unlimited"))
    if not bound:
        told = "file size, CPU time, address space and data size are unlimited"
        return Finding(name="other-limits", status="ok", told=told)
    return Finding(
        name="other-limits",
        status="warning",
        told="; ".join(told for told, _ in bound),
        fix="; ".join(fix for _, fix in bound) + ", or run inside a job and not on the login node.",
    )


def _uid(machine: Machine) -> int:
    return _owner(machine, "self") if machine.root != machine.root.parent else os.getuid()


def _owner(machine: Machine, pid: str) -> int:
    return int(_status(machine, pid, "Uid") or -1)


def _threads(machine: Machine, pid: str) -> int:
    return int(_status(machine, pid, "Threads") or 1)


def _status(machine: Machine, pid: str, key: str) -> str:
    for line in (machine.read(f"/proc/{pid}/status") or "").splitlines():
        if line.startswith(f"{key}:"):
            return line.split()[1]
    return ""


CHECKS = (
    Check("nofile", "compared ulimit -n with what the launcher opens", open_files),
    Check("nproc", "compared ulimit -u and the cgroup's pids.max with what workers start", processes),
    Check("memlock", "read ulimit -l", locked_memory),
    Check("core-files", "read ulimit -c", core_files),
    Check("other-limits", "read ulimit -f, -t, -v and -d", other_limits),
)
