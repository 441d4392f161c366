"""The gradients of ResNet-50: the shapes of its 161 parameters, derived from the architecture.

The network is He et al.'s: a 7x7 stem, four stages of 3, 4, 6 and 3 bottleneck blocks, a linear classifier. It serves
as a realistic mix of sizes, from 64 floats to 2.4 million, without needing a model zoo.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

__all__ = ["BLOCKS", "shapes"]

BLOCKS = (3, 4, 6, 3)
EXPANSION = 4


def _convolution(name: str, norm: str, inputs: int, outputs: int, kernel: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A convolution without bias, and the scale and shift of the batch normalisation behind it."""
    yield f"{name}.weight", (outputs, inputs, kernel, kernel)
    yield f"{norm}.weight", (outputs,)
    yield f"{norm}.bias", (outputs,)


def shapes(classes: int = 1000) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter by its name, in the order of the forward pass.

    >>> parameters = shapes()
    >>> len(parameters), sum(prod(shape) for shape in parameters.values())
    (161, 25557032)
    >>> parameters["layer4.0.conv2.weight"]
    (512, 512, 3, 3)
    """
    found: dict[str, tuple[int, ...]] = dict(_convolution("conv1", "bn1", 3, 64, 7))
    inputs = 64
    for stage, blocks in enumerate(BLOCKS):
        width = 64 << stage
        outputs = width * EXPANSION
        for block in range(blocks):
            at = f"layer{stage + 1}.{block}"
            found.update(_convolution(f"{at}.conv1", f"{at}.bn1", inputs, width, 1))
            found.update(_convolution(f"{at}.conv2", f"{at}.bn2", width, width, 3))
            found.update(_convolution(f"{at}.conv3", f"{at}.bn3", width, outputs, 1))
            if block == 0:  # the shortcut changes the number of channels
                found.update(_convolution(f"{at}.downsample.0", f"{at}.downsample.1", inputs, outputs, 1))
            inputs = outputs
    found["fc.weight"], found["fc.bias"] = (classes, inputs), (classes,)
    return found


def floats(classes: int = 1000) -> int:
    """How many floats all gradients hold together."""
    return sum(prod(shape) for shape in shapes(classes).values())
