"""ResNet for 32x32 images, versions 1 and 2, as Keras' example and the course have it, in all constants: biases in the
convolutions, he_normal, Keras' batch normalisation and its padding."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ResNetV1", "ResNetV2", "kernels", "network"]

CLASSES = 10


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution with he_normal weights: a normal distribution cut off at twice its deviation."""
    made = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2 if stride == 1 else 0)
    he_normal(made.weight, inputs * size * size)
    if made.bias is not None:
        nn.init.zeros_(made.bias)
    return made


def he_normal(weight: Tensor, fan_in: int) -> None:
    deviation = math.sqrt(2.0 / fan_in) / 0.87962566103423978  # which cutting off makes smaller
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


def norm(channels: int) -> nn.BatchNorm2d:
    """Keras' defaults. Its momentum of 0.99 is what stays, torch's what comes."""
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=1 - 0.99)


def dense(inputs: int) -> nn.Linear:
    made = nn.Linear(inputs, CLASSES)
    he_normal(made.weight, inputs)
    nn.init.zeros_(made.bias)
    return made


class CifarBottleneck(nn.Module):
    """Version 2's unit: 1x1, 3x3, 1x1, each after its normalisation; the very first begins without one."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, first: bool, project: bool) -> None:
        super().__init__()
        self.bn1 = nn.Identity() if first else nn.Sequential(norm(inputs), nn.ReLU())
        self.conv1 = conv(inputs, width, 1, stride)
        self.bn2, self.conv2 = norm(width), conv(width, width, 3)
        self.bn3, self.conv3 = norm(width), conv(width, outputs, 1)
        self.shortcut = conv(inputs, outputs, 1, stride) if project else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(self.bn1(x))
        y = self.conv2(F.relu(self.bn2(y)))
        y = self.conv3(F.relu(self.bn3(y)))
        added: Tensor = self.shortcut(x) + y
        return added


class ResNetV2(nn.Module):
    """Depth 9n+2.

    >>> sum(p.numel() for p in ResNetV2(56).parameters())
    1663338
    """

    def __init__(self, depth: int = 56) -> None:
        super().__init__()
        self.conv, self.bn = conv(3, 16, 3), norm(16)
        units: list[CifarBottleneck] = []
        inputs = 16
        for stage, (width, outputs) in enumerate([(16, 64), (64, 128), (128, 256)]):
            for unit in range((depth - 2) // 9):
                begins = unit == 0
                units.append(CifarBottleneck(inputs, width, outputs, 2 if stage and begins else 1, not units, begins))
                inputs = outputs
        self.units, self.last_bn, self.fc = nn.Sequential(*units), norm(inputs), dense(inputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.units(F.relu(self.bn(self.conv(x))))
        x = F.relu(self.last_bn(x))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class CifarBasicBlock(nn.Module):
    """Version 1's unit: two 3x3, normalised after."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, outputs, 3, stride), norm(outputs)
        self.conv2, self.bn2 = conv(outputs, outputs, 3), norm(outputs)
        self.shortcut = nn.Identity() if inputs == outputs else conv(inputs, outputs, 1, stride)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        # "same" padding of a stride of 2 is at the lower right only, in TensorFlow.
        y = F.relu(self.bn1(self.conv1(F.pad(x, (0, 1, 0, 1)) if self.stride == 2 else x)))
        y = self.bn2(self.conv2(y))
        return F.relu(self.shortcut(x) + y)


class ResNetV1(nn.Module):
    """Depth 6n+2.

    >>> sum(p.numel() for p in ResNetV1(56).parameters())
    857706
    """

    def __init__(self, depth: int = 56) -> None:
        super().__init__()
        self.conv, self.bn = conv(3, 16, 3), norm(16)
        units, inputs = [], 16
        for outputs in (16, 32, 64):
            for _ in range((depth - 2) // 6):
                units.append(CifarBasicBlock(inputs, outputs, 1 if inputs == outputs else 2))
                inputs = outputs
        self.units, self.fc = nn.Sequential(*units), dense(inputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.units(F.relu(self.bn(self.conv(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def network(name: str, depth: int) -> nn.Module:
    """The network of that version."""
    return ResNetV1(depth) if name == "v1" else ResNetV2(depth)


def kernels(model: nn.Module) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """The kernels of the convolutions, which L2 is for, and all other parameters.

    >>> [len(parameters) for parameters in kernels(ResNetV1(8))]
    [9, 25]
    """
    penalised = {id(module.weight) for module in model.modules() if isinstance(module, nn.Conv2d)}
    everything = list(model.parameters())
    return [p for p in everything if id(p) in penalised], [p for p in everything if id(p) not in penalised]
