"""Weights in HDF5 as Keras 2 saves them with ``save_weights``, so that upstream's models load them.

A file has a group a layer, named by the attribute ``layer_names``; a group has the arrays that its attribute
``weight_names`` lists. Both networks hold most of their layers in a nested model, which is one group: first all that is
trained, layer by layer, then all running statistics. Dense kernels are (in, out) and convolution kernels (x, y, z, in,
out); torch has out and in first. The order along a dense layer's long side is Keras's already (see ``model``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hora.data.need import need
from hora.errors import BadData
from hora.files import replacing_path
from hora.workloads.gan3d.model import Discriminator, Generator

__all__ = ["load_weights", "new_file", "save_weights"]

_Array = npt.NDArray[np.float32]
_KINDS = {nn.Linear: "dense", nn.Conv3d: "conv3d", nn.BatchNorm3d: "batch_normalization"}


def save_weights(path: Path, network: Generator | Discriminator) -> None:
    """Write a network's weights, completely or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     file = Path(place) / "generator.hdf5"
    ...     save_weights(file, Generator())
    ...     load_weights(file, Generator())
    """
    with new_file(path) as file:
        groups = _layout(network)
        file.attrs["layer_names"] = _names(groups)
        file.attrs["backend"], file.attrs["keras_version"] = np.bytes_(b"tensorflow"), np.bytes_(b"2.2.2")
        for layer, weights in groups.items():
            group = file.create_group(layer)
            group.attrs["weight_names"] = _names(weights)
            for name, tensor in weights.items():
                group.create_dataset(name, data=_to_keras(tensor))


@contextmanager
def new_file(path: Path) -> Iterator[Any]:
    """An HDF5 file to write, which is at its place, and on the disk, when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing_path(path) as part:
        with _h5py().File(part, "w") as file:
            yield file
        with open(part, "rb") as written:
            os.fsync(written.fileno())


def load_weights(path: Path, network: Generator | Discriminator) -> None:
    """Read a network's weights, from Keras or from here: in their order, whatever they are called, as Keras does."""
    try:
        with _h5py().File(path, "r", locking=False) as file:
            found = [
                np.asarray(file[_text(layer)][_text(name)], np.float32)
                for layer in file.attrs["layer_names"]
                for name in file[_text(layer)].attrs["weight_names"]
            ]
    except (OSError, KeyError) as error:
        raise BadData(
            f"{path} cannot be read as Keras's weights: {error}. Give a file that save_weights wrote."
        ) from None
    places = [tensor for weights in _layout(network).values() for tensor in weights.values()]
    wanted, shapes = [_to_keras(tensor).shape for tensor in places], [array.shape for array in found]
    if shapes != wanted:
        differs = next((pair for pair in zip(shapes, wanted, strict=False) if pair[0] != pair[1]), None)
        what = (
            f"{differs[0]} in place of {differs[1]}" if differs else f"{len(shapes)} arrays in place of {len(wanted)}"
        )
        raise BadData(
            f"{path} has {what}: it is of another network than {type(network).__name__}. Give one of its own."
        )
    with torch.no_grad():
        for tensor, array in zip(places, found, strict=True):
            tensor.copy_(torch.from_numpy(_to_torch(array)))


def _layout(network: Generator | Discriminator) -> dict[str, dict[str, Tensor]]:
    """The tensors of each group by their Keras names, numbered as in upstream's script: the discriminator first."""
    if isinstance(network, Generator):
        layers = [network.dense, *network.layers]
        return {"input_2": {}, "sequential_1": _nested(layers, {"conv3d": 4, "batch_normalization": 3})}
    return {
        "input_1": {},
        "model_1": _nested(list(network.layers), {}),
        "generation": dict(_trained("generation", network.generation)),
        "auxiliary": dict(_trained("auxiliary", network.auxiliary)),
        "lambda_1": {},
    }


def _nested(layers: list[nn.Module], made_before: dict[str, int]) -> dict[str, Tensor]:
    """The weights of a nested model: of all layers those that are trained, then of all layers the statistics."""
    counts, named = dict(made_before), []
    for layer in layers:
        if type(layer) in _KINDS:
            kind = _KINDS[type(layer)]
            counts[kind] = counts.get(kind, 0) + 1
            named.append((f"{kind}_{counts[kind]}", layer))
    trained = {name: tensor for layer in named for name, tensor in _trained(*layer)}
    return trained | {name: tensor for layer in named for name, tensor in _statistics(*layer)}


def _trained(name: str, layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    weight, bias = ("gamma", "beta") if isinstance(layer, nn.BatchNorm3d) else ("kernel", "bias")
    for place, tensor in layer.named_parameters():
        yield f"{name}/{weight if place == 'weight' else bias}:0", tensor


def _statistics(name: str, layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    if isinstance(layer, nn.BatchNorm3d):
        assert layer.running_mean is not None and layer.running_var is not None
        yield f"{name}/moving_mean:0", layer.running_mean
        yield f"{name}/moving_variance:0", layer.running_var


def _to_keras(tensor: Tensor) -> _Array:
    """(out, in, x, y, z) to (x, y, z, in, out), and (out, in) to (in, out)."""
    array: _Array = tensor.detach().cpu().float().numpy()
    return array if array.ndim < 2 else np.ascontiguousarray(array.transpose(*range(2, array.ndim), 1, 0))


def _to_torch(array: _Array) -> _Array:
    turned = array if array.ndim < 2 else array.transpose(-1, -2, *range(array.ndim - 2))
    return np.ascontiguousarray(turned)


def _names(named: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Names as Keras writes them: of fixed length, or else they are read back as another type."""
    return np.array([name.encode() for name in named], "S" if named else np.float64)


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _h5py() -> Any:
    return need("h5py", "to write weights as Keras does")
