"""What each process of a benchmark runs: ``python -m hora.bench.worker PLAN FOLDER``.

Started by ``hora run``, or by ``mpirun`` when MPI is a contender: Hora finds its world either way, so that all
contenders run in the same processes. Leaves its measurements in ``FOLDER/rank-<rank>.json``; rank 0 prints a line
starting with ``plan.PROGRESS`` before each row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch

import hora.torch as hvd
from hora.bench import resnet50, train
from hora.bench.contenders import Shapes, make
from hora.bench.plan import GRADIENTS, LABELS, PROGRESS, BenchPlan, RankReport
from hora.errors import EnvironmentUnfit
from hora.text import size_text
from hora.workloads import devices

__all__ = ["main", "rows", "work"]

PEER_TIMEOUT_S = 120.0


def rows(plan: BenchPlan) -> Iterator[tuple[str, Shapes]]:
    """The name of each row, and the tensors of one call."""
    if plan.bench == "gradients":
        yield GRADIENTS, resnet50.shapes()
        return
    for size in plan.sizes:
        yield size_text(size), {f"bench.{size}": (size // 4,)}


def work(plan: BenchPlan, folder: Path) -> RankReport:
    """Measure everything in the plan, on this rank."""
    report = RankReport(rank=hvd.rank(), seconds={}, calls={}, versions={})
    contenders = {}
    for key in plan.contenders:
        try:
            contenders[key] = make(key, folder, PEER_TIMEOUT_S)
        except EnvironmentUnfit as reason:  # the same on every rank: they share a host and an installation
            report.notes.append(f"{LABELS[key]} was not measured: {reason}")
        else:
            report.versions[key] = contenders[key].version
    todo = list(rows(plan))
    for number, (name, shapes) in enumerate(todo):
        if hvd.rank() == 0:
            print(f"{PROGRESS}{number + 1}/{len(todo)} {name}", flush=True)
        tasks = {key: contender.task(shapes, plan.seed) for key, contender in contenders.items()}
        train.measure(plan, report, name, tasks)
    hvd.barrier()  # nobody may leave while a peer's library still needs it
    for contender in contenders.values():
        contender.close()
    return report


def main(plan_file: str, folder_name: str) -> None:
    plan = msgspec.json.decode(Path(plan_file).read_bytes(), type=BenchPlan)
    folder = Path(folder_name)
    torch.set_num_threads(1)  # a worker is a process with one core to itself; nobody's helpers may disturb the others
    hvd.init()
    if plan.device != "cpu":
        torch.set_default_device(devices.of_this_worker(plan.device))  # every contender's tensors are made there
    report = train.work(plan, folder) if plan.bench == "train" else work(plan, folder)
    (folder / f"rank-{report.rank}.json").write_bytes(msgspec.json.encode(report))
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
