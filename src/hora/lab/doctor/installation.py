"""The room of the installation: which Python and which Hora these are, the C core and the compiler that would build it,
the preloaded allocator, the file systems that all of it lies on, and how long starting takes."""

from __future__ import annotations

import difflib
import os
import platform
import shlex
import statistics
import sys
import sysconfig
import tempfile
from pathlib import Path

import hora
from hora.config import env
from hora.errors import UsageError
from hora.lab.doctor import describe
from hora.lab.doctor.check import Check, Finding
from hora.lab.doctor.machine import Machine, duration, size
from hora.transport import preload

__all__ = ["CHECKS", "file_system", "is_network"]

_NETWORK = (
    "nfs", "lustre", "gpfs", "beegfs", "cifs", "smb", "ceph", "fuse.ceph", "afs", "panfs", "wekafs", "glusterfs",
    "fuse.glusterfs", "pvfs2", "orangefs", "9p", "fuse.sshfs", "daos", "fuse.daos",
)  # fmt: skip
_TMP_BYTES = 1 << 30
_SLOW_START_S, _SLOW_IMPORT_S = 0.5, 1.0
_CORE = "from hora.transport import shm; print(shm.why_not())"
_SEES_ALLOCATOR = "print('_alloc.so' in open('/proc/self/maps').read())"
_BUILD = "If there is none, install a C compiler first (Debian: apt install gcc). "
_REINSTALL = "pip install --force-reinstall --no-deps --no-binary hora hora (in a checkout: pip install -e .)"


def python(machine: Machine) -> Finding:
    kind = "virtual environment" if sys.prefix != sys.base_prefix else "installation"
    told = f"{platform.python_implementation()} {platform.python_version()}, {kind} {sys.prefix}"
    command = machine.which("hora")
    if command is None:
        fix = f"Add {Path(machine.python).parent} to PATH, or write '{machine.python} -m hora'."
        return Finding(name="python", status="note", told=f"{told}; there is no 'hora' on PATH", fix=fix)
    first = _interpreter(Path(command))
    if first and os.path.dirname(first) != os.path.dirname(machine.python):
        return Finding(
            name="python",
            status="warning",
            told=f"{told}; but 'hora' on PATH ({command}) belongs to another Python, {first}",
            fix=f"Activate one environment, or write '{machine.python} -m hora'.",
        )
    return Finding(name="python", status="ok", told=told)


def _interpreter(script: Path) -> str:
    """The Python that a script names in its first line."""
    try:
        first = script.read_bytes().partition(b"\n")[0].decode(errors="replace")
    except OSError:
        return ""
    return first[2:].strip() if first.startswith("#!/") and "python" in first else ""


def installed(machine: Machine) -> Finding:
    form = describe.install_form()
    told = f"{hora.__version__}, {form}"
    recorded = describe.version_of("hora")
    if recorded not in ("", hora.__version__):
        return Finding(
            name="hora",
            status="warning",
            told=f"{told}; the metadata of the installation say {recorded}",
            fix="Two copies are mixed: pip uninstall hora until none is left, then install it once.",
        )
    if "although" in form:
        fix = "If that is not meant: unset PYTHONPATH, or leave the directory."
        return Finding(name="hora", status="note", told=told, fix=fix)
    return Finding(name="hora", status="ok", told=told)


def settings(machine: Machine) -> Finding:
    given = [name for name in machine.environ if name.startswith(env.PREFIXES)]
    try:
        env.settings(machine.environ)
    except UsageError as error:
        told, _, fix = str(error).rpartition(". ")
        return Finding(name="settings", status="problem", told=told, fix=fix, stops=True)
    known = {variable.name for variable in env.VARIABLES} | {"BUILD_CORE", "TEST_REQUIRE_ALL", "CI_TIMEOUT_S"}
    unknown = [name for name in given if name.startswith("HORA_") and name.removeprefix("HORA_") not in known]
    if unknown:
        meant = difflib.get_close_matches(unknown[0], [f"HORA_{name}" for name in known], 1)
        return Finding(
            name="settings",
            status="warning",
            told=f"{', '.join(unknown)}: Hora knows no such variable, so it has no effect",
            fix=f"Did you mean {meant[0]}?" if meant else f"unset {' '.join(unknown)}",
        )
    told = f"{len(given)} variables of Hora's or Horovod's are set" if given else "nothing is set; defaults hold"
    return Finding(name="settings", status="ok", told=told)


def core(machine: Machine) -> Finding:
    ran = machine.run_python(_CORE, 10.0)
    if ran.code == 0 and not ran.out.strip():
        return Finding(name="core", status="ok", told="the C core loads: shared memory is available")
    why = ran.out.strip() if ran.code == 0 else f"loading the C core failed: {ran.last}"
    return Finding(
        name="core",
        status="warning",
        told=f"{why}; Gloo carries the data, slower on one host, and only with PyTorch",
        fix=_BUILD + _REINSTALL,
    )


def compiler(machine: Machine) -> Finding:
    chosen = shlex.split(machine.environ.get("CC", "") or sysconfig.get_config_var("CC") or "cc")
    if not machine.environ.get("CC") and machine.which(chosen[0]) is None:
        chosen = ["cc"]
    where = machine.which(chosen[0])
    if where is None:
        told = f"there is no C compiler ({chosen[0]!r}); one is needed only to build the C core from source"
        return Finding(name="compiler", status="not here", told=told, fix="Debian: apt install gcc")
    with tempfile.TemporaryDirectory(prefix="hora-doctor-") as folder:
        source = Path(folder, "try.c")
        source.write_text("#include <pthread.h>\n#include <linux/futex.h>\nint one(void) { return 1; }\n")
        command = [where, *chosen[1:], "-shared", "-fPIC", "-pthread", "-O1", str(source), "-o", f"{folder}/try.so"]
        ran = machine.run(command, 10.0)
    version = machine.run([where, "--version"], 5.0).out.partition("\n")[0].strip()
    if ran.code == 0:
        return Finding(name="compiler", status="ok", told=f"{where} builds shared libraries: {version}")
    first = next((line for line in ran.err.splitlines() if "error" in line), ran.last)
    return Finding(
        name="compiler",
        status="note",
        told=f"{where} cannot build the C core: {first.strip()}",
        fix="Install its headers too (Debian: apt install libc6-dev linux-libc-dev), or choose another with CC=.",
    )


