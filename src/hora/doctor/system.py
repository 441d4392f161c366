"""The operating system: limits against what a job of N workers needs, system calls, the network, what earlier jobs
left.

Hora's jobs leave nothing, so whatever is found means that somebody killed a launcher together with its guardian, or
that the machine was taken down in between.
"""

from __future__ import annotations

import json
import os
import platform
import socket

from hora.doctor.check import Check, CheckResult, note, ok, problem, warning
from hora.doctor.machine import Machine, cgroup_limits
from hora.launch.host.guardian import COOKIE
from hora.text import size_text
from hora.wire.addresses import candidates

__all__ = ["KERNEL", "LEFTOVERS", "LIMITS", "NETWORK"]

# ---- limits ----

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


def open_files(machine: Machine) -> CheckResult:
    soft, hard = _limit(machine, "Max open files")
    need = _FILES + _FILES_A_WORKER * machine.np
    told = f"{_shown(soft)} open files; {machine.np} workers need about {need}"
    if soft >= need:
        return ok(told)
    raise_it = f"ulimit -n {need}" if hard >= need else f"the hard limit is {_shown(hard)}: raise it in limits.conf"
    return problem(told, raise_it)


def processes(machine: Machine) -> CheckResult:
    need = _THREADS_A_WORKER * machine.np
    soft, _ = _limit(machine, "Max processes")
    uid = _uid(machine)
    used = sum(
        _threads(machine, pid) for pid in machine.names("/proc") if pid.isdigit() and _owner(machine, pid) == uid
    )
    left = _UNLIMITED if uid == 0 else soft - used  # root is not bound by it
    pids = cgroup_limits(machine).pids_left
    where = "ulimit -u"
    if pids is not None and pids < left:
        left, where = pids, "the cgroup's pids.max"
    told = f"{_shown(left) if left < _UNLIMITED else 'any number of'} more processes and threads"
    told += f"; {machine.np} workers need about {need}"
    if left >= need:
        return ok(told)
    fix = f"Raise {where}, or use fewer workers and threads (OMP_NUM_THREADS=1)."
    return problem(f"{told}, and {where} forbids it", fix)


def locked_memory(machine: Machine) -> CheckResult:
    soft, _ = _limit(machine, "Max locked memory")
    cards = machine.names("/sys/class/infiniband")
    told = f"{_shown(soft) if soft >= _UNLIMITED else size_text(soft)} of locked memory"
    if soft >= _UNLIMITED or not cards:
        return ok(told + ("" if cards else "; nothing here locks any"))
    return warning(
        f"{told}, and {', '.join(cards)} needs to lock its buffers: MPI and NCCL fail or are slow over it",
        "ulimit -l unlimited (in limits.conf, and in slurmd's unit: LimitMEMLOCK=infinity)",
    )


def core_files(machine: Machine) -> CheckResult:
    soft, _ = _limit(machine, "Max core file size")
    pattern = machine.read("/proc/sys/kernel/core_pattern") or "core"
    if soft == 0:
        told = "a crash leaves no core file (ulimit -c 0); PYTHONFAULTHANDLER=1 shows where it was"
        return ok(told)
    told = f"a crash leaves a core file of a worker's whole memory, by the pattern {pattern!r}"
    return note(told, "ulimit -c 0 if disks fill up.")


