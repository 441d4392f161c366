"""Trains a workload in this process, as one worker of however many there are: the end of `hora train`, and what
``python -m hora.workloads`` does in each worker that `hora train -np N` starts.

Wrong usage, bad data and bad checkpoints end with one message and exit code 2 on every rank, an environment that is not
up to it with 3, a loss that is not finite with 1, a job that was asked to leave with 75.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import msgspec

from hora.config import env
from hora.engine import session
from hora.engine.frames import final
from hora.engine.process_set import global_process_set
from hora.errors import BadData, DamagedCheckpoint, EnvironmentUnfit, NonFiniteError, ShutDownError, UsageError
from hora.files import write_json
from hora.text import plural
from hora.workloads import train_of
from hora.workloads.options import WorkloadOptions

__all__ = ["check_gpus", "own_gpu", "stop_at_nonfinite", "train_here", "worker_folder"]

_CODES: dict[type[Exception], int] = {
    UsageError: 2,
    BadData: 2,
    DamagedCheckpoint: 2,
    EnvironmentUnfit: 3,
    NonFiniteError: 1,
}


def stop_at_nonfinite(variables: dict[str, str]) -> dict[str, str]:
    """The variables that make workers stop when a gradient is not finite, unless the user has said what to do then.

    >>> stop_at_nonfinite({}), stop_at_nonfinite({"HOROVOD_NONFINITE": "skip"})
    ({'HORA_NONFINITE': 'stop'}, {})
    """
    said = any(f"{prefix}NONFINITE" in variables for prefix in env.PREFIXES)
    return {} if said else {"HORA_NONFINITE": "stop"}


def train_here(
    options: WorkloadOptions,
    *,
    launcher_draws: bool = False,
    independent: bool = False,
    by_turns: bool = False,
    bf16_tried: bool = False,
    threads: int = 0,
) -> int:
    """Train; the exit code. Rank 0 writes the final metrics to ``options.json``.

    With ``independent`` every worker trains by itself, on the same cores as otherwise: what the machine can do if
    communication costs nothing. ``by_turns``: see ``workloads.turns``. ``bf16_tried``: the launcher has tried
    bfloat16 on this host. ``threads``: of torch's intra-op pool; 0: as it has them.
    """
    from hora.workloads import bf16, progress, turns

    marks = progress.launcher_draws() if launcher_draws else nullcontext()
    try:
        variables = stop_at_nonfinite(dict(env.environ()))
        if options.framework == "torch" and options.device not in ("auto", "cpu"):
            from hora.workloads import devices

            devices.check(options.device)
        if not bf16_tried:
            variables |= bf16.settings(options, env.environ(), lambda line: print(f"hora: {line}", file=sys.stderr))
        if options.framework == "keras":
            variables |= env.quiet_tensorflow(env.environ())
        elif options.inter_threads:
            import torch

            torch.set_num_interop_threads(options.inter_threads)
        if threads:
            import torch

            torch.set_num_threads(threads)
        if independent:
            options, alone = _part(options)
            variables |= alone
        if options.framework == "torch":
            check_gpus(env.environ())
        with env.during(**variables), marks, turns.taken(options) if by_turns else nullcontext():
            result = train_of(options.workload, options.framework)(options)
            if options.json and session.rank() == 0:
                write_json(Path(options.json), result, "--json")
            if options.strategy == "ddp":
                from hora.workloads.strategy import leave

                leave()
    except ShutDownError as error:  # another rank has left, by one of the errors below, and has said why
        print(f"hora: this rank ends too: {str(error).partition(chr(10))[0]}", file=sys.stderr, flush=True)
        return 1
    except tuple(_CODES) as error:
        print(final(f"hora: {error}\n"), end="", file=sys.stderr, flush=True)
        return next(code for kind, code in _CODES.items() if isinstance(error, kind))
    finally:
        session.shutdown()
    return 0


def _part(options: WorkloadOptions) -> tuple[WorkloadOptions, dict[str, str]]:
    """Meet the other workers once, so that all begin together, and then have none: options with a folder of this
    worker's own (the first one's is the run's), and the variables that make the next ``init`` a world of one."""
    import torch

    session.init()
    rank, local_rank = session.rank(), session.engine().world.local_rank
    session.engine().barrier(global_process_set)
    session.shutdown()
    alone = {"HORA_ALONE": "1", "HORA_TIMELINE": ""}
    if torch.cuda.device_count():
        alone["CUDA_VISIBLE_DEVICES"] = own_gpu(dict(env.environ()), torch.cuda.device_count(), local_rank)
    if rank == 0:
        return options, alone
    out = options.out_folder / worker_folder(rank)
    json = str(out / Path(options.json).name) if options.json else ""
    return msgspec.structs.replace(options, out=str(out), json=json), alone


def worker_folder(rank: int | str) -> str:
    """Where a worker other than the first keeps its run, if all train by themselves; in the first one's.

    >>> worker_folder(3)
    'worker-3'
    """
    return f"worker-{rank}"


def check_gpus(variables: Mapping[str, str]) -> None:
    """Refuse to train on processors what was given GPUs: they would be paid for and idle.

    >>> check_gpus({"CUDA_VISIBLE_DEVICES": ""}), check_gpus({})
    (None, None)
    """
    import torch

    given = variables.get("CUDA_VISIBLE_DEVICES", "").strip()
    if not given or given in ("-1", "NoDevFiles"):  # none are to be used; Slurm says so by the second
        return
    count, there = len(given.split(",")), torch.cuda.device_count()
    if there < count:
        why = "was built without CUDA" if torch.version.cuda is None else "cannot use the driver, or they are not there"
        raise EnvironmentUnfit(
            f"CUDA_VISIBLE_DEVICES={given} gives this worker {plural(count, 'GPU')}, and PyTorch {torch.__version__} "
            f"finds {there or 'none'}: it {why}. Training would leave them idle. Run 'hora doctor --only gpus', or set "
            "CUDA_VISIBLE_DEVICES= (empty) to train on processors."
        )


def own_gpu(variables: dict[str, str], gpus: int, local_rank: int) -> str:
    """The one GPU, of those that are visible, for a worker that takes itself for the only one of its host.

    >>> own_gpu({}, 4, 2), own_gpu({"CUDA_VISIBLE_DEVICES": "5,7"}, 2, 1)
    ('2', '7')
    """
    visible = variables.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
    return visible.split(",")[local_rank % gpus]
