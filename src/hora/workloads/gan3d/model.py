"""The two networks, layer by layer as upstream's ``EcalEnergyGan.py`` has them in Keras.

Torch computes with channels first. Where that would give numbers another order than Keras has, after the generator's
first layer and before the discriminator's last, it is written with channels last. So weights are the same numbers in
the same order, and ``weights`` only has to turn kernels round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["Discriminator", "Generator", "Judgement", "frozen", "keras_parameters"]

SLOPE = 0.3  # Keras's default for LeakyReLU
TRUNCATED_DEVIATION = 0.87962566103423978  # of a normal distribution cut off at two deviations


class Judgement(NamedTuple):
    """What the discriminator says of each shower, or should: all are (events,)."""

    generation: Tensor  # from 0, generated, to 1, real
    auxiliary: Tensor  # the primary particle's energy, in 100 GeV
    ecal: Tensor  # the sum of all cells


class Generator(nn.Module):
    """Makes showers, (events, 1, 25, 25, 25), from random numbers, (events, latent).

    >>> Generator()(torch.randn(2, 200)).shape
    torch.Size([2, 1, 25, 25, 25])
    >>> keras_parameters(Generator())
    (872948, 872808)
    """

    def __init__(self, latent: int = 200) -> None:
        super().__init__()
        self.dense = nn.Linear(latent, 64 * 7 * 7)
        self.layers = nn.Sequential(
            nn.ConstantPad3d((3, 4, 2, 3, 2, 3), 0.0),  # what "same" is for an even kernel
            nn.Conv3d(8, 64, (6, 6, 8)),
            nn.LeakyReLU(SLOPE),
            _normalization(64),
            nn.Upsample(scale_factor=(2, 2, 2)),
            nn.Conv3d(64, 6, (6, 5, 8), padding=(2, 2, 0)),
            nn.LeakyReLU(SLOPE),
            _normalization(6),
            nn.Upsample(scale_factor=(2, 2, 3)),
            nn.Conv3d(6, 6, (3, 3, 8), padding=(1, 0, 3)),
            nn.LeakyReLU(SLOPE),
            nn.Conv3d(6, 1, (2, 2, 2), bias=False),
            nn.ReLU(),
        )
        _glorot_uniform(self.dense)
        *convolutions, last = (layer for layer in self.layers if isinstance(layer, nn.Conv3d))
        for layer in convolutions:
            _he_uniform(layer)
        _glorot_normal(last)
        _channels_last(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dense(x).view(-1, 7, 7, 8, 8).permute(0, 4, 1, 2, 3)
        shower: Tensor = self.layers(x)
        return shower


class Discriminator(nn.Module):
    """Says of showers, (events, 1, 25, 25, 25), whether they are real, and of what energy.

    >>> [judged.shape for judged in Discriminator()(torch.rand(2, 1, 25, 25, 25))]
    [torch.Size([2]), torch.Size([2]), torch.Size([2])]
    >>> keras_parameters(Discriminator())
    (73450, 73402)
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv3d(1, 32, 5, padding=2),
            nn.LeakyReLU(SLOPE),
            nn.Dropout(0.2),
            nn.Conv3d(32, 8, 5, padding=2),
            nn.LeakyReLU(SLOPE),
            _normalization(8),
            nn.Dropout(0.2),
            nn.Conv3d(8, 8, 5, padding=2),
            nn.LeakyReLU(SLOPE),
            _normalization(8),
            nn.Dropout(0.2),
            nn.Conv3d(8, 8, 5, padding=1),
            nn.LeakyReLU(SLOPE),
            _normalization(8),
            nn.Dropout(0.2),
            nn.AvgPool3d(2),
        )
        self.generation = nn.Linear(11 * 11 * 11 * 8, 1)
        self.auxiliary = nn.Linear(11 * 11 * 11 * 8, 1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv3d | nn.Linear):
                _glorot_uniform(layer)
        _channels_last(self)

    def forward(self, showers: Tensor) -> Judgement:
        x = self.layers(showers).permute(0, 2, 3, 4, 1).flatten(1)
        return Judgement(
            generation=torch.sigmoid(self.generation(x).float())[:, 0],
            auxiliary=self.auxiliary(x).float()[:, 0],
            ecal=showers.float().sum((1, 2, 3, 4)),
        )


@contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """Inside, a network is only passed through, as in Keras with ``trainable = False``: it gets no gradients, which are
    most of the work and are not computed; its batch normalisation still goes by the batch, but keeps its statistics."""
    normalizations = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm3d)]
    network.requires_grad_(False)
    for layer in normalizations:
        layer.track_running_stats = False
    try:
        yield
    finally:
        network.requires_grad_(True)
        for layer in normalizations:
            layer.track_running_stats = True


def keras_parameters(network: nn.Module) -> tuple[int, int]:
    """(all, trainable) as Keras counts them: the running statistics are parameters, but not trained."""
    trained = sum(parameter.numel() for parameter in network.parameters())
    return trained + sum(buffer.numel() for buffer in network.buffers() if buffer.is_floating_point()), trained


def _channels_last(network: nn.Module) -> None:
    """Keep kernels in the order in which oneDNN computes up to twice as fast. Shapes do not change."""
    nn.utils.convert_conv3d_weight_memory_format(network, torch.channels_last_3d)


# ---- Keras's defaults ----


def _normalization(channels: int) -> nn.BatchNorm3d:
    return nn.BatchNorm3d(channels, eps=1e-3, momentum=0.01)  # which Keras calls a momentum of 0.99


def _fans(weight: Tensor) -> tuple[int, int]:
    cells = math.prod(weight.shape[2:])
    return weight.shape[1] * cells, weight.shape[0] * cells


def _glorot_uniform(layer: nn.Linear | nn.Conv3d) -> None:
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _he_uniform(layer: nn.Conv3d) -> None:
    limit = math.sqrt(6 / _fans(layer.weight)[0])
    nn.init.uniform_(layer.weight, -limit, limit)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _glorot_normal(layer: nn.Conv3d) -> None:
    deviation = math.sqrt(2 / sum(_fans(layer.weight))) / TRUNCATED_DEVIATION
    nn.init.trunc_normal_(layer.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
