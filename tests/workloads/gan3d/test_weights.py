"""HDF5 weights: Keras 2's layout, read back by what Keras's loader does, and meaning the same network in numpy, with
channels last, computed from nothing but the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from hora.errors import BadData
from hora.workloads.gan3d.model import Discriminator, Generator
from hora.workloads.gan3d.weights import load_weights, save_weights

Floats = npt.NDArray[np.float32]

GENERATOR_SHAPES = [
    (200, 3136), (3136,),
    (6, 6, 8, 8, 64), (64,), (64,), (64,),
    (6, 5, 8, 64, 6), (6,), (6,), (6,),
    (3, 3, 8, 6, 6), (6,),
    (2, 2, 2, 6, 1),
    (64,), (64,), (6,), (6,),
]  # fmt: skip
DISCRIMINATOR_SHAPES = [
    (5, 5, 5, 1, 32), (32,),
    (5, 5, 5, 32, 8), (8,), (8,), (8,),
    (5, 5, 5, 8, 8), (8,), (8,), (8,),
    (5, 5, 5, 8, 8), (8,), (8,), (8,),
    *[(8,)] * 6,
    (10648, 1), (1,),
    (10648, 1), (1,),
]  # fmt: skip


def as_keras_loads(path: Path) -> list[Floats]:
    """Keras 2's load_weights: the layers in order, and of each the arrays in the order of weight_names."""
    found: list[Floats] = []
    with h5py.File(path, "r") as file:
        assert file.attrs["keras_version"].decode() == "2.2.2" and file.attrs["backend"].decode() == "tensorflow"
        for layer in [name.decode("utf8") for name in file.attrs["layer_names"]]:
            names = [name.decode("utf8") for name in file[layer].attrs["weight_names"]]
            found += [np.asarray(file[layer][name]) for name in names]
    return found


def trained(network: Any) -> Any:
    """The network, with weights and statistics that are all different."""
    torch.manual_seed(3)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if name.endswith("running_var") or (tensor.dim() == 1 and name.endswith("weight")):
                tensor.uniform_(0.5, 1.5)
            elif tensor.dim() == 1:
                tensor.uniform_(-0.2, 0.2)
    return network.eval()


# ---- the networks in numpy, with channels last ----


def convolve(x: Floats, kernel: Floats, pads: list[tuple[int, int]]) -> Floats:
    """(x, y, z, in) by (i, j, k, in, out)."""
    x = np.pad(x, [*pads, (0, 0)])
    shape = [x.shape[axis] - kernel.shape[axis] + 1 for axis in range(3)]
    out = np.zeros((*shape, kernel.shape[-1]), np.float32)
    for i, j, k in np.ndindex(kernel.shape[:3]):
        out += x[i : i + shape[0], j : j + shape[1], k : k + shape[2]] @ kernel[i, j, k]
    return out


def leaky(x: Floats) -> Floats:
    return np.where(x > 0, x, np.float32(0.3) * x)


def normalize(x: Floats, gamma: Floats, beta: Floats, mean: Floats, variance: Floats) -> Floats:
    return gamma * (x - mean) / np.sqrt(variance + np.float32(1e-3)) + beta


def upsample(x: Floats, *factors: int) -> Floats:
    for axis, factor in enumerate(factors):
        x = x.repeat(factor, axis)
    return x


