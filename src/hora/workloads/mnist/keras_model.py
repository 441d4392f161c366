"""The two networks that MNIST is usually trained with, in Keras, with its initial weights."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

__all__ = ["horovod_net", "network", "tensorflow_net"]

LAST = {"data_format": "channels_last"}  # whatever ~/.keras/keras.json says


def tensorflow_net() -> Any:
    """The CNN of tensorflow/models (official/mnist).

    >>> tensorflow_net().count_params()
    3274634
    """
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 5, padding="same", activation="relu", name="conv1", **LAST),
            layers.MaxPooling2D(2, **LAST),
            layers.Conv2D(64, 5, padding="same", activation="relu", name="conv2", **LAST),
            layers.MaxPooling2D(2, **LAST),
            layers.Flatten(**LAST),
            layers.Dense(1024, activation="relu", name="fc1"),
            layers.Dropout(0.4),
            layers.Dense(10, dtype="float32", name="fc2"),
        ]
    )


def horovod_net() -> Any:
    """The small CNN of Horovod's pytorch_mnist.py. (Its log-softmax is part of the loss here.)

    >>> horovod_net().count_params()
    21840
    """
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(10, 5, name="conv1", **LAST),
            layers.MaxPooling2D(2, **LAST),
            layers.ReLU(),
            layers.Conv2D(20, 5, name="conv2", **LAST),
            layers.SpatialDropout2D(0.5, **LAST),
            layers.MaxPooling2D(2, **LAST),
            layers.ReLU(),
            layers.Flatten(**LAST),
            layers.Dense(50, activation="relu", name="fc1"),
            layers.Dropout(0.5),
            layers.Dense(10, dtype="float32", name="fc2"),
        ]
    )


def network(name: str) -> Any:
    """The network of that name; it gives logits."""
    return horovod_net() if name == "horovod" else tensorflow_net()
