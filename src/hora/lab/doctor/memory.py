"""The room of memory: how much there is and may be used, the segment that N workers share, /dev/shm."""

from __future__ import annotations

from hora.lab.doctor.cgroup import limits
from hora.lab.doctor.check import Check, Finding
from hora.lab.doctor.machine import Machine, size

__all__ = ["CHECKS"]

_WORKER_BYTES = 600 << 20  # a Python with torch imported, and a small model
_SHM_BYTES = 1 << 30
_SEGMENT = """
from hora.config.settings import Settings
from hora.transport import shm
import mmap, os, sys
if shm.why_not():
    print(shm.why_not()); sys.exit(4)
segment = shm.create_segment({np}, 1, Settings())
print(os.fstat(segment.fd).st_size)
segment.close()
fd = os.memfd_create("hora-doctor")
os.ftruncate(fd, 8 << 20)
with mmap.mmap(fd, 8 << 20) as memory:
    memory.write(bytes(8 << 20))
"""


def memory(machine: Machine) -> Finding:
    lines = (machine.read("/proc/meminfo") or "").splitlines()
    values = {line.partition(":")[0]: int(line.split()[1]) << 10 for line in lines if len(line.split()) > 1}
    total, available = values.get("MemTotal", 0), values.get("MemAvailable", 0)
    if not total:
        return Finding(name="memory", status="not here", told="this system does not say how much memory it has")
    limit = limits(machine).memory_bytes
    told = f"{size(total)}, {size(available)} of it available"
    if limit is not None and limit < total:
        told += f"; the cgroup allows {size(limit)}"
        available = min(available, limit)
    share = available // machine.np
    told += f": {size(share)} for each of {machine.np} workers"
    figures = {"total": float(total), "share": float(share)}
    if share < _WORKER_BYTES:
        return Finding(
            name="memory",
            status="warning",
            told=f"{told}, and importing a framework takes about {size(_WORKER_BYTES)}",
            fix="Use fewer workers, or ask for more memory (Slurm: --mem, docker: --memory).",
            figures=figures,
        )
    return Finding(name="memory", status="ok", told=told, figures=figures)


def segment(machine: Machine) -> Finding:
    ran = machine.run_python(_SEGMENT.format(np=machine.np), 10.0)
    if ran.code == 0:
        told = f"shared memory for {machine.np} workers can be made: {size(int(ran.out.split()[0]))}, taken as needed"
        return Finding(name="segment", status="ok", told=told)
    if ran.code == 4:
        return Finding(name="segment", status="not here", told=ran.last)
    return Finding(
        name="segment",
        status="problem",
        told=f"shared memory for {machine.np} workers cannot be made: {ran.last}",
        fix="Lift the limits on file size (ulimit -f), address space (ulimit -v) and memory, or use fewer workers.",
    )


def dev_shm(machine: Machine) -> Finding:
    disk = machine.disk("/dev/shm")
    use = "Hora does not need it, but DataLoader workers and NCCL do"
    fix = "docker run --shm-size=8g (or --ipc=host); elsewhere: mount -o remount,size=8g /dev/shm"
    if disk is None or not disk.total:
        return Finding(name="dev-shm", status="warning", told=f"there is no /dev/shm. {use}", fix=fix)
    told = f"{size(disk.free)} free of {size(disk.total)}"
    if disk.free >= _SHM_BYTES:
        return Finding(name="dev-shm", status="ok", told=told)
    if disk.total >= _SHM_BYTES:
        fix = "Look with 'ls -l /dev/shm' for files of programs that have ended, and remove them."
    return Finding(name="dev-shm", status="warning", told=f"{told}. {use}, and die of SIGBUS when it is full", fix=fix)


CHECKS = (
    Check("memory", "read /proc/meminfo and the cgroup's limit", memory),
    Check("segment", "made the segment that the workers of a job share, and wrote to a memfd", segment, 12.0),
    Check("dev-shm", "looked at the size of /dev/shm", dev_shm),
)
