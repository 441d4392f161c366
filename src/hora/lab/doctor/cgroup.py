"""Limits that a container or a batch system has set through control groups, version 1 and 2.

The limit that counts is the tightest on the way from this process's group to the root, so all of them are read. Inside
a container the root of the mount is the container's own group, and the path in ``/proc/self/cgroup`` may not exist
below it; then the root alone is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hora.lab.doctor.machine import Machine

__all__ = ["Limits", "limits", "oom_kills"]

_MOUNT = "/sys/fs/cgroup"
_NONE = 1 << 60  # version 1 writes "no limit" as a huge number of pages


class Limits(NamedTuple):
    """None: no limit. ``cpus``: the quota in cores. ``pids_left``: how many more processes and threads there may be."""

    version: str = ""
    memory_bytes: int | None = None
    cpus: float | None = None
    pids_left: int | None = None


def limits(machine: Machine) -> Limits:
    """What this process's groups allow."""
    memory: list[int] = []
    cpus: list[float] = []
    pids: list[int] = []
    versions: set[str] = set()
    for version, controllers, folder in _folders(machine):
        versions.add(version)
        if not controllers or "memory" in controllers:
            name = "memory.max" if version == "v2" else "memory.limit_in_bytes"
            memory += [value for value in [_number(machine, f"{folder}/{name}")] if value is not None]
        if not controllers or "cpu" in controllers:
            cpus += [quota for quota in [_quota(machine, version, folder)] if quota is not None]
        if not controllers or "pids" in controllers:
            most, now = _number(machine, f"{folder}/pids.max"), _number(machine, f"{folder}/pids.current")
            pids += [most - (now or 0)] if most is not None else []
    return Limits(
        "+".join(sorted(versions)), min(memory, default=None), min(cpus, default=None), min(pids, default=None)
    )


def oom_kills(machine: Machine) -> int:
    """How often a process of this process's own group was killed for want of memory; 0 if nobody says."""
    for version, controllers, folder in _folders(machine):
        if version == "v2" or "memory" in controllers:
            text = machine.read(f"{folder}/{'memory.events' if version == 'v2' else 'memory.oom_control'}") or ""
            for line in text.splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    return 0


def _folders(machine: Machine) -> Iterator[tuple[str, frozenset[str], str]]:
    """(version, controllers, directory) of every group this process is in and of all above it."""
    for line in (machine.read("/proc/self/cgroup") or "").splitlines():
        hierarchy, names, path = [*line.split(":", 2), "", ""][:3]
        version = "v2" if hierarchy == "0" else "v1"
        if version == "v2":  # mounted beside version 1 it is called unified
            base = _MOUNT if "cgroup.controllers" in machine.names(_MOUNT) else f"{_MOUNT}/unified"
        else:
            base = f"{_MOUNT}/{names}"
        if not machine.names(base):
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            folder = "/".join([base, *parts[:depth]])
            if machine.names(folder):
                yield version, frozenset(names.split(",")) - {""}, folder


def _number(machine: Machine, path: str) -> int | None:
    text = (machine.read(path) or "").strip()
    return int(text) if text.isdigit() and int(text) < _NONE else None


def _quota(machine: Machine, version: str, folder: str) -> float | None:
    if version == "v2":
        words = (machine.read(f"{folder}/cpu.max") or "").split()
        quota, period = words if len(words) == 2 else ("max", "1")
    else:
        quota = machine.read(f"{folder}/cpu.cfs_quota_us") or "-1"
        period = machine.read(f"{folder}/cpu.cfs_period_us") or "100000"
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None
