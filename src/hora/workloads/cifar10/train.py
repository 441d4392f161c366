"""Training on CIFAR-10, top to bottom. The five lines that make it distributed are marked ``# Hora``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import hora.torch as hvd
from hora.workloads.agree import everywhere
from hora.workloads.cifar10.data import Photographs, load
from hora.workloads.cifar10.model import kernels, network
from hora.workloads.cifar10.options import Options
from hora.workloads.metrics import accuracy, checksum, shard
from hora.workloads.run import Run, compression
from hora.workloads.workers import Workers, device_of_this_worker

__all__ = ["evaluate", "train"]


def train(options: Options) -> dict[str, Any]:
    """Train, and return the final metrics."""
    hvd.init()  # Hora 1
    device = device_of_this_worker()
    data = everywhere(load, options.data_folder)

    torch.manual_seed(options.seed)
    model = network(options.network, options.depth).to(device)
    workers = Workers(model, options)
    plan = options.plan(len(data.train), workers.total)

    # Keras adds l2 x sum of squares to the loss; the gradient of that is 2 x l2 x kernel.
    convolutions, others = kernels(model)
    groups: list[dict[str, Any]] = [{"params": convolutions, "weight_decay": 2 * options.l2}, {"params": others}]
    smaller = compression(options)
    optimizer = hvd.DistributedOptimizer(  # Hora 2
        torch.optim.SGD(groups, lr=plan.peak_lr, momentum=options.momentum), model.named_parameters(), smaller,
        backward_passes_per_step=len(workers) * options.accumulate,
    )  # fmt: skip
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # Hora 3
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # Hora 4

    facts = {"test samples": len(data.test), "labels": checksum(data.train.labels)}
    with Run(options, plan, model, optimizer, workers, facts=facts, generated=data.generated,
             compression=smaller) as run:  # fmt: skip
        for epoch in run.epochs():
            for batches in run.batches(
                data.train.augmented(plan, options.seed) if options.augment == "yes" else data.train.batch(plan.indices)
                for plan in run.plans(epoch)
            ):
                optimizer.zero_grad()
                for worker, (images, labels) in batches:
                    images, labels = images.to(device), labels.to(device)
                    with worker, run.autocast():
                        scores = model(images)
                    loss = F.cross_entropy(scores.float(), labels)
                    (loss / len(batches)).backward()
                    run.count(len(labels), loss=loss, accuracy=accuracy(scores, labels))
                optimizer.step()
                run.step()
            if options.validate:
                run.validated(evaluate(run, model, data.test))
        result = run.result()
        run.say(f"Test loss: {result.get('val_loss')}\nTest accuracy: {result.get('val_accuracy')}")
    return result


def evaluate(run: Run, model: nn.Module, photographs: Photographs) -> dict[str, float]:
    """Loss and accuracy over all of a set, of which each rank looks at its part."""
    model.eval()
    totals = torch.zeros(3, dtype=torch.float64)  # loss, correct, samples
    with torch.no_grad():
        for indices in shard(len(photographs), run.options.val_batch):
            images, labels = (tensor.to(run.workers.device) for tensor in photographs.batch(indices))
            with run.autocast():
                scores = model(images).float()
            loss = F.cross_entropy(scores, labels, reduction="sum")
            totals += torch.tensor([loss.item(), (scores.argmax(1) == labels).sum().item(), len(labels)])
    loss, correct, samples = hvd.allreduce(totals, op=hvd.Sum, name="validation").tolist()  # Hora 5
    return {"loss": loss / samples, "accuracy": correct / samples}
