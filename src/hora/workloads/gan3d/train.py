"""Training 3DGAN, top to bottom. What makes it distributed is marked ``# Hora``; 2 to 4 are in
``strategy``, the fifth is in ``evaluate``."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import psutil
import torch
from torch import Tensor, nn

import hora.torch as hvd
from hora.data.loader import Loader
from hora.errors import EnvironmentUnfit
from hora.workloads import devices
from hora.workloads.agree import everywhere, on_first
from hora.workloads.base_run import BaseRun
from hora.workloads.gan3d.analysis import Errors
from hora.workloads.gan3d.data import Data, ShowerBatch, load
from hora.workloads.gan3d.evaluate import analyse, losses_on
from hora.workloads.gan3d.game import TorchGan, TrainedGan
from hora.workloads.gan3d.history import COLUMNS, NETWORKS, Losses, loss_table, noted, write_history, write_shapes
from hora.workloads.gan3d.losses import weighted
from hora.workloads.gan3d.model import Discriminator, Generator, frozen
from hora.workloads.gan3d.options import Options
from hora.workloads.gan3d.weights import save_weights
from hora.workloads.run import TorchRun, compression
from hora.workloads.strategy import distributed
from hora.workloads.workers import EmulatedWorker, EmulatedWorkers

__all__ = ["train"]

GENERATOR_UPDATES = 2  # a step


def train(options: Options) -> dict[str, Any]:
    """Train, and return the final metrics."""
    hvd.init()  # Hora 1
    began = time.perf_counter()
    device = devices.of_this_worker(options.device)
    data = everywhere(load, options.data_folder, options.events, options.xscale)

    torch.manual_seed(options.seed)
    generator, discriminator = Generator(options.latent).to(device), Discriminator().to(device)
    game = TorchGan(generator, discriminator, options)
    model = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    workers = EmulatedWorkers(model, options)
    plan = options.plan(len(data.train), workers.total)

    smaller = compression(options)
    made = {
        name: distributed(  # Hora 2 to 4
            network, optimizer_of(options, network, plan.peak_lr), options,
            passes=len(workers) * options.accumulate, compression=smaller, prefix=name,
        )
        for name, network in model.items()
    }  # fmt: skip
    game.train_by(made["generator"].forward, made["discriminator"].forward)
    optimizers = {name: each.optimizer for name, each in made.items()}

    epochs, best = math.ceil(options.epochs), "val_analysis" if options.analysis else "val_loss"
    with TorchRun(options, plan, model, optimizers, workers, facts={"test events": len(data.test)},
             generated=data.generated, best=best, highest=False, compression=smaller,
             rest=[each.rest for each in made.values()], quiet=True) as run, \
         Loader(data.train, run.plans, processes=options.loaders, epochs=epochs) as loader:  # fmt: skip
        tell_start(run, data, time.perf_counter() - began)
        for epoch in run.epochs():
            began = time.perf_counter()
            run.say(f"Epoch {epoch + 1} of {epochs}")
            for batches in run.batches(loader.epoch(epoch)):
                step_began = time.perf_counter()
                # Four updates a step: the discriminator on real and on generated showers, the generator twice.
                for ask in (game.judge_real, game.judge_generated):
                    update(run, optimizers, "discriminator", ask, batches, options)
                with frozen(discriminator):
                    for _ in range(GENERATOR_UPDATES):
                        update(run, optimizers, "generator", game.deceive, batches, options)
                if run.epoch_step % options.log_every == 0:
                    seconds = time.perf_counter() - step_began
                    run.say(f"processed {run.epoch_step + 1}/{run.steps_per_epoch} batches in {seconds}")
                run.step()
            if options.save:
                on_first(write_weights, run, game, epoch)
            run.say(f"The {epoch} epoch took {time.perf_counter() - began} seconds")

            if options.validate:
                test(run, game, data, epoch, run.autocast())
    return run.result()


def update(
    run: TorchRun,
    optimizers: Mapping[str, Any],
    name: str,
    ask: Callable[[ShowerBatch], Tensor],
    batches: list[tuple[EmulatedWorker, ShowerBatch]],
    options: Options,
) -> None:
    """Ask one network one thing, as every worker that this process plays, and correct it by its losses."""
    optimizers[name].zero_grad()
    for worker, batch in batches:
        with worker, run.autocast():
            parts = ask(batch).mean(0)
        loss = weighted(parts, options.loss_weights)
        run.backward(loss)
        values = {f"{name}_{column}": value for column, value in zip(COLUMNS, (loss, *parts), strict=True)}
        if name == "generator":
            values["loss"] = loss  # what records and reports call the loss of a run
        run.count(len(batch.energy), **values)
    run.update(optimizers[name])


def test(run: BaseRun, game: TrainedGan, data: Data, epoch: int, autocast: AbstractContextManager[Any]) -> None:
    """Test after an epoch, print the losses and save them, on all ranks."""
    run.say(f"\nTesting for epoch {epoch + 1}:")
    means = run.means()
    trained = {name: [means[f"{name}_{column}"] for column in COLUMNS] for name in NETWORKS}
    tested = losses_on(game, data.test, autocast)
    run.say(loss_table(trained, tested))
    errors = None
    if game.options.analysis:
        run.say("Analysing............")
        errors, shapes = analyse(game, data.test, autocast)
        on_first(keep, write_shapes, game.options.out_folder, shapes)
        run.say(errors.text() if errors else "no test event has an energy near 100, 200, 300 or 400 GeV")
    run.extra["history"] = noted(run.extra.get("history", {}), epoch, trained, tested, errors)
    on_first(keep, write_history, game.options.out_folder, run.extra["history"])
    run.validated(metrics(tested, errors))


def optimizer_of(options: Options, network: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Keras's optimizer of that name, with its defaults."""
    if options.optimizer == "adam":
        return torch.optim.Adam(network.parameters(), lr=lr, betas=(0.9, 0.999), eps=1e-7)
    return torch.optim.RMSprop(network.parameters(), lr=lr, alpha=0.9, eps=1e-7)


