"""The networks of `hora bench train` in Keras, for its ``tensorflow`` and ``keras`` frameworks; channels last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import layers

from hora.bench.plan import BATCHES, TRAININGS
from hora.bench.resnet50 import BLOCKS, EXPANSION

__all__ = ["NETWORKS", "KerasNetwork", "batches"]


class KerasNetwork(NamedTuple):
    """One row of the benchmark."""

    make: Callable[[], Any]
    batch: int
    shape: tuple[int, ...]  # of one image
    classes: int = 10


def _mlp() -> Any:
    hidden = [layers.Dense(1024, activation="relu") for _ in range(2)]
    return keras.Sequential([keras.Input((784,)), *hidden, layers.Dense(10)])


def _mnist() -> Any:
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(10, 5),
            layers.MaxPooling2D(),
            layers.ReLU(),
            layers.Conv2D(20, 5),
            layers.SpatialDropout2D(0.5),
            layers.MaxPooling2D(),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(50, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(10),
        ]
    )


def _normalised(x: Any, width: int, kernel: int, stride: int = 1) -> Any:
    """A convolution and the batch normalisation behind it."""
    if kernel > 1:  # as PyTorch pads, whose network it is: the same on both sides
        x = layers.ZeroPadding2D(kernel // 2)(x)
    x = layers.Conv2D(width, kernel, stride, use_bias=False)(x)
    return layers.BatchNormalization(epsilon=1e-5)(x)


def _resnet50() -> Any:
    images = keras.Input((64, 64, 3))
    x = layers.ReLU()(_normalised(images, 64, 7, 2))
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for stage, blocks in enumerate(BLOCKS):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = layers.ReLU()(_normalised(x, width, 1))
            y = layers.ReLU()(_normalised(y, width, 3, stride))
            y = _normalised(y, width * EXPANSION, 1)
            around = x if block else _normalised(x, width * EXPANSION, 1, stride)
            x = layers.ReLU()(layers.Add()([y, around]))
    return keras.Model(images, layers.Dense(1000)(layers.GlobalAveragePooling2D()(x)))


NETWORKS = {
    "resnet50": KerasNetwork(_resnet50, TRAININGS["resnet50"].images, (64, 64, 3), 1000),
    "mlp": KerasNetwork(_mlp, TRAININGS["mlp"].images, (784,)),
    "mnist": KerasNetwork(_mnist, TRAININGS["mnist"].images, (28, 28, 1)),
}


def batches(network: KerasNetwork, seed: int) -> list[tuple[Any, Any]]:
    """Batches of noise."""
    random = np.random.default_rng(seed)
    return [
        (
            random.standard_normal((network.batch, *network.shape), np.float32),
            random.integers(network.classes, size=network.batch).astype(np.int32),
        )
        for _ in range(BATCHES)
    ]
