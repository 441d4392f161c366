"""Training on MNIST, top to bottom. What makes it distributed is marked ``# Hora``; 2 to 4 are in ``strategy``,
the fifth is in ``run``."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

import hora.torch as hvd
from hora.workloads import devices
from hora.workloads.agree import everywhere
from hora.workloads.metrics import accuracy, checksum
from hora.workloads.mnist.data import load
from hora.workloads.mnist.model import network
from hora.workloads.mnist.options import Options
from hora.workloads.run import TorchRun, compression
from hora.workloads.strategy import distributed
from hora.workloads.workers import EmulatedWorkers

__all__ = ["train"]


def train(options: Options) -> dict[str, Any]:
    """Train, and return the final metrics."""
    hvd.init()  # Hora 1
    device = devices.of_this_worker(options.device)
    data = everywhere(load, options.data_folder, options.network == "horovod")

    torch.manual_seed(options.seed)
    model = network(options.network).to(device)
    workers = EmulatedWorkers(model, options)
    plan = options.plan(len(data.train), workers.total)

    optimizer: Any = (
        torch.optim.Adam(model.parameters(), lr=plan.peak_lr)
        if options.optimizer == "adam"
        else torch.optim.SGD(model.parameters(), lr=plan.peak_lr, momentum=options.momentum)
    )
    smaller = compression(options)
    forward, optimizer, rest = distributed(  # Hora 2 to 4
        model, optimizer, options, passes=len(workers) * options.accumulate, compression=smaller
    )

    horovods = options.network == "horovod"  # which prints lines of its own
    facts = {"test samples": len(data.test), "labels": checksum(data.train.labels)}

    def learn() -> None:
        for epoch in run.epochs():
            for batches in run.batches(data.train.batch(plan.indices) for plan in run.plans(epoch)):
                optimizer.zero_grad()
                for worker, (images, labels) in batches:
                    images, labels = images.to(device), labels.to(device)
                    with worker, run.autocast():
                        scores = forward(images)
                    loss = F.cross_entropy(scores.float(), labels)
                    run.backward(loss)
                    run.count(len(labels), loss=loss, accuracy=accuracy(scores, labels))
                run.update(optimizer)
                if horovods and (run.epoch_step % options.log_every) == 0:
                    tell(run, loss.item())
                run.step()
            if not options.validate:
                continue
            found = run.evaluate(model, data.test)
            run.validated(found)
            if horovods:
                run.say(f"\nTest set: Average loss: {found['loss']:.4f}, Accuracy: {100 * found['accuracy']:.2f}%\n")

    with TorchRun(options, plan, model, optimizer, workers, facts=facts, generated=data.generated,
             compression=smaller, rest=[rest], quiet=horovods) as run:  # fmt: skip
        run.through(learn)
    return run.result()


def tell(run: TorchRun, loss: float) -> None:
    """Horovod's line, which every rank prints: its own part of the epoch, and its own loss."""
    seen = run.epoch_step * run.options.batch * run.options.accumulate * len(run.workers)
    mine = run.plan.samples // hvd.size()
    done = 100.0 * run.epoch_step / run.steps_per_epoch
    print(f"Train Epoch: {run.epoch + 1} [{seen}/{mine} ({done:.0f}%)]\tLoss: {loss:.6f}", flush=True)
