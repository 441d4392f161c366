"""Trains a model on one batch of random numbers, over and over, and reports its speed: that of computing and of
averaging gradients, without that of reading data."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import hora.torch as hvd
from hora.workloads import devices
from hora.workloads.agree import same, say
from hora.workloads.folder import now
from hora.workloads.precision import Precision
from hora.workloads.run import compression
from hora.workloads.strategy import distributed
from hora.workloads.synthetic import forms
from hora.workloads.synthetic.keep import SyntheticRecord
from hora.workloads.synthetic.model import Benchmark, benchmark, random_batch
from hora.workloads.synthetic.options import Options
from hora.workloads.turns import Turns

__all__ = ["train"]

Step = Callable[[], float]  # one training step, done when it returns; its loss


def train(options: Options) -> dict[str, Any]:
    """Measure as the options say; the figures."""
    began, at = time.perf_counter(), now()
    hvd.init()  # Hora 1: this process is one worker of many
    same({"workload": options.workload, "model": options.model, "batch": options.batch, "form": options.form})
    device = devices.of_this_worker(options.device)
    chosen = benchmark(options.model, options.image_size)
    torch.manual_seed(options.seed)
    model = chosen.make().to(device)
    plan = options.plan(chosen.samples, hvd.size())
    turns = Turns.wanted(options.max_steps, lambda resting: rest(resting))
    rate = plan.peak_lr if turns is None else 0.0
    forward, optimizer, rest = distributed(  # Hora 2 to 4: gradients are averaged; all begin with the same weights
        model,
        torch.optim.SGD(model.parameters(), lr=rate, weight_decay=options.weight_decay),
        options,
        compression=compression(options),
    )
    precision = Precision(options.precision, device)
    images, labels = random_batch(chosen, options, hvd.rank(), device)
    model.train()

    def once() -> float:
        optimizer.zero_grad()
        with precision.autocast():
            output = forward(images)
        loss = chosen.loss(output, labels)
        precision.backward(loss)
        precision.step(optimizer)
        return loss.item()  # waits for the device

    with SyntheticRecord(options, plan, turns, at) as kept:
        step = kept.each(once)
        say(*header(options, chosen, device))
        step()
        first_batch_s = time.perf_counter() - began
        for _ in range(options.warmup_batches - 1):
            step()
        figures = by_tf(options, step, model) if options.form == "tf" else by_horovod(options, step, device)
        kept.result = {
            "workload": options.workload,
            "form": options.form,
            "model": options.model,
            "workers": hvd.size(),
            "emulated_workers": 0,
            **figures,
            "first_batch_s": first_batch_s,
            "seconds": time.perf_counter() - began,
            "seed": options.seed,
            "generated_data": True,
            "batch": options.batch,
            "global_batch": plan.global_batch,
            "peak_lr": plan.peak_lr,
            "precision": options.precision,
            "strategy": options.strategy,
            **({"by_turns": turns.found} if turns is not None else {}),
        }
    return dict(kept.result)


def by_horovod(options: Options, step: Step, device: torch.device) -> dict[str, Any]:
    """Groups of batches, timed together; of this worker, the total being as many times that."""
    say("Running benchmark...")
    speeds = []
    for number in range(options.iters):
        began = time.perf_counter()
        for _ in range(options.batches_per_iter):
            step()
        speeds.append(options.batch * options.batches_per_iter / (time.perf_counter() - began))
        say(forms.horovod_iteration(number, speeds[-1], kind(device)))
    say(*forms.horovod_total(speeds, hvd.size(), kind(device)))
    mean, interval = forms.mean_and_interval(speeds)
    return {
        "samples": hvd.size() * options.batch * options.batches_per_iter * options.iters,
        "images_per_s": hvd.size() * mean,
        "images_per_s_interval": hvd.size() * interval,
        "images_per_s_per_worker": mean,
        "iterations": speeds,
    }


def by_tf(options: Options, step: Step, model: nn.Module) -> dict[str, Any]:
    """Every batch, timed by itself; the total from the time of all."""
    say(*forms.TF_STARTED)
    seconds: list[float] = []
    began = last = time.perf_counter()
    for number in range(1, options.num_batches + 1):
        loss = step()
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
        if number == 1 or number % options.display_every == 0:
            total = loss + penalty(model, options.weight_decay)
            say(forms.tf_line(number, forms.speed(options.batch, seconds), total))
    images_per_s = hvd.size() * options.num_batches * options.batch / (time.perf_counter() - began)
    say(*forms.tf_total(images_per_s))
    found = forms.speed(options.batch, seconds)
    return {
        "samples": hvd.size() * options.num_batches * options.batch,
        "images_per_s": images_per_s,
        "images_per_s_per_worker": found.mean,
        "uncertainty": found.uncertainty,
        "jitter": found.jitter,
    }


def header(options: Options, chosen: Benchmark, device: torch.device) -> list[str]:
    """The lines before the warm-up."""
    if options.form == "horovod":
        return forms.horovod_header(options.model, options.batch, hvd.size(), kind(device))
    return forms.tf_header(
        version=torch.__version__,
        model=options.model,
        dataset=chosen.dataset,
        batch=options.batch,
        workers=hvd.size(),
        batches=options.num_batches,
        epochs=hvd.size() * options.batch * options.num_batches / chosen.samples,
        device=kind(device).lower(),
    )


def kind(device: torch.device) -> str:
    """
    >>> kind(torch.device("cpu"))
    'CPU'
    """
    return "CPU" if device.type == "cpu" else "GPU"


@torch.no_grad()
def penalty(model: nn.Module, weight_decay: float) -> float:
    """What weight decay adds to the loss that tf_cnn_benchmarks prints.

    >>> round(penalty(nn.Linear(1, 1, bias=False).requires_grad_(False).to(torch.float64), 0.0), 3)
    0.0
    """
    return weight_decay / 2 * sum(parameter.square().sum().item() for parameter in model.parameters())
