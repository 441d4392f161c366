"""What `hora bench train` trains in PyTorch: three networks and a bare list of gradients.

A ``TorchNetwork`` says how big a batch one worker takes and makes the network, the batches and the loss. Workers make
the same network from the same seed, and different batches from their ranks.

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

from hora.bench import resnet50
from hora.bench.plan import BATCHES, TRAININGS
from hora.workloads.imagenet.model import ARCHITECTURES, ResNet
from hora.workloads.mnist.model import HorovodNet

__all__ = ["SPECS", "Batch", "ResNet50Gradients", "TorchNetwork", "batches"]

Batch = tuple[Tensor, Tensor]


class _Touch(torch.autograd.Function):
    """Passes a scalar on as if a parameter had been used, without reading it; its gradient is the scalar's, spread."""

    @staticmethod
    def forward(ctx: Any, running: Tensor, parameter: Tensor) -> Tensor:
        ctx.shape = parameter.shape
        return running.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.expand(ctx.shape)


class ResNet50Gradients(nn.Module):
    """ResNet-50's parameters in a chain. Backward fills every gradient with one number and computes nothing.

    >>> chain = ResNet50Gradients({"a": (2,), "b": (1, 3)})
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


def _resnet50() -> nn.Module:
    """Its channels first, as scripts have them that do not ask for anything else.

    >>> {name: tuple(p.shape) for name, p in _resnet50().named_parameters()} == resnet50.shapes()
    True
    """
    return ResNet(ARCHITECTURES["resnet50"])


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


class TorchNetwork(NamedTuple):
    """One row of the benchmark."""

    make: Callable[[], nn.Module]
    batch: int = 0  # images a worker takes in one step; 0 where there are none
    shape: tuple[int, ...] = ()  # of one image
    classes: int = 10

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target) if self.batch else output * target


SPECS = {
    "resnet50": TorchNetwork(_resnet50, TRAININGS["resnet50"].images, (3, 64, 64), 1000),
    "mlp": TorchNetwork(_mlp, TRAININGS["mlp"].images, (784,)),
    "mnist": TorchNetwork(HorovodNet, TRAININGS["mnist"].images, (1, 28, 28)),
    "gradients": TorchNetwork(ResNet50Gradients),
}


def batches(spec: TorchNetwork, seed: int) -> Iterator[Batch]:
    """Batches of noise, a few different ones over and over.

    >>> images, labels = next(batches(SPECS["mnist"], seed=3))
    >>> images.shape, labels.shape
    (torch.Size([64, 1, 28, 28]), torch.Size([64]))
    """
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    made: list[Batch] = []
    for _ in range(BATCHES):
        if spec.batch:
            images = torch.randn(spec.batch, *spec.shape, generator=generator)
            made.append((images, torch.randint(spec.classes, (spec.batch,), generator=generator)))
        else:  # the ranks' gradients must differ for their mean to show anything
            made.append((torch.zeros(()), torch.randn((), generator=generator)))
    while True:
        yield from made
