"""The hardware: cores, threads and the clock; memory, the segment that N workers share, /dev/shm; GPUs.

(NCCL is tried with the transports.)
"""

from __future__ import annotations

import importlib.util
import json
import time
from itertools import pairwise

from hora.doctor.check import Check, CheckResult, not_here, note, ok, problem, warning
from hora.doctor.machine import Machine, cgroup_limits
from hora.text import size_text, time_text

__all__ = ["GPUS", "MEMORY", "PROCESSOR"]

# ---- processor ----

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
    quota = cgroup_limits(machine).cpus
    cores = len(allowed(machine)) or 1
    return max(1, min(cores, int(quota)) if quota is not None else cores)


def cores(machine: Machine) -> CheckResult:
    online, mine = numbers(machine.read("/sys/devices/system/cpu/online") or ""), allowed(machine)
    quota, count = cgroup_limits(machine).cpus, usable(machine)
    told = f"{len(mine)} of {len(online)} cores may be used" if mine != online else f"{len(mine)} cores, all usable"
    told += f", with a quota of {quota:g}" if quota is not None else "; no quota"
    if quota is not None and quota < len(mine):
        return warning(
            f"{told}: programs see {len(mine)} cores and are throttled when they use more than {quota:g}",
            f"Start at most {max(1, int(quota))} workers with OMP_NUM_THREADS=1, or ask for a larger quota.",
        )
    if machine.np > count:
        return warning(
            f"{told}; {machine.np} workers would take turns on {count}",
            f"Use -np {count}"
            + (", or ask the batch system for more cores (Slurm: --cpus-per-task)." if mine != online else "."),
        )
    return ok(told, figures={"usable": count})


