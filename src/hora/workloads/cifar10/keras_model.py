"""ResNet for 32x32 images, versions 1 and 2, as Keras' example and the course have it: biases in the convolutions,
he_normal, L2 on their kernels."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

__all__ = ["network", "resnet_v1", "resnet_v2"]

CLASSES = 10
LAST = {"data_format": "channels_last"}  # whatever ~/.keras/keras.json says


def conv(x: Any, outputs: int, size: int, stride: int, l2: float) -> Any:
    penalty = keras.regularizers.L2(l2) if l2 else None
    return layers.Conv2D(
        outputs, size, stride, padding="same", kernel_initializer="he_normal", kernel_regularizer=penalty, **LAST
    )(x)


def norm(x: Any, relu: bool = True) -> Any:
    x = layers.BatchNormalization()(x)
    return layers.ReLU()(x) if relu else x


def classify(x: Any) -> Any:
    x = layers.GlobalAveragePooling2D(**LAST)(x)
    return layers.Dense(CLASSES, kernel_initializer="he_normal", dtype="float32")(x)


def resnet_v2(depth: int = 56, l2: float = 1e-4) -> Any:
    """Depth 9n+2: units of 1x1, 3x3, 1x1, each after its normalisation; the very first begins without one.

    >>> resnet_v2(56).count_params()
    1673738
    """
    image = keras.Input((32, 32, 3))
    x = norm(conv(image, 16, 3, 1, l2))
    for stage, (width, outputs) in enumerate([(16, 64), (64, 128), (128, 256)]):
        for unit in range((depth - 2) // 9):
            stride = 2 if stage and not unit else 1
            y = conv(x if not stage and not unit else norm(x), width, 1, stride, l2)
            y = conv(norm(y), width, 3, 1, l2)
            y = conv(norm(y), outputs, 1, 1, l2)
            x = layers.Add()([conv(x, outputs, 1, stride, l2) if not unit else x, y])
    return keras.Model(image, classify(norm(x)))


def resnet_v1(depth: int = 56, l2: float = 1e-4) -> Any:
    """Depth 6n+2: units of two 3x3, normalised after.

    >>> resnet_v1(56).count_params()
    861770
    """
    image = keras.Input((32, 32, 3))
    x = norm(conv(image, 16, 3, 1, l2))
    for stage, outputs in enumerate((16, 32, 64)):
        for unit in range((depth - 2) // 6):
            changes = stage and not unit
            stride = 2 if changes else 1
            y = norm(conv(x, outputs, 3, stride, l2))
            y = norm(conv(y, outputs, 3, 1, l2), relu=False)
            x = layers.ReLU()(layers.Add()([conv(x, outputs, 1, stride, l2) if changes else x, y]))
    return keras.Model(image, classify(x))


def network(name: str, depth: int, l2: float) -> Any:
    """The network of that version; it gives logits."""
    return resnet_v1(depth, l2) if name == "v1" else resnet_v2(depth, l2)
