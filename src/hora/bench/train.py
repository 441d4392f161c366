"""Training with and without communication, on the workers: what `hora bench train` times.

Every contender trains its own copy of the same network with the same kind of optimizer, the way its documentation says.
``limit`` does not communicate at all: the same processes training side by side, each for itself, which nobody can beat.
``in_step`` does so too, but meets the others once a step with four bytes: what waiting for the slower worker costs, and
what is left of a contender's loss beside it is what moving gradients costs.
Before anything is timed, a step of each contender must lead to the same parameters as a step with gradients that were
averaged by hand. One turn is as many whole steps (forward, backward, optimizer) as fill it.

Each framework has a file, ``train_<framework>``, with two functions: ``make`` a task, and ``version``; that of torch
also has ``profile``, from which the floor between hosts is found (``link``).
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

import hora.torch as hvd
from hora.bench import link
from hora.bench.contenders import TimedTask
from hora.bench.plan import PROGRESS, TRAIN_LABELS, TRAININGS, BenchPlan, RankReport
from hora.bench.rounds import take_turns
from hora.config import env
from hora.engine import session
from hora.errors import EnvironmentUnfit
from hora.transport import device
from hora.wire import addresses

__all__ = ["measure", "work"]

PEER_TIMEOUT_S = 120.0
WIRES = {"float32": 1.0, "bf16": 0.5}  # how much of a float32 gradient travels


def work(plan: BenchPlan, folder: Path) -> RankReport:
    """Measure everything in the plan, on this rank."""
    report = RankReport(rank=hvd.rank(), seconds={}, calls={}, versions={})
    framework: Any = importlib.import_module(f"hora.bench.train_{plan.framework}")
    end = _start_peers(plan, folder, report, framework.version())
    hosts = len({peer.host for peer in session.engine().peers})
    if hosts > 1:
        report.link_bytes_per_s = plan.link_bytes_per_s or link.rate()
    for number, name in enumerate(plan.models):
        if hvd.rank() == 0:
            print(f"{PROGRESS}{number + 1}/{len(plan.models)} {TRAININGS[name].title}", flush=True)
        if report.link_bytes_per_s and hasattr(framework, "profile"):
            profile = framework.profile(name, plan.seed, hvd.rank())
            report.floors[name] = {
                wire: link.floor_s(profile, hosts, report.link_bytes_per_s, share) for wire, share in WIRES.items()
            }
        tasks = {key: _task(framework, key, name, plan.seed) for key in report.versions}
        measure(plan, report, name, tasks)
        hvd.barrier()
        del tasks
        gc.collect()  # a network and its optimizer refer to each other; the next row wants the memory
    end()
    return report


def measure(plan: BenchPlan, report: RankReport, name: str, tasks: Mapping[str, TimedTask]) -> None:
    """Let the contenders of a row take turns, and note their times in the report."""
    timings = take_turns(tasks, plan.rounds, plan.round_s, _settle(plan.device))
    report.seconds[name] = {key: timing.seconds for key, timing in timings.items()}
    report.calls[name] = {key: timing.calls for key, timing in timings.items()}
    report.p99[name] = {key: timing.p99_s for key, timing in timings.items()}


def _settle(kind: str) -> Callable[[], object] | None:
    """What waits for all that was queued on this worker's device; None on the CPU, where nothing is."""
    wait: Callable[[], object] | None = None if kind == "cpu" else device.module_of(kind).synchronize
    return wait


def _task(framework: Any, key: str, name: str, seed: int) -> TimedTask:
    """A contender's step. In step is that of the limit, with a meeting after it."""
    if key != "in_step":
        made: TimedTask = framework.make(key, name, seed, hvd.rank())
        return made
    step, word = framework.make("limit", name, seed, hvd.rank()).call, torch.zeros(1)

    def meeting() -> None:
        step()
        hvd.allreduce_(word, name="bench.in_step", op=hvd.Sum)

    return TimedTask([], meeting, sums=False)


def _start_peers(plan: BenchPlan, folder: Path, report: RankReport, version: str) -> Callable[[], None]:
    """Start the libraries, note their versions, return what ends them; all ranks do it in the same order."""
    ends: list[Callable[[], object]] = []
    for key in plan.contenders:
        try:
            report.versions[key] = _start(key, folder, ends, version)
        except EnvironmentUnfit as reason:  # the same on every rank: they share a host and an installation
            report.notes.append(f"{TRAIN_LABELS[key]} was not measured: {reason}")

    def end() -> None:
        for finish in ends:
            finish()

    return end


def _interface() -> dict[str, str]:
    """Between hosts DDP gets the interface by which the workers met, unless told: its own choice may lead nowhere."""
    found = addresses.interface_of(session.engine().peers[hvd.rank()].address)
    return {"GLOO_SOCKET_IFNAME": found} if found and "GLOO_SOCKET_IFNAME" not in env.environ() else {}


def _start(key: str, folder: Path, ends: list[Callable[[], object]], version: str) -> str:
    match key:
        case "ddp" | "ddp_tuned" | "ddp_bf16":
            dist: Any = importlib.import_module("torch.distributed")
            if not dist.is_initialized():
                store = dist.FileStore(str(folder / "gloo-store"), hvd.size())
                by = "nccl" if torch.get_default_device().type == "cuda" else "gloo"
                longest_wait = timedelta(seconds=PEER_TIMEOUT_S)
                with env.during(**_interface()):
                    dist.init_process_group(
                        by, store=store, rank=hvd.rank(), world_size=hvd.size(), timeout=longest_wait
                    )
                ends.append(dist.destroy_process_group)
            return f"on {'NCCL' if dist.get_backend() == 'nccl' else 'Gloo'}, of {version}"
        case "horovod":
            horovod: Any = importlib.import_module("horovod.torch")
            horovod.init()
            world = (horovod.rank(), horovod.size())
            if world != (hvd.rank(), hvd.size()):
                raise EnvironmentUnfit(f"its world is {world}, and Hora's is {(hvd.rank(), hvd.size())}")
            ends.append(horovod.shutdown)
            return str(importlib.import_module("horovod").__version__)
        case "hora":
            return str(importlib.import_module("hora").__version__)
        case _:
            return version
