"""MNIST: the networks, the data, and a short training of each."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hora.data.generated import mark_generated
from hora.data.idx import write_idx
from hora.errors import BadData
from hora.workloads.mnist.data import load
from hora.workloads.mnist.model import HorovodNet, TensorFlowNet
from hora.workloads.mnist.options import Options
from hora.workloads.mnist.train import train


def test_the_networks_have_the_published_layers() -> None:
    sizes = [p.numel() for layer in TensorFlowNet().children() for p in layer.parameters()]
    assert [sizes[i] + sizes[i + 1] for i in range(0, 8, 2)] == [832, 51_264, 3_212_288, 10_250]
    assert sum(p.numel() for p in HorovodNet().parameters()) == 21_840
    for network in (TensorFlowNet(), HorovodNet()):
        assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    weight = TensorFlowNet().fc1.weight  # Glorot's uniform distribution, TensorFlow's default
    limit = (6 / (3136 + 1024)) ** 0.5
    assert limit * 0.99 < weight.abs().max() <= limit and not TensorFlowNet().fc1.bias.any()


def test_horovods_network_computes_what_its_source_says() -> None:
    torch.manual_seed(1)
    net, x = HorovodNet().eval(), torch.randn(3, 1, 28, 28)
    reference = nn.Sequential(
        net.conv1, nn.MaxPool2d(2), nn.ReLU(), net.conv2, nn.Dropout2d(), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
        net.fc1, nn.ReLU(), nn.Dropout(), net.fc2,
    ).eval()  # fmt: skip
    assert torch.equal(net(x), reference(x))


def test_batches_are_the_files_pixels(digits: Path) -> None:
    data = load(digits)
    images, labels = data.train.batch(np.array([5, 0]))
    assert images.shape == (2, 1, 28, 28) and images.dtype == torch.float32 and labels.dtype == torch.int64
    assert images.max() <= 1 and (images * 255).round().equal(data.train.images[[5, 0]].float())
    normalized, _ = load(digits, normalized=True).train.batch(np.array([5, 0]))
    torch.testing.assert_close(normalized, (images - 0.1307) / 0.3081)


def spoil(folder: Path, how: str) -> None:
    images, labels = folder / "train-images-idx3-ubyte.gz", folder / "train-labels-idx1-ubyte"
    match how:
        case "missing":
            labels.unlink()
        case "cut":
            labels.write_bytes(labels.read_bytes()[:-1])
        case "cut while zipped":
            images.write_bytes(images.read_bytes()[:-100])
        case "magic":
            labels.write_bytes(b"\x1f\x8c" + labels.read_bytes()[2:])
        case "swapped":
            shutil.copy(labels, folder / "train-images-idx3-ubyte")
        case "fewer":
            write_idx(labels, np.zeros(3, np.uint8))
        case "label":
            write_idx(labels, np.full(600, 11, np.uint8))


@pytest.mark.parametrize("how", ["missing", "cut", "cut while zipped", "magic", "swapped", "fewer", "label"])
def test_bad_files_are_refused_and_nothing_is_written(tmp_path: Path, digits: Path, how: str) -> None:
    shutil.copytree(digits, tmp_path / "data")
    spoil(tmp_path / "data", how)
    with pytest.raises(BadData, match=r"train.*(again|hora data get|been swapped)"):
        train(Options.of({"data": str(tmp_path / "data"), "out": str(tmp_path / "out")}))
    assert not (tmp_path / "out").exists()


def test_a_short_run_learns(tmp_path: Path, digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = train(
        Options.of({"data": str(digits), "out": str(tmp_path), "batch": 20, "lr": 0.005, "epochs": 1, "log_every": 10})
    )
    assert result["val_accuracy"] > 0.95 and result["generated_data"] is False
    said = capsys.readouterr().out
    assert re.search(r"^epoch 1/1  step 10/30  loss \S+  accuracy \S+ %  [\d.,]+ images/s  lr 0.001  ETA", said, re.M)


def test_only_steps_if_only_their_speed_is_wanted(tmp_path: Path, digits: Path) -> None:
    given = {"data": str(digits), "out": str(tmp_path), "batch": 200, "epochs": 2, "save_every": 0.3}
    result = train(Options.of({**given, "validate": False, "save": False}))
    assert result["steps"] == 6 and "val_accuracy" not in result and result["checkpoint"] == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "run.json"]


IN_BF16 = {"precision": "bf16", "emulate_workers": 2, "accumulate": 2, "batch": 16}


@pytest.mark.parametrize("given", [{}, pytest.param(IN_BF16, marks=pytest.mark.bf16)])
def test_horovods_lines(
    tmp_path: Path, digits: Path, capsys: pytest.CaptureFixture[str], given: dict[str, Any]
) -> None:
    shutil.copytree(digits, tmp_path / "data")
    mark_generated(tmp_path / "data", generator="digits", seed=1)
    options = Options.of(
        {"data": str(tmp_path / "data"), "out": str(tmp_path / "out"), "network": "horovod", "epochs": 2, **given}
    )
    result = train(options)
    said = capsys.readouterr().out
    assert result["generated_data"] is True and "the data is generated" in said
    told = re.findall(r"^Train Epoch: (\d) \[(\d+)/(\d+) \((\d+)%\)\]\tLoss: \d\.\d{6}$", said, re.M)
    assert told == [("1", "0", "600", "0"), ("2", "0", "600", "0")]
    tests = re.findall(r"^\nTest set: Average loss: (\d\.\d{4}), Accuracy: (\d+\.\d\d)%\n$", said, re.M)
    assert len(tests) == 2
    assert tests[1] == (f"{result['val_loss']:.4f}", f"{100 * result['val_accuracy']:.2f}")
