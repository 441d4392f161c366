"""The room of the processor: which cores may be used, how many threads would fight for them, the clock."""

from __future__ import annotations

import time
from itertools import pairwise

from hora.lab.doctor.cgroup import limits
from hora.lab.doctor.check import Check, Finding
from hora.lab.doctor.machine import Machine, duration

__all__ = ["CHECKS", "allowed", "numbers", "usable"]

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_BINDING = ("OMP_PROC_BIND", "KMP_AFFINITY", "GOMP_CPU_AFFINITY", "OMP_PLACES")
_GOOD_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase", "tod")
_SLOW_CLOCK_S = 1e-6


def numbers(text: str) -> set[int]:
    """The kernel's notation for sets of numbers.

    >>> sorted(numbers("0-2,8"))
    [0, 1, 2, 8]
    """
    found: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        if low.strip().isdigit():
            found |= set(range(int(low), int(high or low) + 1))
    return found


def allowed(machine: Machine) -> set[int]:
    """The cores that this process may run on."""
    lines = (machine.read("/proc/self/status") or "").splitlines()
    return numbers(next((line.partition(":")[2] for line in lines if line.startswith("Cpus_allowed_list")), ""))


def usable(machine: Machine) -> int:
    """How many cores' worth of work can be done at a time; at least 1."""
    quota = limits(machine).cpus
    cores = len(allowed(machine)) or 1
    return max(1, min(cores, int(quota)) if quota is not None else cores)


def cores(machine: Machine) -> Finding:
    online, mine = numbers(machine.read("/sys/devices/system/cpu/online") or ""), allowed(machine)
    quota, count = limits(machine).cpus, usable(machine)
    told = f"{len(mine)} of {len(online)} cores may be used" if mine != online else f"{len(mine)} cores, all usable"
    told += f", with a quota of {quota:g}" if quota is not None else "; no quota"
    if quota is not None and quota < len(mine):
        return Finding(
            name="cores",
            status="warning",
            told=f"{told}: programs see {len(mine)} cores and are throttled when they use more than {quota:g}",
            fix=f"Start at most {max(1, int(quota))} workers with OMP_NUM_THREADS=1, or ask for a larger quota.",
        )
    if machine.np > count:
        return Finding(
            name="cores",
            status="warning",
            told=f"{told}; {machine.np} workers would take turns on {count}",
            fix=f"Use -np {count}"
            + (", or ask the batch system for more cores (Slurm: --cpus-per-task)." if mine != online else "."),
        )
    return Finding(name="cores", status="ok", told=told, figures={"usable": count})


def threads(machine: Machine) -> Finding:
    count, np, env = usable(machine), machine.np, machine.environ
    share = max(1, count // np)
    if bound := next((name for name in _BINDING if env.get(name, "false").lower() not in ("false", "none", "")), None):
        return Finding(
            name="threads",
            status="warning",
            told=f"{bound}={env[bound]}: every worker binds its threads to the same first cores",
            fix=f"unset {bound}; 'hora run' shares the cores out by itself.",
        )
    chosen = {name: int(env[name]) for name in _THREADS if env.get(name, "").isdigit()}
    name, most = max(chosen.items(), key=lambda item: item[1], default=("", 0))
    if most * np > max(count, np):
        return Finding(
            name="threads",
            status="warning",
            told=f"{name}={most} x {np} workers = {most * np} threads on {count} cores: they slow each other down",
            fix=f"unset {name}, or export {name}={share}.",
        )
    if "OMP_NUM_THREADS" in chosen:
        most = chosen["OMP_NUM_THREADS"]
        told = f"OMP_NUM_THREADS={most} x {np} workers on {count} cores"
        return Finding(name="threads", status="ok", told=told)
    return Finding(name="threads", status="ok", told=f"'hora run -np {np}' gives each worker {share} of {count} cores")


def topology(machine: Machine) -> Finding:
    base = "/sys/devices/system/cpu"
    places, packages = set(), set()
    mine = allowed(machine)
    for core in mine:
        siblings = machine.read(f"{base}/cpu{core}/topology/thread_siblings_list")
        places.add(siblings or str(core))
        packages.add(machine.read(f"{base}/cpu{core}/topology/physical_package_id") or "0")
    nodes = [name for name in machine.names("/sys/devices/system/node") if name[4:].isdigit() and name[:4] == "node"]
    told = f"{_many(len(packages), 'socket')}, {_many(len(places), 'core')}"
    told += f" with {_many(len(mine), 'hardware thread')}, {_many(len(nodes) or 1, 'NUMA node')}"
    if len(places) < len(mine) and machine.np > len(places):
        return Finding(
            name="topology",
            status="note",
            told=f"{told}: {machine.np} workers would share cores in pairs, which helps training little",
            fix=f"Try -np {len(places)}, one worker a core, and compare with 'hora bench train'.",
        )
    if len(nodes) > 1 and machine.np < len(nodes):
        return Finding(
            name="topology",
            status="note",
            told=f"{told}: a worker whose threads span NUMA nodes reads half of its memory across the link",
            fix=f"Use at least one worker a node: -np {len(nodes)}.",
        )
    return Finding(name="topology", status="ok", told=told)


def load(machine: Machine) -> Finding:
    words = (machine.read("/proc/loadavg") or "").split()
    count = usable(machine)
    if not words:
        return Finding(name="load", status="not here", told="this system does not say how busy it is")
    busy = float(words[0])
    told = f"{busy:.1f} of {count} cores were busy over the last minute"
    if busy < 0.5 * count:
        return Finding(name="load", status="ok", told=told, figures={"load": busy})
    return Finding(
        name="load",
        status="note",
        told=f"{told}: times measured here mean little, and workers would wait for their turn",
        fix="See who it is with 'top', or take another host.",
        figures={"load": busy},
    )


def clock(machine: Machine) -> Finding:
    source = machine.read("/sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    marks = [time.perf_counter() for _ in range(2001)]
    cost = (marks[-1] - marks[0]) / (len(marks) - 1)
    step = min((later - before for before, later in pairwise(marks) if later > before), default=1.0)
    told = f"{source}: reading it takes {cost * 1e9:.0f} ns, its step is at most {duration(step)}"
    figures = {"read_s": cost, "step_s": step}
    if cost > (_SLOW_CLOCK_S if source in (*_GOOD_CLOCKS, "unknown") else _SLOW_CLOCK_S / 4):
        return Finding(
            name="clock",
            status="warning",
            told=f"{told}; frameworks and Hora read it often",
            fix="Ask the administrator for clocksource=tsc (the kernel's log says why it was not taken).",
            figures=figures,
        )
    return Finding(name="clock", status="ok", told=told, figures=figures)


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


CHECKS = (
    Check("cores", "compared the affinity mask, the cgroup quota and the cores online", cores),
    Check("threads", "multiplied the threads a worker would use by the workers", threads),
    Check("topology", "read sockets, cores, hardware threads and NUMA nodes from /sys", topology),
    Check("load", "read the load average", load),
    Check("clock", "read the clock 2000 times", clock, alone=True),
)
