"""A workload of seconds, for tests of what all workloads share: a network with batch normalisation and dropout on
random numbers. ``python -m tests.workloads.tiny OPTIONS_AS_JSON FILE`` trains, and rank 0 writes what it learned.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import msgspec
from tests.light import light_torch

if __name__ == "__main__":
    light_torch()

import torch
from torch import nn
from torch.nn import functional as F

import hora.torch as hvd
from hora.workloads import options as base
from hora.workloads.metrics import accuracy, shard
from hora.workloads.run import Run
from hora.workloads.workers import Workers

SAMPLES, FEATURES, CLASSES = 203, 12, 3


class Options(base.Options, frozen=True, kw_only=True):
    """``fail_at`` is a step whose loss is not a number, on rank ``fail_on``."""

    workload: ClassVar[str] = "tiny"
    lr: float | None = 0.05
    base_batch: int = 8
    batch: int = 8
    epochs: float = 2.0
    optimizer: str = "sgd"
    fail_at: int = -1
    fail_on: int = 0
    signal_at: int = -1


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


def train(options: Options) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The final metrics and the trained model's state."""
    hvd.init()
    x, y = data()
    torch.manual_seed(options.seed)
    model = Net()
    workers = Workers(model, options)
    plan = options.plan(SAMPLES, workers.total)
    kind: Any = {"sgd": lambda p: torch.optim.SGD(p, plan.peak_lr, momentum=0.9), "adam": torch.optim.Adam}
    optimizer = hvd.DistributedOptimizer(
        kind[options.optimizer](model.parameters()),
        model.named_parameters(),
        backward_passes_per_step=len(workers) * options.accumulate,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    with Run(options, plan, model, optimizer, workers) as run:
        for epoch in run.epochs():
            torch.rand(1 + epoch)  # what others draw from the global generator must not matter
            for batches in run.batches((x[p.indices], y[p.indices]) for p in run.plans(epoch)):
                optimizer.zero_grad()
                for worker, (inputs, labels) in batches:
                    with worker, run.autocast():
                        scores = model(inputs)
                    loss = F.cross_entropy(scores.float(), labels)
                    if run.step_number == options.fail_at and hvd.rank() == options.fail_on:
                        loss = loss * torch.nan
                    (loss / len(batches)).backward()
                    run.count(len(labels), loss=loss, accuracy=accuracy(scores, labels))
                optimizer.step()
                if run.step_number == options.signal_at:
                    import signal

                    signal.raise_signal(signal.SIGTERM)
                run.step()
            model.eval()
            totals = torch.zeros(2, dtype=torch.float64)
            with torch.no_grad():
                for indices in shard(SAMPLES, 50):
                    scores = model(x[indices])
                    totals += torch.tensor([F.cross_entropy(scores, y[indices], reduction="sum").item(), len(indices)])
            loss_sum, seen = hvd.allreduce(totals, op=hvd.Sum, name="validation").tolist()
            run.validated({"loss": loss_sum / seen, "accuracy": 1 / (1 + loss_sum)})
    return run.result(), {name: tensor.clone() for name, tensor in model.state_dict().items()}


if __name__ == "__main__":
    result, state = train(Options.of(msgspec.json.decode(sys.argv[1])))
    if hvd.rank() == 0:
        torch.save({"result": result, "state": state}, sys.argv[2])
    hvd.shutdown()
