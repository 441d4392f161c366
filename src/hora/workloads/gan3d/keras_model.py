"""The two networks in Keras, as upstream's ``EcalEnergyGan.py`` nests them: so weights files of either load here.

What holds most layers is a model of its own, which such a file has as one group (see ``weights``). All are called as
upstream's are when its script makes the discriminator first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
from keras import layers

from hora.workloads.gan3d.model import SLOPE
from hora.workloads.gan3d.weights import new_file

__all__ = ["discriminator", "frozen", "generator", "save_weights"]

CELLS = (25, 25, 25, 1)
_LAST = "channels_last"


def generator(latent: int = 200) -> Any:
    """Makes showers, (events, 25, 25, 25, 1), from random numbers, (events, latent).

    >>> generator().count_params()
    872948
    """
    noise = keras.Input((latent,), name="input_2")
    showers = keras.Sequential(
        [
            keras.Input((latent,)),
            layers.Dense(64 * 7 * 7, name="dense_1"),
            layers.Reshape((7, 7, 8, 8)),
            *_convolved(64, (6, 6, 8), "conv3d_5", "batch_normalization_4", padding="same"),
            layers.UpSampling3D((2, 2, 2), _LAST),
            layers.ZeroPadding3D((2, 2, 0), _LAST),
            *_convolved(6, (6, 5, 8), "conv3d_6", "batch_normalization_5"),
            layers.UpSampling3D((2, 2, 3), _LAST),
            layers.ZeroPadding3D((1, 0, 3), _LAST),
            *_convolved(6, (3, 3, 8), "conv3d_7"),
            layers.Conv3D(
                1, (2, 2, 2), data_format=_LAST, use_bias=False, kernel_initializer="glorot_normal", name="conv3d_8"
            ),
            layers.ReLU(dtype="float32"),  # also where the rest computes in bfloat16
        ],
        name="sequential_1",
    )
    return keras.Model(noise, showers(noise), name="generator")


def _convolved(
    channels: int, kernel: tuple[int, int, int], name: str, norm: str = "", padding: str = "valid"
) -> list[layers.Layer]:
    """A layer of the generator."""
    convolution = layers.Conv3D(
        channels, kernel, padding=padding, data_format=_LAST, kernel_initializer="he_uniform", name=name
    )
    activated = [convolution, layers.LeakyReLU(SLOPE)]
    return [*activated, layers.BatchNormalization(name=norm)] if norm else activated


def discriminator() -> Any:
    """Says of showers, (events, 25, 25, 25, 1), whether they are real (``generation``), of what energy
    (``auxiliary``), and the sum of their cells (``ecal``): three outputs in this order, each (events, 1).

    >>> discriminator().count_params()
    73450
    """
    showers = keras.Input(CELLS, name="input_1")
    inner = x = keras.Input(CELLS)
    x = layers.Conv3D(32, 5, padding="same", data_format=_LAST, name="conv3d_1")(x)
    x = layers.Dropout(0.2)(layers.LeakyReLU(SLOPE)(x))
    for number, padding in enumerate((2, 2, 1)):
        x = layers.ZeroPadding3D(padding, _LAST)(x)
        x = layers.Conv3D(8, 5, data_format=_LAST, name=f"conv3d_{number + 2}")(x)
        x = layers.BatchNormalization(name=f"batch_normalization_{number + 1}")(layers.LeakyReLU(SLOPE)(x))
        x = layers.Dropout(0.2)(x)
    x = layers.AveragePooling3D(2, data_format=_LAST, dtype="float32")(x)  # torch has no other on a processor
    x = layers.Flatten(data_format=_LAST, dtype="float32")(x)
    seen = keras.Model(inner, x, name="model_1")(showers)
    judged = [
        layers.Dense(1, activation="sigmoid", dtype="float32", name="generation")(seen),
        layers.Dense(1, dtype="float32", name="auxiliary")(seen),
        layers.Identity(dtype="float32", name="ecal")(keras.ops.sum(showers, (1, 2, 3))),
    ]
    return keras.Model(showers, judged, name="discriminator")


@contextmanager
def frozen(network: Any) -> Iterator[None]:
    """Inside, a network is only passed through, as Keras 2 did with ``trainable = False``: it gets no gradients; its
    batch normalisation still goes by the batch, but keeps its statistics.

    Keras 3 would go by the statistics instead. And it looks at all of this when it compiles a step, which it may do in
    any: so every step that must not change the network is taken inside.
    """
    weights = list(network.trainable_weights)
    norms = [layer for layer in network._flatten_layers() if isinstance(layer, layers.BatchNormalization)]
    momenta = [norm.momentum for norm in norms]
    for weight in weights:
        weight.trainable = False
    for norm in norms:
        norm.momentum = 1.0
    try:
        yield
    finally:
        for weight in weights:
            weight.trainable = True
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


def save_weights(path: Path, network: Any) -> None:
    """Write a network's weights, completely or not at all, in the layout that Keras 2 had, and Keras 3 still reads."""
    from keras.src.legacy.saving.legacy_h5_format import save_weights_to_hdf5_group

    with new_file(path) as file:
        save_weights_to_hdf5_group(file, network)
