"""The room of the frameworks: found without importing them, then imported in a process of its own with a deadline, so
that one that crashes or hangs is a finding and nothing more."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import partial

from hora.lab.doctor import describe
from hora.lab.doctor.check import Check, Finding
from hora.lab.doctor.installation import file_system, is_network
from hora.lab.doctor.machine import Machine, duration
from hora.workloads import bf16

__all__ = ["CHECKS", "FRAMEWORKS"]

FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "mxnet")
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


def framework(name: str, machine: Machine) -> Finding:
    title = _TITLES[name]
    bridge = importlib.util.find_spec(f"hora.{name}") is not None
    recorded = describe.version_of(name)
    if not recorded and importlib.util.find_spec(name) is None:
        fix = "pip install 'hora[torch]'" if name == "torch" else ""
        return Finding(name=name, status="not here", told=f"{title} is not installed", fix=fix)
    if machine.quick:
        return Finding(name=name, status="ok", told=f"{title} {recorded} is installed; not imported (--quick)")
    ran = machine.run_python(_SAY.format(name=name), _IMPORT_S, TF_CPP_MIN_LOG_LEVEL="2")
    _, mark, said = ran.out.partition("\nFACTS")
    if not mark:
        return Finding(
            name=name,
            status="problem" if bridge else "note",
            told=f"{title} {recorded} is installed and cannot be imported: {ran.ended}: {ran.last}",
            fix=f"Try 'python -c \"import {name}\"'; pip check, then reinstall it for this Python.",
        )
    facts = json.loads(said.splitlines()[0])
    version = facts["version"] or recorded
    told = f"{title} {version}, imported in {duration(facts['seconds'])}"
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
        return Finding(
            name=name,
            status="warning" if far else "note",
            told=f"{told}; that is slow: {where}",
            fix=fix if far else "Try again when the machine is quiet; raise --start-timeout if it stays so.",
            figures=figures,
        )
    if name == "torch" and (old := _too_old(version)):
        fix = "pip install -U 'torch>=2.4'"
        return Finding(name=name, status="warning", told=f"{told}; {old}", fix=fix, figures=figures)
    if facts.get("gloo") is False:
        fix = "Install a build with USE_DISTRIBUTED=1 and Gloo: the wheels of PyPI have both."
        told += "; built without Gloo, so there is no transport between hosts but MPI"
        return Finding(name=name, status="warning", told=told, fix=fix, figures=figures)
    return Finding(name=name, status="ok", told=told, figures=figures)


def _too_old(version: str) -> str:
    """
    >>> _too_old("1.13.1"), _too_old("2.13.0+cpu")
    ('Hora is tested with 2.4 and newer', '')
    """
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return "Hora is tested with 2.4 and newer" if numbers and numbers < _OLDEST_TORCH else ""


def bfloat16(machine: Machine) -> Finding:
    """Some processors announce it and die of it."""
    if importlib.util.find_spec("torch") is None:
        return Finding(name="bf16", status="not here", told="there is no PyTorch to compute with")

    def attempt(more: dict[str, str]) -> str:
        ran = machine.run_python(bf16.PROGRAMS["torch"], _IMPORT_S, **more)
        return "" if ran.code in (0, None) else ran.ended if ran.code < 0 else ran.last  # None: it was slow

    wrong, variables = bf16.examine("torch", attempt, machine.environ)
    if not wrong:
        told = "PyTorch computes in bfloat16, with the right result"
        return Finding(name="bf16", status="ok", told=told)
    told = f"a small training step in bfloat16 fails here ({wrong})"
    if variables:
        (name, value), *_ = variables.items()
        return Finding(
            name="bf16",
            status="warning",
            told=f"{told} and does not with {name}={value}: the processor announces AMX and has not got it",
            fix=f"export {name}={value}; 'hora train --precision bf16' sets it by itself.",
        )
    return Finding(
        name="bf16",
        status="warning",
        told=f"{told}, whatever is set",
        fix="Train with --precision float32, or elsewhere.",
    )


CHECKS = (
    *(
        Check(name, "found it, then imported it in a process of its own", partial(framework, name), _IMPORT_S + 5, True)
        for name in FRAMEWORKS
    ),
    Check(
        "bf16",
        "trained one step in bfloat16 in a process of its own",
        bfloat16,
        2 * _IMPORT_S + 5,
        alone=True,
        slow=True,
    ),
)
