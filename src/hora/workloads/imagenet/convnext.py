"""ConvNeXt-T (Liu et al. 2022): a network of today's kind, without batch normalisation, for what ResNets do not show.

Parameters have torchvision's names, so its weights load. A block is left out at random in training (stochastic depth),
by the random numbers of the worker whose turn it is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["ConvNeXt", "convnext_tiny"]

WIDTHS, BLOCKS = (96, 192, 384, 768), (3, 3, 9, 3)
DROPPED = 0.1  # how often the last block is left out; those before it less, in proportion


class Norm(nn.LayerNorm):
    """Layer normalisation over the channels of an image."""

    def forward(self, x: Tensor) -> Tensor:
        x = functional.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class PermuteChannels(nn.Module):
    """Channels last, or first again."""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.order)


class Block(nn.Module):
    """A 7x7 convolution of each channel by itself, two linear layers, and a way around them."""

    def __init__(self, width: int, dropped: float) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(width, width, 7, padding=3, groups=width),
            PermuteChannels(0, 2, 3, 1),
            nn.LayerNorm(width, eps=1e-6),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            PermuteChannels(0, 3, 1, 2),
        )
        self.layer_scale = nn.Parameter(torch.full((width, 1, 1), 1e-6))
        self._dropped = dropped

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.layer_scale * self.block(x)
        if self.training and self._dropped:
            kept = torch.rand(len(x), 1, 1, 1, device=x.device) >= self._dropped
            change = change * kept / (1 - self._dropped)
        return x + change


class ConvNeXt(nn.Module):
    """A stem of 4x4 patches, four stages of blocks with a halving between them, the mean, a linear classifier."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Sequential(nn.Conv2d(3, WIDTHS[0], 4, 4), Norm(WIDTHS[0], eps=1e-6))]
        done, last = 0, sum(BLOCKS) - 1
        for stage, (width, count) in enumerate(zip(WIDTHS, BLOCKS, strict=True)):
            if stage:
                before = WIDTHS[stage - 1]
                parts.append(nn.Sequential(Norm(before, eps=1e-6), nn.Conv2d(before, width, 2, 2)))
            parts.append(nn.Sequential(*(Block(width, DROPPED * (done + i) / last) for i in range(count))))
            done += count
        self.features = nn.Sequential(*parts)
        self.classifier = nn.Sequential(Norm(WIDTHS[-1], eps=1e-6), nn.Flatten(1), nn.Linear(WIDTHS[-1], classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]  # all of them have one

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(x).mean((2, 3), keepdim=True))
        return scores


def convnext_tiny(classes: int = 1000) -> ConvNeXt:
    """ConvNeXt-T with fresh weights, from torch's random numbers.

    >>> sum(parameter.numel() for parameter in convnext_tiny().parameters())      # as published: 28.6 million
    28589128
    """
    return ConvNeXt(classes)