def allocator(machine: Machine) -> Finding:
    added = preload.preload(machine.environ)
    use = "gradients are copied to shared memory instead of being born in it"
    if not added:
        present = machine.environ.get("LD_PRELOAD", "")
        if present:
            told = f"LD_PRELOAD={present} is there already and stays alone: {use}"
            return Finding(name="allocator", status="note", told=told, fix="unset LD_PRELOAD if it is not needed.")
        return Finding(name="allocator", status="not here", told=f"it was not built with the C core: {use}")
    ran = machine.run_python(_SEES_ALLOCATOR, 10.0, **added)
    if ran.out.strip() == "True":
        return Finding(name="allocator", status="ok", told="it can be preloaded into workers")
    return Finding(
        name="allocator",
        status="warning",
        told=f"it cannot be preloaded ({ran.last}): {use}",
        fix=f"HORA_SHARED_GRADIENTS=0 leaves it out; or build it again: {_REINSTALL}",
    )


def file_system(machine: Machine, path: str) -> tuple[str, str]:
    """The type and mount point of the file system that a path lies on; empty if unknown."""
    best = ("", "")
    for line in (machine.read("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) > 4 and kind:
            mount = fields[4].replace("\\040", " ")
            if (path + "/").startswith(mount.rstrip("/") + "/") and len(mount) >= len(best[1]):
                best = (kind[0], mount)
    return best


def is_network(kind: str) -> bool:
    """Whether a type of file system lies across a network.

    >>> is_network("nfs4"), is_network("ext4")
    (True, False)
    """
    return kind.rstrip("0123456789") in _NETWORK or kind in _NETWORK


def file_systems(machine: Machine) -> Finding:
    temporary = machine.environ.get("TMPDIR") or "/tmp"
    places = {"Python": sys.prefix, "this directory": os.getcwd(), "temporary files": temporary}
    kinds = {what: file_system(machine, os.path.realpath(path)) for what, path in places.items()}
    told = ", ".join(f"{what} on {kind or 'an unknown file system'}" for what, (kind, _) in kinds.items())
    disk = machine.disk(temporary)
    if disk is not None:
        told += f" ({size(disk.free)} free)"
    if disk is None or disk.free < 64 << 20:
        state = "does not exist" if disk is None else f"has only {size(disk.free)} left"
        return Finding(
            name="file-systems",
            status="problem",
            told=f"{temporary} {state}, and every library needs a place for temporary files",
            fix="Set TMPDIR to a local directory with room.",
        )
    if is_network(kinds["Python"][0]):
        return Finding(
            name="file-systems",
            status="warning",
            told=f"{told}: every worker of every host reads thousands of small files over the network to start",
            fix="Put the environment on local disk (copy or unpack it to $TMPDIR at the start of the job).",
        )
    if is_network(kinds["temporary files"][0]):
        fix = "Set TMPDIR to a directory on local disk."
        return Finding(name="file-systems", status="warning", told=told, fix=fix)
    if disk.free < _TMP_BYTES:
        fix = "Free some, or set TMPDIR to a local directory with room."
        return Finding(name="file-systems", status="warning", told=told, fix=fix)
    return Finding(name="file-systems", status="ok", told=told)


def start(machine: Machine) -> Finding:
    times = {}
    for what, program in (("Python", "pass"), ("Hora", "import hora.cli.run, hora.engine.session")):
        ran = [machine.run_python(program, 20.0) for _ in range(3)]
        if any(one.code != 0 for one in ran):
            return Finding(
                name="start",
                status="problem",
                told=f"a process that only starts {what} fails: {ran[-1].last}",
                fix="Reinstall Hora into this environment.",
                stops=True,
            )
        times[what] = statistics.median(one.seconds for one in ran)
    bare, added = times["Python"], max(0.0, times["Hora"] - times["Python"])
    told = f"Python starts in {duration(bare)}, Hora adds {duration(added)}"
    figures = {"python_s": bare, "hora_s": added}
    if bare > _SLOW_START_S or added > _SLOW_IMPORT_S:
        kind, mount = file_system(machine, os.path.realpath(sys.prefix))
        return Finding(
            name="start",
            status="warning",
            told=f"{told}: slow, and all workers pay for it (the environment is on {kind or '?'}, {mount or '?'})",
            fix="Put the environment on local disk; look for slow entries in PYTHONPATH and in *.pth files.",
            figures=figures,
        )
    return Finding(name="start", status="ok", told=told, figures=figures)


CHECKS = (
    Check("python", "looked at this interpreter and at the 'hora' on PATH", python),
    Check("hora", "compared the package with its metadata", installed),
    Check("settings", "read every HORA_ and HOROVOD_ variable", settings),
    Check("core", "loaded the C core in a process of its own", core, 12.0),
    Check("compiler", "compiled a small shared library", compiler, 20.0),
    Check("allocator", "started a Python with the allocator preloaded", allocator, 12.0),
    Check("file-systems", "looked up what Python and temporary files lie on", file_systems),
    Check("start", "started Python, and Python with Hora, three times each", start, 130.0, alone=True),
)
