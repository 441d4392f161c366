"""ResNet-18, -34, -50 and -101 in Keras: layer by layer the networks of ``model``, with channels last.

A layer is called as in torch, with ``_`` in place of ``.``, so that weights go from one to the other by name
(``load_torch``). What decays is a regularizer of its layer, as in Horovod's example for Keras: the gradient of that is
what torch's optimizer adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import layers

from hora.errors import UsageError
from hora.workloads.imagenet.model import ARCHITECTURES

__all__ = ["load_torch", "resnet"]

_LAST = "channels_last"
_NORMS = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
_OTHERS = {"weight": "kernel", "bias": "bias"}


def resnet(
    name: str,
    classes: int = 1000,
    size: int = 224,
    *,
    zero_gamma: bool = False,
    small_fc: bool = False,
    weight_decay: float = 0.0,
    decay_weights_only: bool = False,
) -> Any:
    """A network of this name with fresh weights, from images, (n, size, size, 3), to scores, (n, classes).

    Weights are drawn as torch's are, but for the classifier's biases, which begin at 0. ``weight_decay`` is of
    everything that is trained, or of kernels only.

    >>> sum(weight.size for weight in resnet("resnet18", classes=10, size=32).get_weights())  # with running statistics
    11191242
    """
    if name not in ARCHITECTURES:
        raise UsageError(f"there is no network {name!r} here. There are {', '.join(ARCHITECTURES)}.")
    kernels = keras.regularizers.L2(weight_decay / 2) if weight_decay else None  # its gradient is twice the weight
    vectors = None if decay_weights_only else kernels

    def convolved(x: Any, channels: int, kernel: int, stride: int, name: str) -> Any:
        if stride > 1 and kernel > 1:  # torch pads both sides alike; "same" would not, if the stride is 2
            x = layers.ZeroPadding2D(kernel // 2, data_format=_LAST)(x)
        return layers.Conv2D(
            channels, kernel, stride, "valid" if stride > 1 else "same", _LAST, use_bias=False, name=name,
            kernel_initializer=keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal"),
            kernel_regularizer=kernels,
        )(x)  # fmt: skip

    def normalized(x: Any, name: str, gamma: str = "ones") -> Any:
        return layers.BatchNormalization(
            momentum=0.9, epsilon=1e-5, name=name, gamma_initializer=gamma, gamma_regularizer=vectors,
            beta_regularizer=vectors,
        )(x)  # fmt: skip

    def block(x: Any, width: int, stride: int, at: str) -> Any:
        sizes = [(width, 3, stride), (width, 3, 1)]
        if bottleneck:
            sizes = [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]
        y = x
        for part, size in enumerate(sizes, start=1):
            last = part == len(sizes)
            y = convolved(y, *size, f"{at}_conv{part}")
            y = normalized(y, f"{at}_bn{part}", "zeros" if zero_gamma and last else "ones")
            y = y if last else layers.ReLU()(y)
        if stride > 1 or x.shape[-1] != y.shape[-1]:
            x = convolved(x, y.shape[-1], 1, stride, f"{at}_downsample_0")
            x = normalized(x, f"{at}_downsample_1")
        return layers.ReLU()(layers.Add()([x, y]))

    stages, bottleneck = ARCHITECTURES[name]
    pictures = keras.Input((size, size, 3))
    x = layers.ReLU()(normalized(convolved(pictures, 64, 7, 2, "conv1"), "bn1"))
    x = layers.ZeroPadding2D(1, data_format=_LAST)(x)  # after a ReLU nothing is less than 0
    x = layers.MaxPooling2D(3, 2, data_format=_LAST)(x)
    for stage, blocks in enumerate(stages, start=1):
        for number in range(blocks):
            stride = 2 if stage > 1 and number == 0 else 1
            x = block(x, 32 << stage, stride, f"layer{stage}_{number}")
    scores = layers.Dense(
        classes, name="fc", kernel_regularizer=kernels, bias_regularizer=vectors,
        kernel_initializer=keras.initializers.RandomNormal(0.0, 0.01) if small_fc
        else keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform"),
        dtype="float32",  # also where the rest computes in bfloat16
    )(layers.GlobalAveragePooling2D(data_format=_LAST)(x))  # fmt: skip
    return keras.Model(pictures, scores, name=name)


def load_torch(model: Any, state: Mapping[str, Any]) -> None:
    """Put the weights of torch's network, its ``state_dict()`` or torchvision's, into Keras's of the same name.

    Raises KeyError or ValueError, with the layer's name, if they are of another one.

    >>> from hora.workloads.imagenet.model import resnet as torchs
    >>> load_torch(resnet("resnet18", 10, 32), torchs("resnet18", 10).state_dict())
    """
    values = {name: tensor.detach().cpu().numpy() for name, tensor in state.items() if "num_batches" not in name}
    places = {}
    for layer in model.layers:
        names = _NORMS if isinstance(layer, layers.BatchNormalization) else _OTHERS
        for torchs, kerass in names.items():
            if getattr(layer, kerass, None) is not None:
                places[f"{layer.name.replace('_', '.')}.{torchs}"] = getattr(layer, kerass)
    if places.keys() != values.keys():
        odd = sorted(places.keys() ^ values.keys())
        raise KeyError(f"only one of both has {', '.join(odd[:3])}")
    for name, variable in places.items():
        value = values[name]
        turned = value if value.ndim < 2 else np.moveaxis(value, (0, 1), (-1, -2))  # out and in last
        if turned.shape != tuple(variable.shape):
            raise ValueError(f"{name} is {value.shape}, which does not go into {tuple(variable.shape)}")
        variable.assign(turned)
