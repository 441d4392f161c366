"""Trains a ResNet on ImageNet, or on any set of images in folders, tar shards or TFRecord shards.

The loop is the reference study's with what it lacked: a sharded validation whose metrics are those of all workers, BN
statistics that are saved as they were validated, and a run that resumes bit for bit. Its log lines and checkpoint
fields are the study's, for the tools that read them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import hora.torch as hvd
from hora.data.generated import is_generated
from hora.data.loader import BatchPlan, Loader
from hora.data.source import Source, open_source
from hora.errors import BadData, UsageError
from hora.workloads import devices, optimizers
from hora.workloads.agree import everywhere, on_first, say
from hora.workloads.imagenet import log
from hora.workloads.imagenet.data import Batch, TrainingBatches, ValidationBatches, normalised
from hora.workloads.imagenet.model import decay_groups, network
from hora.workloads.imagenet.options import Options
from hora.workloads.metrics import Means, accuracy
from hora.workloads.missing import check_folder
from hora.workloads.run import TorchRun, compression
from hora.workloads.strategy import distributed
from hora.workloads.workers import EmulatedWorkers

__all__ = ["train"]

CHECKPOINT, BEST = "checkpoint.pth.tar", "model_best.pth.tar"
STUDY_BATCHES = 200  # the study's speed is over that many first


def train(options: Options) -> dict[str, Any]:
    """Train as the options say; the final metrics."""
    hvd.init()  # Hora 1: this process is one worker of many
    device = devices.of_this_worker(options.device)
    torch.manual_seed(options.seed)
    pictures = everywhere(Pictures.of, options)
    say(*log.version_lines(), f"=> creating model '{options.arch}'")
    model = network(options.arch, pictures.classes, zero_gamma=options.zero_gamma, small_fc=options.small_fc).to(device)
    if options.weights:
        on_first(load_weights, model, options.weights)
    workers = EmulatedWorkers(model, options)
    plan = options.plan(len(pictures.training), workers.total)
    forward, optimizer, rest = distributed(  # Hora 2 to 4: gradients are averaged; all begin with the same weights
        model,
        make_optimizer(model, options, plan.peak_lr),
        options,
        passes=len(workers) * options.accumulate,
        compression=(compressed := compression(options)),
    )
    top = min(5, pictures.classes)
    first_times: list[float] = []

    def learn() -> None:
        for epoch in run.epochs():  # continues where a checkpoint was written
            say(*log.rate_lines(epoch, run.plan))
            meters = log.Meters()
            for number, batches in enumerate(run.batches(training.epoch(epoch)), start=run.epoch_step):
                optimizer.zero_grad()
                for worker, (images, labels) in batches:  # one, or several emulated or accumulated
                    images, labels = normalised(images, device), labels.to(device, non_blocking=True)
                    with worker, run.autocast():
                        scores = forward(images)
                    loss = cross_entropy(scores.float(), labels, label_smoothing=options.label_smoothing)
                    run.backward(loss)
                    top1, top5 = accuracy(scores, labels), accuracy(scores, labels, top)
                    run.count(len(labels), loss=loss, accuracy=top1, top5=top5)
                    meters.add(len(labels), loss.item(), top1.item(), top5.item())
                run.update(optimizer)
                run.step()  # leaves with a checkpoint if the job must end
                meters.time.add(run.step_s)
                meters.data.add(run.data_s)
                if epoch == 0 and number < STUDY_BATCHES:
                    first_times.append(run.step_s)
                if number % options.log_every == 0:
                    say(log.epoch_line(epoch, number, run.steps_per_epoch, meters))
            if options.validate:
                run.validated(evaluate(model, validation.epoch(epoch), run, pictures, top))

    with (
        TorchRun(
            options,
            plan,
            model,
            optimizer,
            workers,
            facts={"classes": pictures.classes, "validation samples": len(pictures.validation)},
            generated=pictures.generated,
            quiet=True,
            compression=compressed,
            rest=[rest],
            model_field="state_dict",
            fields=lambda: {"arch": options.arch, "best_acc1": 100 * (run.best or 0.0)},
            names=lambda epoch, step, whole: CHECKPOINT,
            best_name=BEST,
        ) as run,
        Loader(
            TrainingBatches(pictures.training, options.image_size, options.seed),
            run.plans,
            processes=options.loaders,
            epochs=math.ceil(options.epochs),
            pin=device.type != "cpu",
        ) as training,
        Loader(
            ValidationBatches(pictures.validation, options.image_size, options.resize),
            lambda _: [BatchPlan(indices) for indices in run.shard(len(pictures.validation), options.batch)],
            processes=options.loaders,
            pin=device.type != "cpu",
        ) as validation,
    ):
        tell_start(run, options)
        if options.evaluate:
            workers.average()
            run.validated(evaluate(model, validation.epoch(0), run, pictures, top))
            return run.result()
        run.through(learn, training, validation)
    return run.result() | {
        "arch": options.arch,
        "study_images_per_s": run.plan.global_batch * len(first_times) / sum(first_times) if first_times else None,
    }


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Iterable[Batch], run: TorchRun, pictures: Pictures, top: int
) -> dict[str, float]:
    """Loss and accuracies over the whole validation set, of which every worker takes its share."""
    model.eval()
    samples, device = len(pictures.validation), run.workers.device
    means, meters = Means(), log.Meters()
    means.add(0, {"loss": 0.0, "accuracy": 0.0, "top5": 0.0})  # a worker may have no share, if there are many
    count = math.ceil(math.ceil(samples / hvd.size()) / run.options.batch)
    began = time.perf_counter()
    for number, (images, labels) in enumerate(batches):
        images, labels = normalised(images, device), labels.to(device, non_blocking=True)
        with run.autocast():
            scores = model(images)
        loss = cross_entropy(scores.float(), labels)
        found = loss.item(), accuracy(scores, labels).item(), accuracy(scores, labels, top).item()
        means.add(len(labels), dict(zip(("loss", "accuracy", "top5"), found, strict=True)))
        meters.add(len(labels), *found)
        began, last = time.perf_counter(), began
        meters.time.add(began - last)
        if number % run.options.log_every == 0:
            say(log.validation_line(number, count, meters))
    result = means.reduced()  # Hora 5: metrics are those of all workers
    say(log.summary_line(result["accuracy"], result["top5"]))
    return result


class Pictures(NamedTuple):
    """The data set."""

    training: Source
    validation: Source
    generated: bool

    @property
    def classes(self) -> int:
        return len(self.training.classes)

    @classmethod
    def of(cls, options: Options) -> Pictures:
        """Open what lies in the data folder; raises BadData if its two parts do not belong together."""
        folder = options.data_folder
        check_folder("imagenet", folder)
        training, validation = open_source(folder, "train"), open_source(folder, "val")
        if training.classes != validation.classes:
            odd = sorted(set(training.classes) ^ set(validation.classes))[:3]
            raise BadData(
                f"{folder}: training has {len(training.classes)} classes and validation {len(validation.classes)}; "
                f"only one of them has {', '.join(odd)}. Labels would not match. Give both the same folders."
            )
        return cls(training, validation, is_generated(folder))


def make_optimizer(model: nn.Module, options: Options, lr: float) -> torch.optim.Optimizer:
    """The optimizer, with weight decay where it belongs."""
    groups = decay_groups(model, options.weight_decay, vectors=not options.decay_weights_only)
    made: torch.optim.Optimizer = optimizers.make(options.optimizer, groups, lr, options.momentum)
    return made


def load_weights(model: nn.Module, path: str) -> None:
    """Take weights from a file: a state dictionary such as torchvision's, or a checkpoint with one inside."""
    with fitting_weights(path):
        model.load_state_dict(states_in(path))


def states_in(path: str) -> dict[str, Any]:
    """What torch keeps in such a file, by the names that the network has for it."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    states = content.get("state_dict", content)
    return {name.removeprefix("module."): tensor for name, tensor in states.items()}


@contextmanager
def fitting_weights(path: str) -> Iterator[None]:
    """Inside, weights are read and put into a network; an error becomes one sentence."""
    try:
        yield
    except Exception as error:  # frameworks raise whatever they meet
        reason = str(error).strip().replace("\n", " ")[:300]
        raise UsageError(
            f"--weights {path} does not fit: {reason}. Give weights of this --arch and data set."
        ) from None


def tell_start(run: TorchRun, options: Options) -> None:
    """Say what the run continues from, and take over what a checkpoint of the study's own scripts knows."""
    if run.loaded:
        if "run" not in run.loaded and "best_acc1" in run.loaded:
            run.best = float(run.loaded["best_acc1"]) / 100
        say(f"=> loading checkpoint '{run.checkpoint}'", f"=> loaded checkpoint '{run.checkpoint}' (epoch {run.epoch})")
    elif options.resume != "no":
        say(f"=> no checkpoint found at '{options.out_folder / CHECKPOINT}'")
    for caution in run.plan.cautions():
        say(f"caution: {caution}")
