"""A workload of seconds, for tests of what all workloads share: a network with batch normalisation and dropout on
random numbers. ``python -m tests.workloads.tiny OPTIONS_AS_JSON FILE`` trains, and rank 0 writes what it learned.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, ClassVar

import msgspec
from tests.light import light_torch

if __name__ == "__main__":
    light_torch()

import torch
from torch import nn
from torch.nn import functional as F

import hora.torch as hvd
from hora.data.loader import BatchPlan
from hora.engine import session
from hora.workloads import options as base
from hora.workloads.metrics import accuracy
from hora.workloads.run import TorchRun
from hora.workloads.strategy import distributed
from hora.workloads.workers import EmulatedWorkers

SAMPLES, FEATURES, CLASSES = 203, 12, 3


class Options(base.WorkloadOptions, frozen=True, kw_only=True):
    """``fail_at`` is a step whose loss is not a number, on rank ``fail_on``.

    ``faults`` are words such as ``5:kill:0`` (rank 0 is killed in step 5, before its update), ``5:killed:0`` (after it)
    and ``9:wait`` (step 9 ends when another worker has come); each happens once. ``audit`` counts every sample that is
    taken in ``extra``.
    """

    workload: ClassVar[str] = "tiny"
    lr: float | None = 0.05
    base_batch: int = 8
    batch: int = 8
    epochs: float = 2.0
    optimizer: str = "sgd"
    fail_at: int = -1
    fail_on: int = 0
    signal_at: int = -1
    faults: str = ""
    audit: bool = False


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn, self.fc2 = nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.fc2(F.dropout(F.relu(self.bn(self.fc1(x))), 0.3, self.training))
        return scores


def data() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(5)
    x = torch.randn(SAMPLES, FEATURES, generator=random)
    return x, x[:, :CLASSES].argmax(1)


def strike(options: Options, run: TorchRun, what: str) -> None:
    """What ``faults`` has for this step and moment."""
    for word in options.faults.split():
        step, kind, *rank = word.split(":")
        if int(step) != run.step_number or kind != what or (rank and int(rank[0]) != hvd.rank()):
            continue
        try:
            (run.options.out_folder / f"struck-{step}-{kind}").touch(exist_ok=False)
        except FileExistsError:
            continue
        if kind != "wait":
            os.kill(os.getpid(), signal.SIGKILL)
        deadline = time.monotonic() + 90
        while not session.others_wait():
            assert time.monotonic() < deadline, "nobody came"
            time.sleep(0.01)


def count(plans: list[BatchPlan]) -> list[int]:
    """How often each sample is taken in this step, by all workers."""
    here = torch.zeros(SAMPLES, dtype=torch.int64)
    for plan in plans:
        here += torch.bincount(torch.from_numpy(plan.indices), minlength=SAMPLES)
    found: list[int] = hvd.allreduce(here, op=hvd.Sum, name="audit").tolist()
    return found


def train(options: Options) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The final metrics and the trained model's state."""
    hvd.init()
    x, y = data()
    torch.manual_seed(options.seed)
    model = Net()
    workers = EmulatedWorkers(model, options)
    plan = options.plan(SAMPLES, workers.total)
    kind: Any = {"sgd": lambda p: torch.optim.SGD(p, plan.peak_lr, momentum=0.9), "adam": torch.optim.Adam}
    forward, optimizer, rest = distributed(
        model, kind[options.optimizer](model.parameters()), options, passes=len(workers) * options.accumulate
    )

    def learn() -> None:
        for epoch in run.epochs():
            torch.rand(1 + epoch)  # what others draw from the global generator must not matter
            for batches in run.batches((x[p.indices], y[p.indices]) for p in run.plans(epoch)):
                optimizer.zero_grad()
                for worker, (inputs, labels) in batches:
                    with worker, run.autocast():
                        scores = forward(inputs)
                    loss = F.cross_entropy(scores.float(), labels)
                    if run.step_number == options.fail_at and hvd.rank() == options.fail_on:
                        loss = loss * torch.nan
                    run.backward(loss)
                    run.count(len(labels), loss=loss, accuracy=accuracy(scores, labels))
                strike(options, run, "kill")
                took = count(run.plans(epoch)[: len(batches)]) if options.audit else []
                run.update(optimizer)
                strike(options, run, "killed")
                if options.audit:
                    before = run.extra.get("taken", [0] * SAMPLES)
                    run.extra = {"taken": [a + b for a, b in zip(before, took, strict=True)]}
                if hvd.rank() == 0:
                    strike(options, run, "wait")
                if run.step_number == options.signal_at:
                    signal.raise_signal(signal.SIGTERM)
                run.step()
            model.eval()
            totals = torch.zeros(2, dtype=torch.float64)
            with torch.no_grad():
                for indices in run.shard(SAMPLES, 50):
                    scores = model(x[indices])
                    totals += torch.tensor([F.cross_entropy(scores, y[indices], reduction="sum").item(), len(indices)])
            loss_sum, seen = hvd.allreduce(totals, op=hvd.Sum, name="validation").tolist()
            run.validated({"loss": loss_sum / seen, "accuracy": 1 / (1 + loss_sum)})

    with TorchRun(options, plan, model, optimizer, workers, rest=[rest]) as run:
        run.through(learn)
    return run.result(), {name: tensor.clone() for name, tensor in model.state_dict().items()}


if __name__ == "__main__":
    result, state = train(Options.of(msgspec.json.decode(sys.argv[1])))
    if hvd.rank() == 0:
        torch.save({"result": result, "state": state}, sys.argv[2])
    hvd.shutdown()