def metrics(tested: Losses, errors: Errors | None) -> dict[str, float]:
    """What a run is judged by: the generator's loss above all; less is better."""
    found = {"loss": tested["generator"][0]}
    found |= {
        f"{name}_{column}": value for name in NETWORKS for column, value in zip(COLUMNS, tested[name], strict=True)
    }
    if errors is not None:
        found |= {"analysis": errors.total, "moment_error": errors.moment, "profile_error": errors.profile}
    return found


def write_weights(run: TorchRun, game: TorchGan, epoch: int) -> None:
    """Both networks' weights, under upstream's names, on rank 0."""
    folder = game.options.weights_folder
    for short, name, network in (("gen", "generator", game.generator), ("disc", "discriminator", game.discriminator)):
        run.say(f"saving weights of {short}")
        keep(save_weights, folder / f"{name}_params_generator_epoch_{epoch:03d}.hdf5", network)


def keep(write: Callable[..., None], *arguments: Any) -> None:
    """Write something; an error of the disk becomes one sentence."""
    try:
        write(*arguments)
    except OSError as error:
        raise EnvironmentUnfit(
            f"{arguments[0]} could not be written: {error}. The previous version is unchanged. Free some space, or "
            "give another folder with --out; then continue with --resume auto."
        ) from None


def tell_start(run: BaseRun, data: Data, seconds: float) -> None:
    """Upstream's lines before the first epoch. Two of them are every rank's."""
    for name in ("discriminator", "generator"):
        run.say(f"[INFO] Building {name}")
    print(f"Global batch size is: {run.plan.global_batch} / batch size is: {run.options.batch}", flush=True)
    names = [[str(file) for file in part.files] for part in (data.train, data.test)]
    run.say("Train files: {} \nTest files: {}".format(*names))
    for file in names[1] + names[0]:
        run.say(f"Loading Data from ..... {file}")
    used = psutil.Process(os.getpid()).memory_info().rss
    print(f"On hostname {socket.gethostname()} - After init using {used} memory", flush=True)
    run.say(f"Total Training batches = {run.steps_per_epoch} with {len(data.train)} events")
    run.say(f"Initialization time was {seconds} seconds")
