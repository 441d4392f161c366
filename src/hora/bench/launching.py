"""What Hora costs before anything is computed: importing it, and starting a job with it.

Both are measured from outside, on fresh processes, with and without Hora by turns. What Hora *adds* is the median of
the differences within a round, which is steadier than the difference of two medians. On several hosts there is no
"without", so the peer is ``mpirun``.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from hora import __version__
from hora.bench.drive import disturbance, hora_command, machine, missing, mpirun_command
from hora.bench.plan import BenchRow, Result, cell
from hora.config.env import environ
from hora.errors import EnvironmentUnfit, WorkersFailed

__all__ = ["HOST_LABELS", "LABELS", "measure", "measure_hosts"]

LABELS = {"bare": "without Hora", "hora": "with Hora", "added": "added by Hora"}
HOST_LABELS = {"mpi": "mpirun", "hora": "hora run"}
START_TIMEOUT_S = 120.0

IMPORT = """
import time
start = time.perf_counter()
import torch
between = time.perf_counter()
import hora.torch
print(between - start, time.perf_counter() - between)
"""
BARE = "import torch"
EMPTY_JOB = "import hora.torch as hvd; hvd.init()"


def _import_times() -> tuple[float, float]:
    """Seconds for ``import torch``, and for ``import hora.torch`` after it, in a fresh process."""
    command = [sys.executable, "-c", IMPORT]
    done = subprocess.run(
        command, env=dict(environ()), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=START_TIMEOUT_S
    )
    if done.returncode != 0:
        raise EnvironmentUnfit(f"hora.torch cannot be imported here, so there is nothing to time:\n{done.stderr}")
    torch_s, hora_s = map(float, done.stdout.split())
    return torch_s, hora_s


def _bare_processes(np: int) -> float:
    """Seconds to start ``np`` Python processes that import torch, and to see them all end."""
    start = time.perf_counter()
    command, env = [sys.executable, "-c", BARE], dict(environ())
    processes = [subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL) for _ in range(np)]
    try:
        for process in processes:
            process.wait(START_TIMEOUT_S)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    return time.perf_counter() - start


def _hora_run(np: int) -> float:
    """Seconds for `hora run` of a script that calls ``init`` and ends."""
    return _to_its_end([*hora_command(), "run", "-np", str(np), sys.executable, "-c", EMPTY_JOB])


def _to_its_end(command: list[str]) -> float:
    """Seconds that a command takes."""
    start = time.perf_counter()
    done = subprocess.run(
        command, env=dict(environ()), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=START_TIMEOUT_S
    )
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise WorkersFailed(
            f"`{' '.join(command)}` failed with exit code {done.returncode}, so there is nothing to time. It said:\n"
            f"{done.stdout}{done.stderr}",
            exit_code=done.returncode,
        )
    return seconds


def _row(name: str, pairs: list[tuple[float, float]]) -> BenchRow:
    """A row from pairs of seconds (without Hora, added by Hora).

    >>> _row("x", [(1.0, 0.1), (2.0, 0.3), (1.0, 0.2)]).cells["added"].median_us
    200000.0
    """
    return BenchRow(
        name=name,
        cells={
            "bare": cell([bare for bare, _ in pairs]),
            "hora": cell([bare + added for bare, added in pairs]),
            "added": cell([added for _, added in pairs]),
        },
    )


def measure(np: int, rounds: int, shown_command: str, progress: Callable[[str], None]) -> Result:
    """Time imports and starts, ``rounds`` times each after one that does not count: it warms the disk cache."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    notes = disturbance()
    imports, starts = [], []
    for round_ in range(rounds + 1):
        progress(f"{round_ + 1}/{rounds + 1} import and start")
        imports.append(_import_times())
        bare = _bare_processes(np)
        starts.append((bare, _hora_run(np) - bare))
    import torch

    rows = [
        _row("import torch, then hora.torch", imports[1:]),
        _row(f"start {np} processes; hora run -np {np} with init", starts[1:]),
    ]
    result = _result(np, shown_command, rows, LABELS, notes, started)
    result.versions["torch"] = str(torch.__version__)
    return result


def measure_hosts(hosts: str, np: int, rounds: int, shown_command: str, progress: Callable[[str], None]) -> Result:
    """Time starting an empty program on several hosts to its end, by turns with ``mpirun`` where that is installed."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    notes = disturbance()
    program = [sys.executable, "-c", "pass"]
    commands = {"hora": [*hora_command(), "run", "-np", str(np), "-H", hosts, *program]}
    if reason := missing("mpi"):
        notes.append(f"mpirun was not measured: {reason}")
    else:
        commands["mpi"] = [*mpirun_command(np), "--host", hosts, *program]
    seconds: dict[str, list[float]] = {key: [] for key in commands}
    for round_ in range(rounds + 1):
        progress(f"{round_ + 1}/{rounds + 1} start")
        for key, command in commands.items():
            seconds[key].append(_to_its_end(command))
    cells = {key: cell(taken[1:]) for key, taken in seconds.items()}
    row = BenchRow(name=f"start {np} empty programs on {hosts.count(',') + 1} hosts", cells=cells)
    return _result(np, shown_command, [row], HOST_LABELS, notes, started)


def _result(
    np: int, command: str, rows: list[BenchRow], labels: dict[str, str], notes: list[str], started: str
) -> Result:
    return Result(
        bench="launch", np=np, command=command, rows=rows, machine=machine(), versions={"hora": __version__},
        labels=dict(labels), notes=notes, started=started,
    )  # fmt: skip