def other_limits(machine: Machine) -> CheckResult:
    """Limits that are unlimited everywhere but on some login nodes, where jobs then die of them."""
    bound = []
    for title, flag, what in (
        ("Max file size", "-f", "no file or shared memory may be larger"),
        ("Max cpu time", "-t", "a worker is killed when it has used that many seconds"),
        ("Max address space", "-v", "frameworks reserve more than that"),
        ("Max data size", "-d", "frameworks need more than that"),
    ):
        soft, _ = _limit(machine, title)
        if soft < _UNLIMITED:
            bound.append((f"ulimit {flag} is {soft}: {what}", f"ulimit {flag} unlimited"))
    if not bound:
        told = "file size, CPU time, address space and data size are unlimited"
        return ok(told)
    return warning(
        "; ".join(told for told, _ in bound),
        "; ".join(fix for _, fix in bound) + ", or run inside a job and not on the login node.",
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


LIMITS = (
    Check("nofile", "compared ulimit -n with what the launcher opens", open_files),
    Check("nproc", "compared ulimit -u and the cgroup's pids.max with what workers start", processes),
    Check("memlock", "read ulimit -l", locked_memory),
    Check("core-files", "read ulimit -c", core_files),
    Check("other-limits", "read ulimit -f, -t, -v and -d", other_limits),
)


# ---- system calls ----

# What is lost without a call, and what to change. The kernel has had all of them since 5.3; sandboxes take them away.
_WITHOUT = {
    "memfd_create": "shared memory cannot be made and Gloo must carry the data",
    "pidfd_open": "the death of a worker is noticed by looking four times a second instead of at once",
    "futex": "nothing that waits can sleep",
    "SCM_RIGHTS": "workers that mpirun or srun started cannot be handed shared memory",
    "/proc/PID/fd": "workers cannot open each other's shared memory",
}
_HARMLESS = ("pidfd_open",)


def calls(machine: Machine) -> CheckResult:
    ran = machine.run(
        [machine.python, "-m", "hora.doctor.probe", "calls"], 10.0, env=machine.job_environment(PYTHONSAFEPATH="1")
    )
    found: dict[str, str] = {}
    for line in ran.out.splitlines():
        found |= json.loads(line)
    kernel = f"{platform.system()} {platform.release()}"
    if missing := [name for name in _WITHOUT if name not in found]:  # it was killed at the first of these
        found[missing[0]] = ran.ended if ran.code != 1 else ran.last
    wrong = {name: reason for name, reason in found.items() if reason}
    if not wrong:
        return ok(f"{kernel}: {', '.join(_WITHOUT)} work")
    told = "; ".join(f"{name} does not work ({reason}): {_WITHOUT[name]}" for name, reason in wrong.items())
    return CheckResult(
        status="warning" if set(wrong) <= set(_HARMLESS) else "problem",
        told=f"{kernel}: {told}",
        fix="A sandbox forbids it: docker run --security-opt seccomp=unconfined, or use a kernel newer than 5.3.",
    )


KERNEL = (Check("kernel", "made each system call that Hora uses", calls, 12.0),)


# ---- network ----

_CONNECT_S = 2.0


def connects(address: str) -> str:
    """Why a connection from this host to one of its own addresses fails; empty if it works.

    >>> connects("127.0.0.1")
    ''
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.bind((address, 0))
            listener.listen(1)
            with socket.create_connection((address, listener.getsockname()[1]), timeout=_CONNECT_S):
                return ""
    except OSError as error:
        return error.strerror or "no answer"


def loopback(machine: Machine) -> CheckResult:
    why = connects("127.0.0.1")
    if not why:
        return ok("127.0.0.1 can be listened on and connected to")
    return problem(
        f"127.0.0.1 cannot be connected to: {why}; Gloo and MPI need it on one host",
        "ip link set lo up, and let the firewall pass it.",
    )


def interfaces(machine: Machine) -> CheckResult:
    found = machine.interfaces()
    named = [name for name in machine.environ.get("HORA_GLOO_IFACE", "").split(",") if name]
    chosen = set(candidates(named))
    shown, narrow = [], []
    for interface in found:
        mine = [address for address in interface.addresses if address in chosen]
        if not mine:
            continue
        speed = f"{interface.speed_mbit / 1000:g} Gbit/s" if interface.speed_mbit > 0 else "speed unknown"
        shown.append(f"{interface.name} ({', '.join(mine)}; {speed}, MTU {interface.mtu})")
        if 0 < interface.speed_mbit < 1000:
            narrow.append(interface.name)
    used = {name for text in shown for name in [text.partition(" ")[0]]}
    avoided = [one.name for one in found if one.up and one.addresses and one.name not in {*used, "lo"}]
    rest = f"; not used: {', '.join(avoided)}" if avoided else ""
    if not shown or chosen <= {"127.0.0.1", "::1"}:
        return note(
            f"no interface that other hosts could reach, so jobs stay on this one{rest}",
            "Name one if there is: --network-interfaces eth0.",
        )
    told = f"other hosts would be given {'; '.join(shown)}{rest}"
    if narrow:
        fix = "Choose a faster one with --network-interfaces; compression (hvd.Compression.bf16) helps on slow links."
        return warning(f"{told}; {narrow[0]} is slow", fix)
    return ok(told)


def host_name(machine: Machine) -> CheckResult:
    name = socket.gethostname()
    try:
        found = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except OSError as error:
        return note(
            f"{name!r} does not resolve ({error.strerror}); Hora does not need it, some frameworks and MPI do",
            f"Add a line '127.0.1.1 {name}' to /etc/hosts.",
        )
    return ok(f"{name} is {', '.join(found)}")


NETWORK = (
    Check("loopback", "listened on 127.0.0.1 and connected to it", loopback),
    Check("interfaces", "listed interfaces and chose as a job over several hosts would", interfaces),
    Check("host-name", "looked this host's name up", host_name),
)


# ---- what earlier jobs left behind ----


def left_processes(machine: Machine) -> CheckResult:
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
        return ok(told)
    shown = ", ".join(left[:8]) + (" …" if len(left) > 8 else "")
    return warning(
        f"{len(left)} processes of jobs whose launcher is gone still hold cores and memory: pid {shown}",
        f"kill {' '.join(left)}",
    )


def left_files(machine: Machine) -> CheckResult:
    """Hora makes no named segments; DataLoader workers that were killed do leave files in /dev/shm."""
    stale = [name for name in machine.names("/dev/shm") if name.startswith("torch_") and not _alive(machine, name)]
    ours = [name for name in machine.names("/dev/shm") if "hora" in name]
    if not stale and not ours:
        return ok("no file of an ended job is in /dev/shm")
    return warning(
        f"{len(stale) + len(ours)} files in /dev/shm belong to no running process and take memory",
        f"rm {' '.join('/dev/shm/' + name for name in [*stale, *ours][:8])}" + (" …" if len(stale) > 8 else ""),
    )


def _alive(machine: Machine, name: str) -> bool:
    """``torch_<pid>_<number>_<number>``."""
    pid = name.split("_")[1]
    return not pid.isdigit() or machine.read(f"/proc/{pid}/stat") is not None


LEFTOVERS = (
    Check("processes", "looked for processes with a job's mark and without its guardian", left_processes),
    Check("segments", "looked for files of ended processes in /dev/shm", left_files),
)