def same(kernel: Floats) -> list[tuple[int, int]]:
    """TensorFlow's padding "same": of an even kernel, the larger half behind."""
    return [((n - 1) // 2, n // 2) for n in kernel.shape[:3]]


def numpys_generator(w: list[Floats], noise: Floats) -> Floats:
    x = (noise @ w[0] + w[1]).reshape(7, 7, 8, 8)
    x = normalize(leaky(convolve(x, w[2], same(w[2])) + w[3]), w[4], w[5], w[13], w[14])
    x = leaky(convolve(upsample(x, 2, 2, 2), w[6], [(2, 2), (2, 2), (0, 0)]) + w[7])
    x = upsample(normalize(x, w[8], w[9], w[15], w[16]), 2, 2, 3)
    x = leaky(convolve(x, w[10], [(1, 1), (0, 0), (3, 3)]) + w[11])
    return np.maximum(convolve(x, w[12], [(0, 0)] * 3), 0)


def numpys_discriminator(w: list[Floats], shower: Floats) -> list[float]:
    x = leaky(convolve(shower, w[0], same(w[0])) + w[1])
    for layer, pad in enumerate((2, 2, 1)):
        kernel, bias, gamma, beta = w[2 + 4 * layer : 6 + 4 * layer]
        x = normalize(
            leaky(convolve(x, kernel, [(pad, pad)] * 3) + bias), gamma, beta, *w[14 + 2 * layer : 16 + 2 * layer]
        )
    h = x[:22, :22, :22].reshape(11, 2, 11, 2, 11, 2, 8).mean((1, 3, 5)).reshape(-1)
    generation = 1 / (1 + np.exp(-(h @ w[20] + w[21])))
    return [float(generation[0]), float((h @ w[22] + w[23])[0]), float(shower.sum())]


def test_generator_is_the_same_network_in_keras_order(tmp_path: Path) -> None:
    network = trained(Generator())
    save_weights(tmp_path / "g.hdf5", network)
    weights = as_keras_loads(tmp_path / "g.hdf5")
    assert [array.shape for array in weights] == GENERATOR_SHAPES
    assert sum(array.size for array in weights) == 872_948
    noise = torch.randn(1, 200)
    with torch.no_grad():
        shower = network(noise)[0, 0].numpy()
    np.testing.assert_allclose(numpys_generator(weights, noise[0].numpy())[..., 0], shower, rtol=1e-3, atol=1e-4)
    assert shower.any()


def test_discriminator_is_the_same_network_in_keras_order(tmp_path: Path) -> None:
    network = trained(Discriminator())
    save_weights(tmp_path / "d.hdf5", network)
    weights = as_keras_loads(tmp_path / "d.hdf5")
    assert [array.shape for array in weights] == DISCRIMINATOR_SHAPES
    assert sum(array.size for array in weights) == 73_450
    shower = torch.rand(1, 1, 25, 25, 25)
    with torch.no_grad():
        judged = [float(value) for value in network(shower)]
    assert numpys_discriminator(weights, shower[0, 0, ..., None].numpy()) == pytest.approx(judged, rel=1e-3)


def test_layers_have_keras_names(tmp_path: Path) -> None:
    save_weights(tmp_path / "d.hdf5", Discriminator())
    save_weights(tmp_path / "g.hdf5", Generator())
    with h5py.File(tmp_path / "d.hdf5") as d, h5py.File(tmp_path / "g.hdf5") as g:
        assert [name.decode() for name in d.attrs["layer_names"]] == [
            "input_1", "model_1", "generation", "auxiliary", "lambda_1",
        ]  # fmt: skip
        assert [name.decode() for name in d["generation"].attrs["weight_names"]] == [
            "generation/kernel:0", "generation/bias:0",
        ]  # fmt: skip
        names = [name.decode() for name in g["sequential_1"].attrs["weight_names"]]
        assert names[:5] == [
            "dense_1/kernel:0", "dense_1/bias:0", "conv3d_5/kernel:0", "conv3d_5/bias:0",
            "batch_normalization_4/gamma:0",
        ]  # fmt: skip
        assert names[-1] == "batch_normalization_5/moving_variance:0"
        assert not len(d["input_1"].attrs["weight_names"])


@pytest.mark.parametrize("kind", [Generator, Discriminator])
def test_weights_come_back_to_the_bit(tmp_path: Path, kind: type[nn.Module]) -> None:
    network, other = trained(kind()), kind()
    save_weights(tmp_path / "w.hdf5", network)
    load_weights(tmp_path / "w.hdf5", other)  # type: ignore[arg-type]
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point():
            assert torch.equal(tensor, other.state_dict()[name]), name
    assert [path.name for path in tmp_path.iterdir()] == ["w.hdf5"]


def test_other_files_are_refused(tmp_path: Path) -> None:
    save_weights(tmp_path / "g.hdf5", Generator())
    with pytest.raises(BadData, match="another network than Discriminator"):
        load_weights(tmp_path / "g.hdf5", Discriminator())
    with pytest.raises(BadData, match=r"\(200, 3136\) in place of \(100, 3136\)"):
        load_weights(tmp_path / "g.hdf5", Generator(100))
    (tmp_path / "text.hdf5").write_text("not HDF5")
    with pytest.raises(BadData, match="cannot be read as Keras's weights"):
        load_weights(tmp_path / "text.hdf5", Generator())


def test_what_was_there_stays_if_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "g.hdf5"
    save_weights(path, Generator(8))
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(h5py.Group, "create_dataset", full)
    with pytest.raises(OSError, match="No space left"):
        save_weights(path, Generator(8))
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["g.hdf5"]
