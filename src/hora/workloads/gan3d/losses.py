"""What the networks are asked: the three losses, the random showers that are asked for, and the answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hora.workloads.gan3d.model import Judgement
from hora.workloads.gan3d.options import EcalFit

__all__ = ["PARTS", "each", "ecal_of", "flipped", "sample", "weighted"]

PARTS = ("generation_loss", "auxiliary_loss", "ecal_loss")

EPSILON = 1e-7  # Keras's, in both losses
LOWEST, HIGHEST = 0.1, 5.0  # energies of generated showers, in 100 GeV
FIT = (0.0018, -0.023, 0.11, -0.28, 2.21)  # deposited over primary energy: upstream's fit to its data


def each(found: Judgement, wanted: Judgement) -> Tensor:
    """The three losses of each event, (events, 3): binary cross-entropy, and two relative errors in per cent.

    >>> half, one, two = torch.tensor([0.5]), torch.tensor([1.0]), torch.tensor([2.0])
    >>> each(Judgement(half, one, two), Judgement(one, two, one))
    tensor([[  0.6931,  50.0000, 100.0000]])
    """
    p, truth = found.generation.clamp(EPSILON, 1 - EPSILON), wanted.generation
    generation = -(truth * p.log() + (1 - truth) * (1 - p).log())
    return torch.stack(
        [generation, _percent(found.auxiliary, wanted.auxiliary), _percent(found.ecal, wanted.ecal)], dim=1
    )


def weighted(parts: Tensor, weights: Sequence[float]) -> Tensor:
    """The loss that is made small: the sum of its parts, (…, 3), each with its weight.

    >>> weighted(torch.tensor([0.5, 50.0, 100.0]), (8, 0.2, 0.1))
    tensor(24.)
    """
    return (parts * parts.new_tensor(list(weights))).sum(-1)


def sample(events: int, latent: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """What random showers are made from: the generator's input, which is noise times energy, and the energies.

    >>> noise, energy = sample(3, 200)
    >>> noise.shape, energy.shape, bool(((energy >= 0.1) & (energy <= 5)).all())
    (torch.Size([3, 200]), torch.Size([3]), True)
    """
    noise = torch.randn(events, latent, generator=generator)
    energy = LOWEST + (HIGHEST - LOWEST) * torch.rand(events, generator=generator)
    return energy[:, None] * noise, energy


def ecal_of(energy: Tensor, fit: EcalFit = "polynomial", xscale: float = 1.0) -> Tensor:
    """What a shower of this primary energy deposits in all cells together.

    >>> ecal_of(torch.tensor([1.0, 2.0])), ecal_of(torch.tensor([1.0, 2.0]), "double")
    (tensor([2.0188, 3.8696]), tensor([2., 4.]))
    """
    if fit == "double":
        return 2 * energy * xscale
    ratio = torch.zeros_like(energy)
    for coefficient in FIT:
        ratio = ratio * energy + coefficient
    return ratio * energy * xscale


def flipped(labels: Tensor, share: float) -> Tensor:
    """The labels, each turned into its opposite so often: a discriminator that is too sure teaches nothing.

    >>> flipped(torch.tensor([0.0, 1.0]), 1.0)
    tensor([1., 0.])
    """
    return torch.where(torch.rand_like(labels) < share, 1 - labels, labels)


def _percent(found: Tensor, wanted: Tensor) -> Tensor:
    return 100 * (wanted - found).abs() / wanted.abs().clamp_min(EPSILON)
