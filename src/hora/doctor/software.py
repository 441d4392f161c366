"""What is installed: Python, Hora, the C core, the compiler that would build it, the preloaded allocator, the file
systems that all of it lies on, how long starting takes; and the frameworks.

These are found without importing them, then imported in a process of its own with a deadline, so that one that crashes
or hangs is a finding and nothing more.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import platform
import shlex
import statistics
import sys
import sysconfig
import tempfile
from functools import partial
from pathlib import Path

import hora
from hora.config import env
from hora.doctor import describe
from hora.doctor.check import Check, CheckResult, not_here, note, ok, problem, warning
from hora.doctor.machine import Machine
from hora.errors import UsageError
from hora.text import size_text, time_text
from hora.transport import preload
from hora.workloads import bf16

__all__ = ["FRAMEWORKS", "INSTALLATION"]

# ---- installation ----

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


def python(machine: Machine) -> CheckResult:
    kind = "virtual environment" if sys.prefix != sys.base_prefix else "installation"
    told = f"{platform.python_implementation()} {platform.python_version()}, {kind} {sys.prefix}"
    command = machine.which("hora")
    if command is None:
        fix = f"Add {Path(machine.python).parent} to PATH, or write '{machine.python} -m hora'."
        return note(f"{told}; there is no 'hora' on PATH", fix)
    first = _interpreter(Path(command))
    if first and os.path.dirname(first) != os.path.dirname(machine.python):
        return warning(
            f"{told}; but 'hora' on PATH ({command}) belongs to another Python, {first}",
            f"Activate one environment, or write '{machine.python} -m hora'.",
        )
    return ok(told)


def _interpreter(script: Path) -> str:
    """The Python that a script names in its first line."""
    try:
        first = script.read_bytes().partition(b"\n")[0].decode(errors="replace")
    except OSError:
        return ""
    return first[2:].strip() if first.startswith("#!/") and "python" in first else ""


def installed(machine: Machine) -> CheckResult:
    form = describe.install_form()
    told = f"{hora.__version__}, {form}"
    recorded = describe.version_of("hora")
    if recorded not in ("", hora.__version__):
        return warning(
            f"{told}; the metadata of the installation say {recorded}",
            "Two copies are mixed: pip uninstall hora until none is left, then install it once.",
        )
    if "although" in form:
        fix = "If that is not meant: unset PYTHONPATH, or leave the directory."
        return note(told, fix)
    return ok(told)


def settings(machine: Machine) -> CheckResult:
    given = [name for name in machine.environ if name.startswith(env.PREFIXES)]
    try:
        env.settings(machine.environ)
    except UsageError as error:
        told, _, fix = str(error).rpartition(". ")
        return problem(told, fix, stops=True)
    known = {variable.name for variable in env.VARIABLES} | {"BUILD_CORE", "TEST_REQUIRE_ALL", "CI_TIMEOUT_S"}
    unknown = [name for name in given if name.startswith("HORA_") and name.removeprefix("HORA_") not in known]
    if unknown:
        meant = difflib.get_close_matches(unknown[0], [f"HORA_{name}" for name in known], 1)
        return warning(
            f"{', '.join(unknown)}: Hora knows no such variable, so it has no effect",
            f"Did you mean {meant[0]}?" if meant else f"unset {' '.join(unknown)}",
        )
    told = f"{len(given)} variables of Hora's or Horovod's are set" if given else "nothing is set; defaults hold"
    return ok(told)


def core(machine: Machine) -> CheckResult:
    ran = machine.run_python(_CORE, 10.0)
    if ran.code == 0 and not ran.out.strip():
        return ok("the C core loads: shared memory is available")
    why = ran.out.strip() if ran.code == 0 else f"loading the C core failed: {ran.last}"
    return warning(f"{why}; Gloo carries the data, slower on one host, and only with PyTorch", _BUILD + _REINSTALL)


def compiler(machine: Machine) -> CheckResult:
    chosen = shlex.split(machine.environ.get("CC", "") or sysconfig.get_config_var("CC") or "cc")
    if not machine.environ.get("CC") and machine.which(chosen[0]) is None:
        chosen = ["cc"]
    where = machine.which(chosen[0])
    if where is None:
        told = f"there is no C compiler ({chosen[0]!r}); one is needed only to build the C core from source"
        return not_here(told, "Debian: apt install gcc")
    with tempfile.TemporaryDirectory(prefix="hora-doctor-") as folder:
        source = Path(folder, "try.c")
        source.write_text("#include <pthread.h>\n#include <linux/futex.h>\nint one(void) { return 1; }\n")
        command = [where, *chosen[1:], "-shared", "-fPIC", "-pthread", "-O1", str(source), "-o", f"{folder}/try.so"]
        ran = machine.run(command, 10.0)
    version = machine.run([where, "--version"], 5.0).out.partition("\n")[0].strip()
    if ran.code == 0:
        return ok(f"{where} builds shared libraries: {version}")
    first = next((line for line in ran.err.splitlines() if "error" in line), ran.last)
    return note(
        f"{where} cannot build the C core: {first.strip()}",
        "Install its headers too (Debian: apt install libc6-dev linux-libc-dev), or choose another with CC=.",
    )


def allocator(machine: Machine) -> CheckResult:
    added = preload.preload(machine.environ)
    use = "gradients are copied to shared memory instead of being allocated in it"
    if not added:
        present = machine.environ.get("LD_PRELOAD", "")
        if present:
            told = f"LD_PRELOAD={present} is there already and stays alone: {use}"
            return note(told, "unset LD_PRELOAD if it is not needed.")
        return not_here(f"it was not built with the C core: {use}")
    ran = machine.run_python(_SEES_ALLOCATOR, 10.0, **added)
    if ran.out.strip() == "True":
        return ok("it can be preloaded into workers")
    return warning(
        f"it cannot be preloaded ({ran.last}): {use}",
        f"HORA_SHARED_GRADIENTS=0 leaves it out; or build it again: {_REINSTALL}",
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


def file_systems(machine: Machine) -> CheckResult:
    temporary = machine.environ.get("TMPDIR") or "/tmp"
    places = {"Python": sys.prefix, "this directory": os.getcwd(), "temporary files": temporary}
    kinds = {what: file_system(machine, os.path.realpath(path)) for what, path in places.items()}
    told = ", ".join(f"{what} on {kind or 'an unknown file system'}" for what, (kind, _) in kinds.items())
    disk = machine.disk(temporary)
    if disk is not None:
        told += f" ({size_text(disk.free)} free)"
    if disk is None or disk.free < 64 << 20:
        state = "does not exist" if disk is None else f"has only {size_text(disk.free)} left"
        return problem(
            f"{temporary} {state}, and every library needs a place for temporary files",
            "Set TMPDIR to a local directory with more free space.",
        )
    if is_network(kinds["Python"][0]):
        return warning(
            f"{told}: every worker of every host reads thousands of small files over the network to start",
            "Put the environment on local disk (copy or unpack it to $TMPDIR at the start of the job).",
        )
    if is_network(kinds["temporary files"][0]):
        fix = "Set TMPDIR to a directory on local disk."
        return warning(told, fix)
    if disk.free < _TMP_BYTES:
        fix = "Free some, or set TMPDIR to a local directory with more free space."
        return warning(told, fix)
    return ok(told)


def start(machine: Machine) -> CheckResult:
    times = {}
    for what, program in (("Python", "pass"), ("Hora", "import hora.cli.run, hora.engine.session")):
        ran = [machine.run_python(program, 20.0) for _ in range(3)]
        if any(one.code != 0 for one in ran):
            return problem(
                f"a process that only starts {what} fails: {ran[-1].last}",
                "Reinstall Hora into this environment.",
                stops=True,
            )
        times[what] = statistics.median(one.seconds for one in ran)
    bare, added = times["Python"], max(0.0, times["Hora"] - times["Python"])
    told = f"Python starts in {time_text(bare)}, Hora adds {time_text(added)}"
    figures = {"python_s": bare, "hora_s": added}
    if bare > _SLOW_START_S or added > _SLOW_IMPORT_S:
        kind, mount = file_system(machine, os.path.realpath(sys.prefix))
        return warning(
            f"{told}: slow, and all workers pay for it (the environment is on {kind or '?'}, {mount or '?'})",
            "Put the environment on local disk; look for slow entries in PYTHONPATH and in *.pth files.",
            figures=figures,
        )
    return ok(told, figures=figures)


INSTALLATION = (
    Check("python", "looked at this interpreter and at the 'hora' on PATH", python),
    Check("hora", "compared the package with its metadata", installed),
    Check("settings", "read every HORA_ and HOROVOD_ variable", settings),
    Check("core", "loaded the C core in a process of its own", core, 12.0),
    Check("compiler", "compiled a small shared library", compiler, 20.0),
    Check("allocator", "started a Python with the allocator preloaded", allocator, 12.0),
    Check("file-systems", "looked up what Python and temporary files lie on", file_systems),
    Check("start", "started Python, and Python with Hora, three times each", start, 130.0, exclusive=True),
)


# ---- frameworks ----

_NAMES = ("torch", "tensorflow", "keras", "jax", "mxnet")
_TITLES = {"torch": "PyTorch", "tensorflow": "TensorFlow", "keras": "Keras", "jax": "JAX", "mxnet": "MXNet"}
_OLDEST_TORCH = (2, 4)
_IMPORT_S, _SLOW_S = 90.0, 10.0
_SAY = """
import json, time
before = time.perf_counter()
import {name} as framework
facts = {{"version": str(getattr(framework, "__version__", "")), "seconds": time.perf_counter() - before}}
if "{name}" == "torch":
    facts["threads"] = framework.get_num_threads()
    facts["gloo"] = framework.distributed.is_available() and framework.distributed.is_gloo_available()
