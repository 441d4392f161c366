"""The models by name, each with the random data it takes and a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hora.workloads.synthetic.options import ModelName, Options

__all__ = ["Benchmark", "benchmark", "random_batch"]


class Benchmark(NamedTuple):
    """What is trained, and on what."""

    make: Callable[[], nn.Module]
    dataset: str  # as tf_cnn_benchmarks calls it
    samples: int  # the real data set has
    shape: tuple[int, ...]  # of one sample
    classes: int = 0  # none: the loss is some bounded function of the outputs

    def loss(self, output: Any, labels: Tensor) -> Tensor:
        """A loss that depends on every parameter, and stays finite however long it is trained on."""
        if self.classes:
            return cross_entropy(output.float(), labels)
        parts = output if isinstance(output, tuple) else (output,)
        return torch.stack([part.float().tanh().mean() for part in parts]).sum()


def benchmark(name: ModelName, image_size: int = 0) -> Benchmark:
    """The benchmark of this name; what it trains is imported only when it is made.

    >>> from typing import get_args
    >>> [name for name in get_args(ModelName) if benchmark(name).classes == 10]
    ['resnet56v1', 'resnet56v2', 'mnist', 'mnist_horovod']
    >>> benchmark("resnet50").shape, benchmark("resnet50", image_size=64).shape
    ((3, 224, 224), (3, 64, 64))
    """
    if name.startswith("mnist"):
        network = "horovod" if name == "mnist_horovod" else "tensorflow"
        return Benchmark(lambda: _mnist(network), "mnist", 60_000, (1, 28, 28), 10)
    if name.startswith("resnet56"):
        size = image_size or 32
        return Benchmark(lambda: _cifar10(name.removeprefix("resnet56")), "cifar10", 50_000, (3, size, size), 10)
    if name.startswith("gan3d"):
        shape = (200,) if name == "gan3d_generator" else (1, 25, 25, 25)
        return Benchmark(lambda: _gan3d(name), "showers", 180_000, shape)
    size = image_size or 224
    return Benchmark(lambda: _imagenet(name), "imagenet", 1_281_167, (3, size, size), 1000)


def _mnist(network: str) -> nn.Module:
    from hora.workloads.mnist import model

    return model.network(network)


def _cifar10(version: str) -> nn.Module:
    from hora.workloads.cifar10 import model

    return model.network(version, 56)


def _imagenet(name: str) -> nn.Module:
    from hora.workloads.imagenet import model

    return model.resnet(name)


def _gan3d(name: str) -> nn.Module:
    from hora.workloads.gan3d import model

    return model.Generator() if name == "gan3d_generator" else model.Discriminator()


def random_batch(chosen: Benchmark, options: Options, rank: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The one batch that a worker trains on over and over.

    Horovod's is of normal numbers. TensorFlow's is of pixels around 127 with a deviation of 60, cut off at two of them,
    and then brought to between -1 and 1, as its real images are; its highest label does not occur.

    >>> images, labels = random_batch(benchmark("mnist"), Options(form="tf", batch=64), 0, torch.device("cpu"))
    >>> images.shape, images.abs().max() < 1, labels.max() < 9
    (torch.Size([64, 1, 28, 28]), tensor(True), tensor(True))
    """
    torch.manual_seed(options.seed + rank)
    images = torch.empty(options.batch, *chosen.shape)
    if options.form == "tf":
        nn.init.trunc_normal_(images, 127.0, 60.0, 127.0 - 2 * 60.0, 127.0 + 2 * 60.0)
        images.sub_(127.5).div_(127.5)
        labels = torch.randint(max(1, chosen.classes - 1), (options.batch,))
    else:
        images.normal_()
        labels = torch.randint(max(1, chosen.classes), (options.batch,))
    return images.to(device), labels.to(device)
