"""What `hora bench train` trains: three networks and a bare list of gradients, written out so as to need no model zoo.

A ``Spec`` says how big a batch one worker takes and makes the network, the batches and the loss. Workers make the same
network from the same seed, and different batches from their ranks.

- ``resnet50``   He et al.'s, as everybody benchmarks it: much computation and 161 gradients of all sizes
- ``mlp``        784-1024-1024-10: few large gradients and little computation, the hardest case for overlap
- ``mnist``      the small network of Horovod's MNIST example: tiny gradients, so only the cost per operation counts
- ``gradients``  ResNet-50's parameters with a backward pass that only fills in gradients: nothing to hide behind
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from hora.lab.bench import resnet50
from hora.lab.bench.plan import TRAININGS

__all__ = ["SPECS", "Batch", "Gradients", "MnistNet", "ResNet50", "Spec", "batches"]

Batch = tuple[Tensor, Tensor]
BATCHES = 8  # different batches, taken in turn


class Bottleneck(nn.Module):
    """Three convolutions and a way around them."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * resnet50.EXPANSION
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        y = functional.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return functional.relu(y, inplace=True)


class ResNet50(nn.Module):
    """The 50-layer residual network, its stride in the 3x3 convolutions.

    >>> {name: tuple(p.shape) for name, p in ResNet50().named_parameters()} == resnet50.shapes()
    True
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        inputs = 64
        for stage, blocks in enumerate(resnet50.BLOCKS):
            width = 64 << stage
            made = []
            for block in range(blocks):
                made.append(Bottleneck(inputs, width, stride=2 if stage and not block else 1))
                inputs = width * resnet50.EXPANSION
            setattr(self, f"layer{stage + 1}", nn.Sequential(*made))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        for stage in range(len(resnet50.BLOCKS)):
            x = getattr(self, f"layer{stage + 1}")(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class MnistNet(nn.Module):
    """Two convolutions and two linear layers, with dropout behind one of each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(functional.max_pool2d(self.conv1(x), 2))
        x = functional.relu(functional.max_pool2d(functional.dropout2d(self.conv2(x), training=self.training), 2))
        x = functional.dropout(functional.relu(self.fc1(x.flatten(1))), training=self.training)
        logits: Tensor = self.fc2(x)
        return logits


class _Touch(torch.autograd.Function):
    """Passes a scalar on as if a parameter had been used, without reading it; its gradient is the scalar's, spread."""

    @staticmethod
    def forward(ctx: Any, running: Tensor, parameter: Tensor) -> Tensor:
        ctx.shape = parameter.shape
        return running.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.expand(ctx.shape)


class Gradients(nn.Module):
    """ResNet-50's parameters in a chain. Backward fills every gradient with one number and computes nothing.

    >>> chain = Gradients({"a": (2,), "b": (1, 3)})
    >>> (2 * chain(torch.zeros(()))).backward()
    >>> [p.grad.tolist() for p in chain.parameters()]
    [[2.0, 2.0], [[2.0, 2.0, 2.0]]]
    """

    def __init__(self, shapes: dict[str, tuple[int, ...]] | None = None) -> None:
        super().__init__()
        chosen = resnet50.shapes() if shapes is None else shapes
        self.chain = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in chosen.values()])

    def forward(self, x: Tensor) -> Tensor:
        for parameter in self.chain:
            x = _Touch.apply(x, parameter)  # type: ignore[no-untyped-call]
        return x


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


class Spec(NamedTuple):
    """One row of the benchmark."""

    make: Callable[[], nn.Module]
    batch: int = 0  # images a worker takes in one step; 0 where there are none
    shape: tuple[int, ...] = ()  # of one image
    classes: int = 10

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target) if self.batch else output * target


SPECS = {
    "resnet50": Spec(ResNet50, TRAININGS["resnet50"].images, (3, 64, 64), 1000),
    "mlp": Spec(_mlp, TRAININGS["mlp"].images, (784,)),
    "mnist": Spec(MnistNet, TRAININGS["mnist"].images, (1, 28, 28)),
    "gradients": Spec(Gradients),
}


def batches(spec: Spec, seed: int) -> Iterator[Batch]:
    """Batches of noise, a few different ones over and over.

    >>> images, labels = next(batches(SPECS["mnist"], seed=3))
    >>> images.shape, labels.shape
    (torch.Size([64, 1, 28, 28]), torch.Size([64]))
    """
    generator = torch.Generator().manual_seed(seed)
    made: list[Batch] = []
    for _ in range(BATCHES):
        if spec.batch:
            images = torch.randn(spec.batch, *spec.shape, generator=generator)
            made.append((images, torch.randint(spec.classes, (spec.batch,), generator=generator)))
        else:  # the ranks' gradients must differ for their mean to show anything
            made.append((torch.zeros(()), torch.randn((), generator=generator)))
    while True:
        yield from made
