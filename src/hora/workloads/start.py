"""Trains a workload in this process, as one worker of however many there are: the end of `hora train`, and what
``python -m hora.workloads`` does in each worker that `hora train -np N` starts.

Wrong usage, bad data and bad checkpoints end with one message and exit code 2 on every rank, an environment that is not
up to it with 3, a loss that is not finite with 1, a job that was asked to leave with 75.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec

from hora.config import env
from hora.errors import BadData, DamagedCheckpoint, EnvironmentUnfit, NonFiniteError, UsageError
from hora.workloads import train_of
from hora.workloads.options import Options

__all__ = ["stop_at_nonsense", "train_here"]

_CODES: dict[type[Exception], int] = {
    UsageError: 2,
    BadData: 2,
    DamagedCheckpoint: 2,
    EnvironmentUnfit: 3,
    NonFiniteError: 1,
}


def stop_at_nonsense(variables: dict[str, str]) -> dict[str, str]:
    """The variables that make workers stop when a gradient is not finite, unless the user has said what to do then.

    >>> stop_at_nonsense({}), stop_at_nonsense({"HOROVOD_NONFINITE": "skip"})
    ({'HORA_NONFINITE': 'stop'}, {})
    """
    said = any(f"{prefix}NONFINITE" in variables for prefix in env.PREFIXES)
    return {} if said else {"HORA_NONFINITE": "stop"}


def train_here(options: Options, *, launcher_draws: bool = False) -> int:
    """Train; the exit code. Rank 0 writes the final metrics to ``options.json``."""
    import hora.torch as hvd
    from hora.workloads import progress

    marks = progress.launcher_draws() if launcher_draws else nullcontext()
    try:
        with env.during(**stop_at_nonsense(dict(env.environ()))), marks:
            result = train_of(options.workload)(options)
            if options.json and hvd.rank() == 0:
                _write(result, Path(options.json))
    except tuple(_CODES) as error:
        print(f"hora: {error}", file=sys.stderr, flush=True)
        return next(code for kind, code in _CODES.items() if isinstance(error, kind))
    finally:
        hvd.shutdown()
    return 0


def _write(result: dict[str, Any], path: Path) -> None:
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise UsageError(f"--json {path} cannot be written: {error.strerror}. Give another file.") from None
