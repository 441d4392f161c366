"""`hora doctor --gpus`: every path that data takes on GPUs, tried by one worker for each of them (``gpu_paths``).

One line for each path. What is known of GPUs without trying them is in ``hardware``.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable

from hora.doctor.hardware import cuda, driver
from hora.doctor.machine import CommandResult, Machine

__all__ = ["confirm", "judge"]

_MARK = "hora-gpus:"  # gpu_paths.MARK, which importing would import torch for
_CONFIRM_S = 300.0


def confirm(machine: Machine, np: int | None, say: Callable[[str], None]) -> int:
    """Try every path on the GPUs of this host, and say one line for each; the exit code, 0 if all is right, else 3.

    ``np`` is how many workers; by default one for each GPU.
    """
    seen = cuda(machine)
    count = int(seen.figures.get("count", 0))
    if not count:
        why = _none(machine) if seen.status == "not here" else f"{seen.told}. {seen.fix}"
        say(f"hora: no GPU can be tried here: {why}")
        return 3
    workers = np or count
    say(f"{seen.told}; {workers} worker{'s'[: workers > 1]}")
    if workers == 1:
        say("With one worker nothing is sent: two GPUs or more show whether NCCL works.")
    launch = [machine.python, "-m", "hora.cli.main", "run", "-np", str(workers)]
    command = [*launch, machine.python, "-m", "hora.doctor.gpu_paths", "cuda"]
    return judge(machine.run(command, _CONFIRM_S, env=machine.job_environment()), say)


def judge(ran: CommandResult, say: Callable[[str], None]) -> int:
    """Print the result of each path; returns the exit code."""
    told = [json.loads(mark) for line in ran.out.splitlines() if (mark := line.partition(_MARK)[2])]
    for path in told:
        wrong = "; ".join(path["wrong"])
        say(f"{'WRONG' if wrong else 'ok':<6} {path['name']:<14} {wrong or path['tried']}")
    failed = [path["name"] for path in told if path["wrong"]]
    if ran.code == 0 and not failed:
        say(f"All {len(told)} paths work, with the right values.")
        return 0
    if failed:
        say(
            f"{len(failed)} of {len(told)} paths do not work: {', '.join(failed)}. See what NCCL does: NCCL_DEBUG=INFO."
        )
    else:
        after = f"after '{told[-1]['name']}'" if told else "before the first path"
        ended = f"did not end within {_CONFIRM_S:g} s" if ran.code is None else "failed"
        say(f"The job {ended}, {after}: {ran.last}. See what NCCL does: NCCL_DEBUG=INFO.")
    return 3


def _none(machine: Machine) -> str:
    """Why there is no GPU."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed, and it is what Hora uses them with. pip install torch, for your CUDA."
    return f"{driver(machine).told}. Run it where there is one, or train with --device cpu."
