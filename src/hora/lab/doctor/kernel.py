"""The room of the kernel: the system calls that Hora builds on, tried in a process of its own."""

from __future__ import annotations

import json
import platform

from hora.lab.doctor.check import Check, Finding
from hora.lab.doctor.machine import Machine

__all__ = ["CHECKS"]

# What is lost without a call, and what to change. The kernel has had all of them since 5.3; sandboxes take them away.
_WITHOUT = {
    "memfd_create": "shared memory cannot be made and Gloo must carry the data",
    "pidfd_open": "the death of a worker is noticed by looking four times a second instead of at once",
    "futex": "nothing that waits can sleep",
    "SCM_RIGHTS": "workers that mpirun or srun started cannot be handed shared memory",
    "/proc/PID/fd": "workers cannot open each other's shared memory",
}
_HARMLESS = ("pidfd_open",)


def calls(machine: Machine) -> Finding:
    ran = machine.run(
        [machine.python, "-m", "hora.lab.doctor.syscalls"], 10.0, env=machine.job_environment(PYTHONSAFEPATH="1")
    )
    found: dict[str, str] = {}
    for line in ran.out.splitlines():
        found |= json.loads(line)
    kernel = f"{platform.system()} {platform.release()}"
    if missing := [name for name in _WITHOUT if name not in found]:  # it was killed at the first of these
        found[missing[0]] = ran.ended if ran.code != 1 else ran.last
    wrong = {name: reason for name, reason in found.items() if reason}
    if not wrong:
        return Finding(name="kernel", status="ok", told=f"{kernel}: {', '.join(_WITHOUT)} work")
    told = "; ".join(f"{name} does not work ({reason}): {_WITHOUT[name]}" for name, reason in wrong.items())
    return Finding(
        name="kernel",
        status="warning" if set(wrong) <= set(_HARMLESS) else "problem",
        told=f"{kernel}: {told}",
        fix="A sandbox forbids it: docker run --security-opt seccomp=unconfined, or use a kernel newer than 5.3.",
    )


CHECKS = (Check("kernel", "made each system call that Hora uses", calls, 12.0),)