def threads(machine: Machine) -> CheckResult:
    count, np, env = usable(machine), machine.np, machine.environ
    share = max(1, count // np)
    if bound := next((name for name in _BINDING if env.get(name, "false").lower() not in ("false", "none", "")), None):
        return warning(
            f"{bound}={env[bound]}: every worker binds its threads to the same first cores",
            f"unset {bound}; 'hora run' shares the cores out by itself.",
        )
    chosen = {name: int(env[name]) for name in _THREADS if env.get(name, "").isdigit()}
    name, most = max(chosen.items(), key=lambda item: item[1], default=("", 0))
    if most * np > max(count, np):
        return warning(
            f"{name}={most} x {np} workers = {most * np} threads on {count} cores: they slow each other down",
            f"unset {name}, or export {name}={share}.",
        )
    if "OMP_NUM_THREADS" in chosen:
        most = chosen["OMP_NUM_THREADS"]
        told = f"OMP_NUM_THREADS={most} x {np} workers on {count} cores"
        return ok(told)
    return ok(f"'hora run -np {np}' gives each worker {share} of {count} cores")


def topology(machine: Machine) -> CheckResult:
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
        return note(
            f"{told}: {machine.np} workers would share cores in pairs, which helps training little",
            f"Try -np {len(places)}, one worker a core, and compare with 'hora bench train'.",
        )
    if len(nodes) > 1 and machine.np < len(nodes):
        return note(
            f"{told}: a worker whose threads span NUMA nodes reads half of its memory across the link",
            f"Use at least one worker a node: -np {len(nodes)}.",
        )
    return ok(told)


def load(machine: Machine) -> CheckResult:
    words = (machine.read("/proc/loadavg") or "").split()
    count = usable(machine)
    if not words:
        return not_here("this system does not say how busy it is")
    busy = float(words[0])
    told = f"{busy:.1f} of {count} cores were busy over the last minute"
    if busy < 0.5 * count:
        return ok(told, figures={"load": busy})
    return note(
        f"{told}: times measured here mean little, and workers would wait for their turn",
        "See who it is with 'top', or take another host.",
        figures={"load": busy},
    )


def clock(machine: Machine) -> CheckResult:
    source = machine.read("/sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    marks = [time.perf_counter() for _ in range(2001)]
    cost = (marks[-1] - marks[0]) / (len(marks) - 1)
    step = min((later - before for before, later in pairwise(marks) if later > before), default=1.0)
    told = f"{source}: reading it takes {cost * 1e9:.0f} ns, its step is at most {time_text(step)}"
    figures = {"read_s": cost, "step_s": step}
    if cost > (_SLOW_CLOCK_S if source in (*_GOOD_CLOCKS, "unknown") else _SLOW_CLOCK_S / 4):
        return warning(
            f"{told}; frameworks and Hora read it often",
            "Ask the administrator for clocksource=tsc (the kernel's log says why it was not taken).",
            figures=figures,
        )
    return ok(told, figures=figures)


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


PROCESSOR = (
    Check("cores", "compared the affinity mask, the cgroup quota and the cores online", cores),
    Check("threads", "multiplied the threads a worker would use by the workers", threads),
    Check("topology", "read sockets, cores, hardware threads and NUMA nodes from /sys", topology),
    Check("load", "read the load average", load),
    Check("clock", "read the clock 2000 times", clock, exclusive=True),
)


# ---- memory ----

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


def memory(machine: Machine) -> CheckResult:
    lines = (machine.read("/proc/meminfo") or "").splitlines()
    values = {line.partition(":")[0]: int(line.split()[1]) << 10 for line in lines if len(line.split()) > 1}
    total, available = values.get("MemTotal", 0), values.get("MemAvailable", 0)
    if not total:
        return not_here("this system does not say how much memory it has")
    limit = cgroup_limits(machine).memory_bytes
    told = f"{size_text(total)}, {size_text(available)} of it available"
    if limit is not None and limit < total:
        told += f"; the cgroup allows {size_text(limit)}"
        available = min(available, limit)
    share = available // machine.np
    told += f": {size_text(share)} for each of {machine.np} workers"
    figures = {"total": float(total), "share": float(share)}
    if share < _WORKER_BYTES:
        return warning(
            f"{told}, and importing a framework takes about {size_text(_WORKER_BYTES)}",
            "Use fewer workers, or ask for more memory (Slurm: --mem, docker: --memory).",
            figures=figures,
        )
    return ok(told, figures=figures)


def segment(machine: Machine) -> CheckResult:
    ran = machine.run_python(_SEGMENT.format(np=machine.np), 10.0)
    if ran.code == 0:
        told = (
            f"shared memory for {machine.np} workers can be made: {size_text(int(ran.out.split()[0]))}, taken as needed"
        )
        return ok(told)
    if ran.code == 4:
        return not_here(ran.last)
    return problem(
        f"shared memory for {machine.np} workers cannot be made: {ran.last}",
        "Lift the limits on file size (ulimit -f), address space (ulimit -v) and memory, or use fewer workers.",
    )


def dev_shm(machine: Machine) -> CheckResult:
    disk = machine.disk("/dev/shm")
    use = "Hora does not need it, but DataLoader workers and NCCL do"
    fix = "docker run --shm-size=8g (or --ipc=host); elsewhere: mount -o remount,size=8g /dev/shm"
    if disk is None or not disk.total:
        return warning(f"there is no /dev/shm. {use}", fix)
    told = f"{size_text(disk.free)} free of {size_text(disk.total)}"
    if disk.free >= _SHM_BYTES:
        return ok(told)
    if disk.total >= _SHM_BYTES:
        fix = "Look with 'ls -l /dev/shm' for files of programs that have ended, and remove them."
    return warning(f"{told}. {use}, and die of SIGBUS when it is full", fix)


MEMORY = (
    Check("memory", "read /proc/meminfo and the cgroup's limit", memory),
    Check("segment", "made the segment that the workers of a job share, and wrote to a memfd", segment, 12.0),
    Check("dev-shm", "looked at the size of /dev/shm", dev_shm),
)


# ---- GPUs ----

_QUERY = ("--query-gpu=name,driver_version,memory.total,memory.used", "--format=csv,noheader,nounits")
_TRY = "python -c 'import torch; torch.cuda.init()' shows the whole error."
_SAY = """
import json, torch
count = torch.cuda.device_count()
nccl = ".".join(map(str, torch.cuda.nccl.version())) if count and torch.distributed.is_nccl_available() else ""
pairs = [(a, b) for a in range(count) for b in range(count) if a != b and not torch.cuda.can_device_access_peer(a, b)]
print("FACTS" + json.dumps({"count": count, "built": torch.version.cuda or "", "nccl": nccl, "no_peer": pairs}))
"""


def driver(machine: Machine) -> CheckResult:
    command = machine.which("nvidia-smi")
    cards = [name for name in machine.names("/dev") if name.startswith("nvidia") and name[6:].isdigit()]
    if command is None and not cards:
        return not_here("no NVIDIA GPU; Hora runs on the processor")
    ran = machine.run([command or "nvidia-smi", *_QUERY], 20.0)
    rows = [[cell.strip() for cell in line.split(",")] for line in ran.out.splitlines() if line.count(",") == 3]
    if ran.code != 0 or not rows:
        return problem(
            f"there are GPUs, but nvidia-smi does not work: {ran.last}",
            "The driver and the kernel's module differ, or the container lacks it: docker run --gpus all.",
        )
    told = f"{len(rows)} x {rows[0][0]}, driver {rows[0][1]}, {size_text(float(rows[0][2]) * 2**20)} each"
    busy = [str(number) for number, row in enumerate(rows) if float(row[3]) > 0.1 * float(row[2])]
    if busy:
        fix = "See who it is with nvidia-smi; choose others with CUDA_VISIBLE_DEVICES."
        return note(f"{told}; GPU {', '.join(busy)} is in use", fix)
    return ok(told)


def cuda(machine: Machine) -> CheckResult:
    has_driver = machine.which("nvidia-smi") is not None
    if importlib.util.find_spec("torch") is None or not has_driver:
        return not_here("no GPU, or no PyTorch to use one")
    ran = machine.run_python(_SAY, 60.0)
    _, mark, said = ran.out.partition("FACTS")
    if not mark:
        return problem(f"asking torch for GPUs failed: {ran.last}", _TRY)
    facts = json.loads(said.splitlines()[0])
    visible = machine.environ.get("CUDA_VISIBLE_DEVICES")
    if not facts["count"]:
        why = "torch was built without CUDA" if not facts["built"] else f"CUDA_VISIBLE_DEVICES={visible!r}"
        fix = "Install torch for CUDA." if not facts["built"] else "unset CUDA_VISIBLE_DEVICES, or update the driver."
        return problem(f"there are GPUs, but torch sees none: {why}", fix)
    figures = {"count": float(facts["count"])}
    told = f"torch sees {facts['count']} (CUDA {facts['built']}, NCCL {facts['nccl'] or 'missing'})"
    if facts["no_peer"]:
        pairs = ", ".join(f"{a}-{b}" for a, b in facts["no_peer"] if a < b)
        fix = "Disable ACS in the BIOS, or accept it: NCCL copies through memory then."
        told += f"; without peer access: {pairs}"
        return note(told, fix, figures=figures)
    if machine.np > facts["count"]:
        fix = f"Use -np {facts['count']}, one worker a GPU."
        told += f"; {machine.np} workers would share them"
        return note(told, fix, figures=figures)
    return ok(told, figures=figures)


GPUS = (
    Check("nvidia", "asked nvidia-smi", driver, 22.0),
    Check("cuda", "asked torch, in a process of its own, for GPUs, NCCL and peer access", cuda, 65.0, slow=True),
)
