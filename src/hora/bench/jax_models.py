"""The networks of `hora bench train --framework jax`, in plain ``jax.numpy`` and ``jax.lax``: no other library.

The same networks as in ``models``, their channels last. A network is two functions: parameters from a seed, and logits
from parameters, images and a random key. Batch normalisation normalises with the batch's own statistics, as training
does; running statistics, which only validation needs, are not kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hora.bench.plan import TRAININGS
from hora.bench.resnet50 import BLOCKS, EXPANSION

__all__ = ["NETWORKS", "JaxNetwork", "loss"]

Parameters = dict[str, Any]


class JaxNetwork(NamedTuple):
    """One row of the benchmark."""

    parameters: Callable[[int], Parameters]
    logits: Callable[[Parameters, Any, Any], Any]
    batch: int
    shape: tuple[int, ...]  # of one image
    classes: int = 10


def loss(network: JaxNetwork, parameters: Parameters, images: Any, labels: Any, key: Any) -> Any:
    """The mean cross entropy."""
    logits = network.logits(parameters, images, key)
    picked = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=1) - picked)


def _weights(random: np.random.Generator, *shape: int) -> Any:
    """Weights of a convolution (height, width, in, out) or a linear layer (in, out), with Kaiming's variance."""
    fan_in = int(np.prod(shape[:-1]))
    return jnp.asarray(random.normal(0, (2 / fan_in) ** 0.5, shape).astype(np.float32))


def _convolve(x: Any, weights: Any, stride: int = 1, padding: int = 0) -> Any:
    pads = [(padding, padding)] * 2
    return lax.conv_general_dilated(x, weights, (stride, stride), pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _pool(x: Any, size: int, stride: int, padding: int = 0) -> Any:
    pads = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, size, size, 1), (1, stride, stride, 1), pads)


def _drop(x: Any, key: Any, shape: tuple[int, ...]) -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.5, shape), x * 2, 0)


def _mlp_parameters(seed: int) -> Parameters:
    random, sizes = np.random.default_rng(seed), (784, 1024, 1024, 10)
    pairs = itertools.pairwise(sizes)
    return {f"fc{i}": {"w": _weights(random, a, b), "b": jnp.zeros(b)} for i, (a, b) in enumerate(pairs)}


def _mlp(p: Parameters, x: Any, key: Any) -> Any:
    for i in range(3):
        x = x @ p[f"fc{i}"]["w"] + p[f"fc{i}"]["b"]
        x = jax.nn.relu(x) if i < 2 else x
    return x


def _mnist_parameters(seed: int) -> Parameters:
    random = np.random.default_rng(seed)
    shapes = {"conv1": (5, 5, 1, 10), "conv2": (5, 5, 10, 20), "fc1": (320, 50), "fc2": (50, 10)}
    return {name: {"w": _weights(random, *shape), "b": jnp.zeros(shape[-1])} for name, shape in shapes.items()}


def _mnist(p: Parameters, x: Any, key: Any) -> Any:
    channels, units = jax.random.split(key)
    x = jax.nn.relu(_pool(_convolve(x, p["conv1"]["w"]) + p["conv1"]["b"], 2, 2))
    x = _convolve(x, p["conv2"]["w"]) + p["conv2"]["b"]
    x = jax.nn.relu(_pool(_drop(x, channels, (len(x), 1, 1, 20)), 2, 2)).reshape(len(x), -1)
    x = jax.nn.relu(x @ p["fc1"]["w"] + p["fc1"]["b"])
    return _drop(x, units, x.shape) @ p["fc2"]["w"] + p["fc2"]["b"]


def _resnet50_parameters(seed: int) -> Parameters:
    """
    >>> leaves = jax.tree.leaves(_resnet50_parameters(0))
    >>> len(leaves), sum(leaf.size for leaf in leaves)
    (161, 25557032)
    """
    random = np.random.default_rng(seed)

    def convolution(inputs: int, outputs: int, kernel: int) -> Parameters:
        return {
            "w": _weights(random, kernel, kernel, inputs, outputs),
            "scale": jnp.ones(outputs),
            "shift": jnp.zeros(outputs),
        }

    made: Parameters = {"stem": convolution(3, 64, 7)}
    inputs = 64
    for stage, blocks in enumerate(BLOCKS):
        width = 64 << stage
        for block in range(blocks):
            layers = [convolution(inputs, width, 1), convolution(width, width, 3)]
            layers.append(convolution(width, width * EXPANSION, 1))
            if not block:
                layers.append(convolution(inputs, width * EXPANSION, 1))
            made[f"{stage}.{block}"] = layers
            inputs = width * EXPANSION
    made["fc"] = {"w": _weights(random, inputs, 1000), "b": jnp.zeros(1000)}
    return made


def _normalised(p: Parameters, x: Any, stride: int = 1, padding: int = 0) -> Any:
    """A convolution and the batch normalisation behind it."""
    y = _convolve(x, p["w"], stride, padding)
    mean, square = jnp.mean(y, (0, 1, 2)), jnp.mean(y * y, (0, 1, 2))
    factor = p["scale"] * lax.rsqrt(square - mean * mean + 1e-5)
    return y * factor + (p["shift"] - mean * factor)


def _resnet50(p: Parameters, x: Any, key: Any) -> Any:
    x = _pool(jax.nn.relu(_normalised(p["stem"], x, 2, 3)), 3, 2, 1)
    for stage, blocks in enumerate(BLOCKS):
        for block in range(blocks):
            layers, stride = p[f"{stage}.{block}"], 2 if stage and not block else 1
            y = jax.nn.relu(_normalised(layers[0], x))
            y = jax.nn.relu(_normalised(layers[1], y, stride, 1))
            around = _normalised(layers[3], x, stride) if not block else x
            x = jax.nn.relu(_normalised(layers[2], y) + around)
    return jnp.mean(x, (1, 2)) @ p["fc"]["w"] + p["fc"]["b"]


NETWORKS = {
    "resnet50": JaxNetwork(_resnet50_parameters, _resnet50, TRAININGS["resnet50"].images, (64, 64, 3), 1000),
    "mlp": JaxNetwork(_mlp_parameters, _mlp, TRAININGS["mlp"].images, (784,)),
    "mnist": JaxNetwork(_mnist_parameters, _mnist, TRAININGS["mnist"].images, (28, 28, 1)),
}
