"""Training on CIFAR-10, top to bottom. What makes it distributed is marked ``# Hora``; 2 to 4 are in ``strategy``,
the fifth is in ``run``."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

import hora.torch as hvd
from hora.workloads import devices, optimizers
from hora.workloads.agree import everywhere
from hora.workloads.cifar10.data import load
from hora.workloads.cifar10.model import kernels, network
from hora.workloads.cifar10.options import Options
from hora.workloads.metrics import accuracy, checksum
from hora.workloads.run import TorchRun, compression
from hora.workloads.strategy import distributed
from hora.workloads.workers import EmulatedWorkers

__all__ = ["train"]


def train(options: Options) -> dict[str, Any]:
    """Train, and return the final metrics."""
    hvd.init()  # Hora 1
    device = devices.of_this_worker(options.device)
    data = everywhere(load, options.data_folder)

    torch.manual_seed(options.seed)
    model = network(options.network, options.depth).to(device)
    workers = EmulatedWorkers(model, options)
    plan = options.plan(len(data.train), workers.total)

    # Keras adds l2 x sum of squares to the loss; the gradient of that is 2 x l2 x kernel.
    convolutions, others = kernels(model)
    groups: list[dict[str, Any]] = [{"params": convolutions, "weight_decay": 2 * options.l2}, {"params": others}]
    smaller = compression(options)
    forward, optimizer, rest = distributed(  # Hora 2 to 4
        model, optimizers.make(options.optimizer, groups, plan.peak_lr, options.momentum), options,
        passes=len(workers) * options.accumulate, compression=smaller,
    )  # fmt: skip

    facts = {"test samples": len(data.test), "labels": checksum(data.train.labels)}

    def learn() -> None:
        for epoch in run.epochs():
            for batches in run.batches(
                data.train.augmented(plan, options.seed) if options.augment == "yes" else data.train.batch(plan.indices)
                for plan in run.plans(epoch)
            ):
                optimizer.zero_grad()
                for worker, (images, labels) in batches:
                    images, labels = images.to(device), labels.to(device)
                    with worker, run.autocast():
                        scores = forward(images)
                    loss = F.cross_entropy(scores.float(), labels)
                    run.backward(loss)
                    run.count(len(labels), loss=loss, accuracy=accuracy(scores, labels))
                run.update(optimizer)
                run.step()
            if options.validate:
                run.validated(run.evaluate(model, data.test))

    with TorchRun(options, plan, model, optimizer, workers, facts=facts, generated=data.generated,
             compression=smaller, rest=[rest]) as run:  # fmt: skip
        run.through(learn)
        result = run.result()
        run.tell_test()
    return result
