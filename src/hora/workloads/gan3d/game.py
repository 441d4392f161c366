"""The game of the two networks: what each is asked in training. An answer is the losses of every event, (events, 3).

Random numbers are those of the worker whose turn it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from hora.workloads.gan3d.data import ShowerBatch
from hora.workloads.gan3d.losses import each, ecal_of, flipped, sample
from hora.workloads.gan3d.model import Discriminator, Generator, Judgement
from hora.workloads.gan3d.options import Options

__all__ = ["TorchGan", "TrainedGan"]


class TrainedGan(ABC):
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


class TorchGan(TrainedGan):
    """
    >>> game = TorchGan(Generator(8), Discriminator(), Options(latent=8))
    >>> real = ShowerBatch(torch.rand(2, 1, 25, 25, 25), torch.rand(2), torch.rand(2))
    >>> game.judge_real(real).shape, game.deceive(real).shape
    (torch.Size([2, 3]), torch.Size([2, 3]))
    """

    def __init__(self, generator: Generator, discriminator: Discriminator, options: Options) -> None:
        super().__init__(options)
        self.generator, self.discriminator = generator, discriminator
        self.train_by(generator, discriminator)
        self.device = next(generator.parameters()).device

    def train_by(self, generator: Callable[[Tensor], Tensor], discriminator: Callable[[Tensor], Judgement]) -> None:
        """Call these instead of the networks themselves where they are to learn."""
        self._generating, self._judging = generator, discriminator

    def judge_real(self, batch: ShowerBatch) -> Tensor:
        """The discriminator, on real showers."""
        labels = flipped(torch.ones(len(batch.energy)), self.options.flip)
        return self.judged(batch.showers, Judgement(labels, batch.energy, batch.ecal), self._judging)

    def judge_generated(self, batch: ShowerBatch) -> Tensor:
        """The discriminator, on as many showers that the generator makes as it would for a user."""
        noise, energy = sample(len(batch.energy), self.options.latent)
        labels = flipped(torch.zeros(len(energy)), self.options.flip)
        return self.judged(self.generated(noise), self.wanted(labels, energy), self._judging)

    def deceive(self, batch: ShowerBatch) -> Tensor:
        """The generator, by what the discriminator takes its showers for."""
        noise, energy = sample(len(batch.energy), self.options.latent)
        self.generator.train()
        showers = self._generating(noise.to(self.device))
        return self.judged(showers, self.wanted(torch.ones(len(energy)), energy), self.discriminator)

    def generated(self, noise: Tensor) -> Tensor:
        self.generator.eval()
        with torch.no_grad():
            showers: Tensor = self.generator(noise.to(self.device))
        return showers

    def examined(self, showers: Tensor, wanted: Judgement) -> Tensor:
        self.discriminator.eval()
        with torch.no_grad():
            return self.judged(showers, wanted, self.discriminator)

    def judged(self, showers: Tensor, wanted: Judgement, judge: Callable[[Tensor], Judgement]) -> Tensor:
        """How wrong the discriminator is about these showers."""
        found = judge(showers.to(self.device))
        return each(found, Judgement(*(tensor.to(self.device) for tensor in wanted)))
