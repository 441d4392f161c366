"""ResNet-18 to -152 (He et al. 2015), their stride on the 3x3 convolutions ("v1.5").

The names of the parameters are torchvision's, so its weights load: ``model.load_state_dict(torch.load(file))``. Owns
the initialisations and which parameters are decayed, the two things in which published recipes differ.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from hora.errors import UsageError
from hora.workloads.imagenet.convnext import convnext_tiny

__all__ = ["ARCHITECTURES", "ResNet", "decay_groups", "network", "resnet"]


class Architecture(NamedTuple):
    """How many blocks its four stages have, and whether they are bottlenecks."""

    blocks: tuple[int, int, int, int]
    bottleneck: bool


ARCHITECTURES = {
    "resnet18": Architecture((2, 2, 2, 2), False),
    "resnet34": Architecture((3, 4, 6, 3), False),
    "resnet50": Architecture((3, 4, 6, 3), True),
    "resnet101": Architecture((3, 4, 23, 3), True),
    "resnet152": Architecture((3, 8, 36, 3), True),
}


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a way around them."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        return functional.relu(y, inplace=True)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn2


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 ones, and a way around them."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        y = functional.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return functional.relu(y, inplace=True)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn3


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """The way around a block, where it changes the shape."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """A 7x7 stem, four stages of blocks, the mean over the image, a linear classifier."""

    def __init__(self, architecture: Architecture, classes: int = 1000) -> None:
        super().__init__()
        block = Bottleneck if architecture.bottleneck else BasicBlock
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        first, second, third, fourth = architecture.blocks
        self.layer1 = _stage(block, 64, 64, first, stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, second, stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, third, stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, fourth, stride=2)
        self.fc = nn.Linear(512 * block.expansion, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def _stage(block: type[BasicBlock | Bottleneck], inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    """Blocks of one width, the first of which may halve the image."""
    outputs = width * block.expansion
    return nn.Sequential(block(inputs, width, stride), *(block(outputs, width, 1) for _ in range(blocks - 1)))


def resnet(name: str, classes: int = 1000, *, zero_gamma: bool = False, small_fc: bool = False) -> ResNet:
    """A network of this name with fresh weights, from torch's random numbers.

    Convolutions are drawn from a normal distribution with Kaiming's variance over the outputs. Goyal et al. also begin
    with every block as an identity, its last scale being zero (``zero_gamma``), and with a classifier drawn from
    N(0, 0.01) (``small_fc``); the reference study does neither.

    >>> sum(p.numel() for p in resnet("resnet50").parameters())
    25557032
    >>> resnet("resnet18", classes=10, zero_gamma=True).layer4[1].bn2.weight.any().item()
    False
    """
    if name not in ARCHITECTURES:
        raise UsageError(f"there is no network {name!r} here. There are {', '.join(ARCHITECTURES)}.")
    model = ResNet(ARCHITECTURES[name], classes)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif zero_gamma and isinstance(module, BasicBlock | Bottleneck):
            nn.init.zeros_(module.last_norm.weight)
    if small_fc:
        nn.init.normal_(model.fc.weight, std=0.01)
        nn.init.zeros_(model.fc.bias)
    # Convolutions are a fifth faster in this order, also on CPUs. (The annotation does not know the argument.)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def network(name: str, classes: int = 1000, *, zero_gamma: bool = False, small_fc: bool = False) -> nn.Module:
    """A ResNet, or ConvNeXt-T, whose beginning is its own."""
    if name != "convnext_tiny":
        return resnet(name, classes, zero_gamma=zero_gamma, small_fc=small_fc)
    return convnext_tiny(classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _is_vector(parameter: nn.Parameter) -> bool:
    return parameter.numel() == parameter.shape[0]


def decay_groups(model: nn.Module, weight_decay: float, *, vectors: bool) -> list[dict[str, Any]]:
    """The parameters as an optimizer's groups, those that are decayed first.

    ``vectors`` says whether biases and the parameters of normalisation, all of which are vectors, are decayed as well.
    They are in the reference study; they are not in Goyal et al., nor with LARS and LAMB, which do not adapt their rate
    either (``adapt``, which other optimizers do not look at).

    >>> groups = decay_groups(resnet("resnet18"), 1e-4, vectors=False)
    >>> [(len(group["params"]), group["weight_decay"], group["adapt"]) for group in groups]
    [(21, 0.0001, True), (41, 0.0, False)]
    """
    parameters = list(model.parameters())
    if vectors:
        return [{"params": parameters, "weight_decay": weight_decay}]
    return [
        {"params": [p for p in parameters if not _is_vector(p)], "weight_decay": weight_decay, "adapt": True},
        {"params": [p for p in parameters if _is_vector(p)], "weight_decay": 0.0, "adapt": False},
    ]
