"""The room of GPUs: NVIDIA's driver, and what torch sees of them. (NCCL is tried in the room of the transports.)"""

from __future__ import annotations

import importlib.util
import json

from hora.lab.doctor.check import Check, Finding
from hora.lab.doctor.machine import Machine, size

__all__ = ["CHECKS"]

_QUERY = ("--query-gpu=name,driver_version,memory.total,memory.used", "--format=csv,noheader,nounits")
_TRY = "python -c 'import torch; torch.cuda.init()' shows the whole error."
_SAY = """
import json, torch
count = torch.cuda.device_count()
nccl = ".".join(map(str, torch.cuda.nccl.version())) if count and torch.distributed.is_nccl_available() else ""
pairs = [(a, b) for a in range(count) for b in range(count) if a != b and not torch.cuda.can_device_access_peer(a, b)]
print("FACTS" + json.dumps({"count": count, "built": torch.version.cuda or "", "nccl": nccl, "no_peer": pairs}))
"""


def driver(machine: Machine) -> Finding:
    command = machine.which("nvidia-smi")
    cards = [name for name in machine.names("/dev") if name.startswith("nvidia") and name[6:].isdigit()]
    if command is None and not cards:
        return Finding(name="nvidia", status="not here", told="no NVIDIA GPU; Hora runs on the processor")
    ran = machine.run([command or "nvidia-smi", *_QUERY], 20.0)
    rows = [[cell.strip() for cell in line.split(",")] for line in ran.out.splitlines() if line.count(",") == 3]
    if ran.code != 0 or not rows:
        return Finding(
            name="nvidia",
            status="problem",
            told=f"there are GPUs, but nvidia-smi does not work: {ran.last}",
            fix="The driver and the kernel's module differ, or the container lacks it: docker run --gpus all.",
        )
    told = f"{len(rows)} x {rows[0][0]}, driver {rows[0][1]}, {size(float(rows[0][2]) * 2**20)} each"
    busy = [str(number) for number, row in enumerate(rows) if float(row[3]) > 0.1 * float(row[2])]
    if busy:
        fix = "See who it is with nvidia-smi; choose others with CUDA_VISIBLE_DEVICES."
        return Finding(name="nvidia", status="note", told=f"{told}; GPU {', '.join(busy)} is in use", fix=fix)
    return Finding(name="nvidia", status="ok", told=told)


def cuda(machine: Machine) -> Finding:
    has_driver = machine.which("nvidia-smi") is not None
    if importlib.util.find_spec("torch") is None or not has_driver:
        return Finding(name="cuda", status="not here", told="no GPU, or no PyTorch to use one")
    ran = machine.run_python(_SAY, 60.0)
    _, mark, said = ran.out.partition("FACTS")
    if not mark:
        return Finding(name="cuda", status="problem", told=f"asking torch for GPUs failed: {ran.last}", fix=_TRY)
    facts = json.loads(said.splitlines()[0])
    visible = machine.environ.get("CUDA_VISIBLE_DEVICES")
    if not facts["count"]:
        why = "torch was built without CUDA" if not facts["built"] else f"CUDA_VISIBLE_DEVICES={visible!r}"
        fix = "Install torch for CUDA." if not facts["built"] else "unset CUDA_VISIBLE_DEVICES, or update the driver."
        return Finding(name="cuda", status="problem", told=f"there are GPUs, but torch sees none: {why}", fix=fix)
    figures = {"count": float(facts["count"])}
    told = f"torch sees {facts['count']} (CUDA {facts['built']}, NCCL {facts['nccl'] or 'missing'})"
    if facts["no_peer"]:
        pairs = ", ".join(f"{a}-{b}" for a, b in facts["no_peer"] if a < b)
        fix = "Disable ACS in the BIOS, or accept it: NCCL copies through memory then."
        told += f"; without peer access: {pairs}"
        return Finding(name="cuda", status="note", told=told, fix=fix, figures=figures)
    if machine.np > facts["count"]:
        fix = f"Use -np {facts['count']}, one worker a GPU."
        told += f"; {machine.np} workers would share them"
        return Finding(name="cuda", status="note", told=told, fix=fix, figures=figures)
    return Finding(name="cuda", status="ok", told=told, figures=figures)


CHECKS = (
    Check("nvidia", "asked nvidia-smi", driver, 22.0),
    Check("cuda", "asked torch, in a process of its own, for GPUs, NCCL and peer access", cuda, 65.0, slow=True),
)
