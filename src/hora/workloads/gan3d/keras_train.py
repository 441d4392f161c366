"""Training of 3DGAN with Keras, top to bottom. The five lines that make it distributed are marked ``# Hora``; the fifth
is in ``evaluate``."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from typing import Any

import keras
import torch
from torch import Tensor

import hora.keras as hvd
from hora.data.loader import Loader
from hora.keras.adapter import Array
from hora.workloads.agree import everywhere, on_first
from hora.workloads.gan3d.data import ShowerBatch, load
from hora.workloads.gan3d.game import TrainedGan
from hora.workloads.gan3d.history import COLUMNS
from hora.workloads.gan3d.keras_model import discriminator as make_discriminator
from hora.workloads.gan3d.keras_model import frozen, save_weights
from hora.workloads.gan3d.keras_model import generator as make_generator
from hora.workloads.gan3d.losses import each, flipped, sample
from hora.workloads.gan3d.model import Judgement
from hora.workloads.gan3d.options import Options
from hora.workloads.gan3d.train import GENERATOR_UPDATES, keep, tell_start, test
from hora.workloads.keras_run import KerasRun, compression, prepare
from hora.workloads.order import random_seed

__all__ = ["KerasGan", "train"]

_NOISE = 0x6A4E  # sets its random numbers apart from others of the same seed


def train(options: Options) -> dict[str, Any]:
    """Train, and return the final metrics."""
    hvd.init()  # Hora 1
    began = time.perf_counter()
    data = everywhere(load, options.data_folder, options.events, options.xscale)
    plan = options.plan(len(data.train), hvd.size())
    run: KerasRun | None = None
    epochs, best = math.ceil(options.epochs), "val_analysis" if options.analysis else "val_loss"
    with Loader(
        data.train, lambda epoch: run.plans(epoch) if run else [], processes=options.loaders, epochs=epochs
    ) as loader:
        list(loader.epoch(0))  # begins its processes now: Keras's backend has not begun its threads yet
        prepare(options)
        generator, discriminator = make_generator(options.latent), make_discriminator()
        optimizers = {
            name: hvd.DistributedOptimizer(  # Hora 2
                optimizer_of(options, plan.peak_lr), compression=compression(options),
                backward_passes_per_step=options.accumulate, average_aggregated_gradients=True,
            )
            for name in ("generator", "discriminator")
        }  # fmt: skip
        game = KerasGan(generator, discriminator, optimizers, options)
        with KerasRun(  # Hora 3 and 4: all ranks get the weights and the optimizers of the first
            options, plan, {"generator": generator, "discriminator": discriminator}, optimizers=optimizers,
            compiled=[discriminator, game.combined], facts={"test events": len(data.test)}, generated=data.generated,
            best=best, highest=False, quiet=True,
        ) as run:  # fmt: skip
            tell_start(run, data, time.perf_counter() - began)
            for epoch in run.epochs():
                began = time.perf_counter()
                run.say(f"Epoch {epoch + 1} of {epochs}")
                for batches in run.steps(loader.epoch(epoch)):
                    step_began = time.perf_counter()
                    torch.manual_seed(random_seed(options.seed, _NOISE, hvd.rank(), run.step_number))
                    # Four updates a step: the discriminator on real and on generated showers, the generator twice.
                    for ask in (game.judge_real, game.judge_generated, *[game.deceive] * GENERATOR_UPDATES):
                        for batch in batches:  # one, or several accumulated
                            run.count(len(batch.energy), **ask(batch))
                    if run.epoch_step % options.log_every == 0:
                        seconds = time.perf_counter() - step_began
                        run.say(f"processed {run.epoch_step + 1}/{run.steps_per_epoch} batches in {seconds}")
                    run.step()
                if options.save:
                    on_first(write_weights, run, game, epoch)
                run.say(f"The {epoch} epoch took {time.perf_counter() - began} seconds")
                if options.validate:
                    test(run, game, data, epoch, nullcontext())
            return run.result()


class KerasGan(TrainedGan):
    """What each network is asked in training; an answer is its losses by name, means over the events."""

    def __init__(self, generator: Any, discriminator: Any, optimizers: dict[str, Any], options: Options) -> None:
        super().__init__(options)
        self.generator, self.discriminator = generator, discriminator
        noise = keras.Input((options.latent,))
        judged = zip(discriminator.output_names, discriminator(generator(noise)), strict=True)
        self.combined = keras.Model(noise, [keras.layers.Identity(name=name)(each) for name, each in judged])
        for name, model in (("discriminator", discriminator), ("generator", self.combined)):
            model.compile(
                optimizers[name],
                loss=["binary_crossentropy", *["mean_absolute_percentage_error"] * 2],
                loss_weights=list(options.loss_weights),
            )
            optimizers[name].build((discriminator if model is discriminator else generator).trainable_variables)

    def judge_real(self, batch: ShowerBatch) -> dict[str, float]:
        """The discriminator learns from real showers."""
        labels = flipped(torch.ones(len(batch.energy)), self.options.flip)
        return self.taught(_array(batch.showers), Judgement(labels, batch.energy, batch.ecal))

    def judge_generated(self, batch: ShowerBatch) -> dict[str, float]:
        """The discriminator learns from as many showers that the generator makes as it would for a user."""
        noise, energy = sample(len(batch.energy), self.options.latent)
        labels = flipped(torch.zeros(len(energy)), self.options.flip)
        return self.taught(self.generator.predict_on_batch(noise.numpy()), self.wanted(labels, energy))

    def taught(self, showers: Array, wanted: Judgement) -> dict[str, float]:
        """The discriminator learns what it should say."""
        found = self.discriminator.train_on_batch(showers, _arrays(wanted), return_dict=True)
        return {f"discriminator_{column}": found[column] for column in COLUMNS}

    def deceive(self, batch: ShowerBatch) -> dict[str, float]:
        """The generator learns from what the discriminator takes its showers for."""
        noise, energy = sample(len(batch.energy), self.options.latent)
        wanted = _arrays(self.wanted(torch.ones(len(energy)), energy))
        with frozen(self.discriminator):
            found = self.combined.train_on_batch(noise.numpy(), wanted, return_dict=True)
        # The loss without a name is what records and reports call the loss of a run.
        return {f"generator_{column}": found[column] for column in COLUMNS} | {"loss": found["loss"]}

    # ---- as they are after training ----

    def generated(self, noise: Tensor) -> Tensor:
        showers = torch.from_numpy(keras.ops.convert_to_numpy(self.generator.predict_on_batch(noise.numpy())))
        return showers.movedim(-1, 1)

    def examined(self, showers: Tensor, wanted: Judgement) -> Tensor:
        found = self.discriminator.predict_on_batch(_array(showers))
        return each(Judgement(*(torch.from_numpy(keras.ops.convert_to_numpy(one))[:, 0] for one in found)), wanted)


def _array(showers: Tensor) -> Array:
    """Showers as Keras takes them: the channels last."""
    array: Array = showers.movedim(1, -1).numpy()
    return array


def _arrays(wanted: Judgement) -> list[Array]:
    return [tensor[:, None].numpy() for tensor in wanted]


def optimizer_of(options: Options, lr: float) -> Any:
    """The optimizer of that name."""
    return keras.optimizers.Adam(lr) if options.optimizer == "adam" else keras.optimizers.RMSprop(lr)


def write_weights(run: KerasRun, game: KerasGan, epoch: int) -> None:
    """Both networks' weights, under upstream's names, on rank 0."""
    for short, network in (("gen", game.generator), ("disc", game.discriminator)):
        run.say(f"saving weights of {short}")
        name = f"{network.name}_params_generator_epoch_{epoch:03d}.hdf5"
        keep(save_weights, game.options.weights_folder / name, network)