print("\\nFACTS" + json.dumps(facts))
"""


def framework(name: str, machine: Machine) -> CheckResult:
    title = _TITLES[name]
    bridge = importlib.util.find_spec(f"hora.{name}") is not None
    recorded = describe.version_of(name)
    if not recorded and importlib.util.find_spec(name) is None:
        fix = "pip install 'hora[torch]'" if name == "torch" else ""
        return not_here(f"{title} is not installed", fix)
    if machine.quick:
        return ok(f"{title} {recorded} is installed; not imported (--quick)")
    ran = machine.run_python(_SAY.format(name=name), _IMPORT_S, TF_CPP_MIN_LOG_LEVEL="2")
    _, mark, said = ran.out.partition("\nFACTS")
    if not mark:
        return CheckResult(
            status="problem" if bridge else "note",
            told=f"{title} {recorded} is installed and cannot be imported: {ran.ended}: {ran.last}",
            fix=f"Try 'python -c \"import {name}\"'; pip check, then reinstall it for this Python.",
        )
    facts = json.loads(said.splitlines()[0])
    version = facts["version"] or recorded
    told = f"{title} {version}, imported in {time_text(facts['seconds'])}"
    figures = {"import_s": facts["seconds"]}
    if "threads" in facts:
        told += f"; {facts['threads']} threads by default"
    if not bridge:
        told += f"; this Hora has no hora.{name}"
    kind, mount = file_system(machine, sys.prefix)
    if facts["seconds"] > _SLOW_S:
        far = is_network(kind)
        where = f"it lies on {kind} ({mount}), and all workers read it at the same moment" if far else "on local disk"
        fix = "Copy the environment to local disk at the start of the job; raise --start-timeout until then."
        return CheckResult(
            status="warning" if far else "note",
            told=f"{told}; that is slow: {where}",
            fix=fix if far else "Try again when the machine is quiet; raise --start-timeout if it stays so.",
            figures=figures,
        )
    if name == "torch" and (old := _too_old(version)):
        fix = "pip install -U 'torch>=2.4'"
        return warning(f"{told}; {old}", fix, figures=figures)
    if facts.get("gloo") is False:
        fix = "Install a build with USE_DISTRIBUTED=1 and Gloo: the wheels of PyPI have both."
        told += "; built without Gloo, so there is no transport between hosts but MPI"
        return warning(told, fix, figures=figures)
    return ok(told, figures=figures)


def _too_old(version: str) -> str:
    """
    >>> _too_old("1.13.1"), _too_old("2.13.0+cpu")
    ('Hora is tested with 2.4 and newer', '')
    """
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return "Hora is tested with 2.4 and newer" if numbers and numbers < _OLDEST_TORCH else ""


def bfloat16(machine: Machine) -> CheckResult:
    """Some processors announce it and die of it."""
    if importlib.util.find_spec("torch") is None:
        return not_here("there is no PyTorch to compute with")

    def attempt(more: dict[str, str]) -> str:
        ran = machine.run_python(bf16.PROGRAMS["torch"], _IMPORT_S, **more)
        return "" if ran.code in (0, None) else ran.ended if ran.code < 0 else ran.last  # None: it was slow

    wrong, variables = bf16.examine("torch", attempt, machine.environ)
    if not wrong:
        told = "PyTorch computes in bfloat16, with the right result"
        return ok(told)
    told = f"a small training step in bfloat16 fails here ({wrong})"
    if variables:
        (name, value), *_ = variables.items()
        return warning(
            f"{told} and does not with {name}={value}: the processor reports AMX but does not support it",
            f"export {name}={value}; 'hora train --precision bf16' sets it by itself.",
        )
    return warning(f"{told}, whatever is set", "Train with --precision float32, or elsewhere.")


FRAMEWORKS = (
    *(
        Check(name, "found it, then imported it in a process of its own", partial(framework, name), _IMPORT_S + 5, True)
        for name in _NAMES
    ),
    Check(
        "bf16",
        "trained one step in bfloat16 in a process of its own",
        bfloat16,
        2 * _IMPORT_S + 5,
        exclusive=True,
        slow=True,
    ),
)
