"""The game of the two networks: what each is asked in training. An answer is the losses of every event, (events, 3).

Random numbers are those of the worker whose turn it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from hora.workloads.gan3d.data import Batch
from hora.workloads.gan3d.losses import each, ecal_of, flipped, sample
from hora.workloads.gan3d.model import Discriminator, Generator, Judgement
from hora.workloads.gan3d.options import Options

__all__ = ["Game", "Trained"]


class Trained(ABC):
    """Both networks as they are after training, in whichever framework: what tests ask of them."""

    def __init__(self, options: Options) -> None:
        self.options = options

    @abstractmethod
    def generated(self, noise: Tensor) -> Tensor:
        """Showers, by the statistics of training and without gradients."""

    @abstractmethod
    def examined(self, showers: Tensor, wanted: Judgement) -> Tensor:
        """How wrong the discriminator is about these showers, by the statistics of training."""

    def wanted(self, labels: Tensor, energy: Tensor) -> Judgement:
        """What the discriminator should say of generated showers."""
        return Judgement(labels, energy, ecal_of(energy, self.options.ecal_fit, self.options.xscale))


class Game(Trained):
    """
    >>> game = Game(Generator(8), Discriminator(), Options(latent=8))
    >>> real = Batch(torch.rand(2, 1, 25, 25, 25), torch.rand(2), torch.rand(2))
    >>> game.judge_real(real).shape, game.deceive(real).shape
    (torch.Size([2, 3]), torch.Size([2, 3]))
    """

    def __init__(self, generator: Generator, discriminator: Discriminator, options: Options) -> None:
        super().__init__(options)
        self.generator, self.discriminator = generator, discriminator
        self.device = next(generator.parameters()).device

    def judge_real(self, batch: Batch) -> Tensor:
        """The discriminator, on real showers."""
        labels = flipped(torch.ones(len(batch.energy)), self.options.flip)
        return self.judged(batch.showers, Judgement(labels, batch.energy, batch.ecal))

    def judge_generated(self, batch: Batch) -> Tensor:
        """The discriminator, on as many showers that the generator makes as it would for a user."""
        noise, energy = sample(len(batch.energy), self.options.latent)
        labels = flipped(torch.zeros(len(energy)), self.options.flip)
        return self.judged(self.generated(noise), self.wanted(labels, energy))

    def deceive(self, batch: Batch) -> Tensor:
        """The generator, by what the discriminator takes its showers for."""
        noise, energy = sample(len(batch.energy), self.options.latent)
        self.generator.train()
        showers = self.generator(noise.to(self.device))
        return self.judged(showers, self.wanted(torch.ones(len(energy)), energy))

    def generated(self, noise: Tensor) -> Tensor:
        self.generator.eval()
        with torch.no_grad():
            showers: Tensor = self.generator(noise.to(self.device))
        return showers

    def examined(self, showers: Tensor, wanted: Judgement) -> Tensor:
        self.discriminator.eval()
        with torch.no_grad():
            return self.judged(showers, wanted)

    def judged(self, showers: Tensor, wanted: Judgement) -> Tensor:
        """How wrong the discriminator is about these showers."""
        found: Judgement = self.discriminator(showers.to(self.device))
        return each(found, Judgement(*(tensor.to(self.device) for tensor in wanted)))
