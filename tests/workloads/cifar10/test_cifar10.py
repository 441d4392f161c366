"""CIFAR-10: ResNet-56 as in Keras' example and the course, its schedule and its augmentation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hora.data.cifar import write_cifar
from hora.data.generated import mark_generated
from hora.data.loader import BatchPlan
from hora.errors import BadData, UsageError
from hora.workloads.cifar10.data import Photographs, load, shifted
from hora.workloads.cifar10.model import CifarBasicBlock, ResNetV1, ResNetV2, conv, kernels, network
from hora.workloads.cifar10.options import Options
from hora.workloads.cifar10.train import train


@pytest.mark.parametrize(
    ("make", "trainable", "everything"), [(ResNetV2, 1_663_338, 1_673_738), (ResNetV1, 857_706, 861_770)]
)
def test_the_networks_have_the_published_numbers_of_parameters(
    make: type[nn.Module], trainable: int, everything: int
) -> None:
    model = make()
    assert sum(p.numel() for p in model.parameters()) == trainable
    statistics = [b.numel() for name, b in model.named_buffers() if "num_batches" not in name]
    assert trainable + sum(statistics) == everything
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {(m.eps, round(m.momentum or 0, 9)) for m in norms} == {(1e-3, 0.01)}
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_strides_and_shortcuts() -> None:
    units = list(ResNetV2(20).units)
    assert [(u.conv1.in_channels, u.conv1.out_channels, u.conv3.out_channels, u.conv1.stride[0]) for u in units] == [
        (16, 16, 64, 1), (64, 16, 64, 1), (64, 64, 128, 2), (128, 64, 128, 1), (128, 128, 256, 2), (256, 128, 256, 1),
    ]  # fmt: skip
    assert [isinstance(u.shortcut, nn.Conv2d) for u in units] == [True, False] * 3
    assert [isinstance(u.bn1, nn.Identity) for u in units] == [True] + [False] * 5


def test_weights_begin_as_he_normal() -> None:
    torch.manual_seed(0)
    weight = conv(64, 256, 3).weight
    deviation = (2 / (64 * 9)) ** 0.5
    assert weight.std().item() == pytest.approx(deviation, rel=0.02)
    assert weight.abs().max() <= 2 * deviation / 0.8796 * 1.0001


def test_padding_of_a_stride_of_two_is_tensorflows() -> None:
    """With "same" padding TensorFlow puts the one row and column that are missing at the end."""
    torch.manual_seed(0)
    unit, x = CifarBasicBlock(2, 4, 2).eval(), torch.randn(1, 2, 6, 6)
    kernel, bias = unit.conv1.weight, unit.conv1.bias
    assert bias is not None
    padded = np.zeros((2, 7, 7), np.float32)
    padded[:, :6, :6] = x[0].numpy()
    expected = np.array([
        [[(padded[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] * kernel[o].detach().numpy()).sum() + bias[o].item()
          for j in range(3)] for i in range(3)] for o in range(4)
    ])  # fmt: skip
    found = unit.conv1(F.pad(x, (0, 1, 0, 1)))[0].detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert unit(x).shape == (1, 4, 3, 3)


def course(epoch: float, size: int, step: float) -> float:
    """The course's rates, written down from its script: Horovod's warm-up callback, then its own function."""
    if epoch < 20:
        ahead = min(epoch + step, 20.0)
        return 0.08 * size / size * (ahead * (size - 1) / 20 + 1)
    whole = int(epoch)
    return (0.08 if whole <= 40 else 0.01 if whole <= 60 else 0.002 if whole <= 70 else 0.0004) * size


@pytest.mark.parametrize("size", [1, 2, 16])
def test_the_courses_schedule(size: int) -> None:
    plan = Options.of({}).plan(50_000, size)
    assert plan.steps_per_epoch == 50_000 // (128 * size)
    for epoch in range(80):
        for part in (0.0, 0.5):
            assert plan.lr_at_epoch(epoch + part) == pytest.approx(course(epoch + part, size, 1 / plan.steps_per_epoch))


def test_a_run_shorter_than_the_warm_up_is_its_first_part() -> None:
    assert Options.of({"epochs": 2}).plan(50_000, 16).lr_at_epoch(1.5) == Options.of({}).plan(50_000, 16).lr_at_epoch(
        1.5
    )


def test_l2_is_on_the_kernels_of_convolutions_only() -> None:
    """Weight decay in the optimizer is the gradient of Keras' penalty."""
    torch.manual_seed(0)
    model, x, y = ResNetV1(8), torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
    convolutions, others = kernels(model)
    assert sum(p.numel() for p in others) == sum(p.numel() for p in model.parameters()) - sum(
        m.weight.numel() for m in model.modules() if isinstance(m, nn.Conv2d)
    )
    penalty = 1e-4 * sum(p.square().sum() for p in convolutions)
    (F.cross_entropy(model(x), y) + penalty).backward()
    expected = [p.detach() - 0.1 * p.grad for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    torch.optim.SGD([{"params": convolutions, "weight_decay": 2e-4}, {"params": others}], lr=0.1).step()
    for found, wanted in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_shifts_and_flips_are_numpys() -> None:
    random = np.random.default_rng(2)
    pixels = random.integers(0, 256, (12, 3, 32, 32)).astype(np.uint8)
    mean = random.random((3, 32, 32)).astype(np.float32)
    down, right, flip = random.integers(-3, 4, 12), random.integers(-3, 4, 12), random.random(12) < 0.5
    found = shifted(*map(torch.from_numpy, (pixels, mean, down, right, flip)))
    for i in range(12):
        image = np.pad(pixels[i].astype(np.float32) / 255 - mean, ((0, 0), (3, 3), (3, 3)), mode="edge")
        image = image[:, 3 - down[i] : 35 - down[i], 3 - right[i] : 35 - right[i]]
        expected = image[:, :, ::-1] if flip[i] else image
        np.testing.assert_allclose(found[i].numpy(), expected, atol=1e-6)


def test_augmentation_depends_on_seed_epoch_worker_and_step_only() -> None:
    pixels = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    photographs = Photographs(pixels, torch.arange(40), torch.zeros(3, 32, 32))
    plan = BatchPlan(np.arange(40), epoch=1, worker=2, step=3)

    def taken(plan: BatchPlan, seed: int = 5) -> torch.Tensor:
        return photographs.augmented(plan, seed)[0]

    first = taken(plan)
    torch.rand(3)
    assert torch.equal(taken(plan), first)
    for other in (plan._replace(epoch=0), plan._replace(worker=0), plan._replace(step=0)):
        assert not torch.equal(taken(other), first)
    assert not torch.equal(taken(plan, seed=6), first)
    plain = photographs.batch(plan.indices)[0]
    same = sum(torch.equal(a, b) for a, b in zip(first, plain, strict=True))
    assert same < 5  # about one of 98 is neither shifted nor flipped


def write(folder: Path, counts: tuple[int, ...] = (60,), test: int = 21) -> Path:
    random = np.random.default_rng(4)
    folder.mkdir(parents=True)
    for name, count in [*((f"data_batch_{i + 1}.bin", n) for i, n in enumerate(counts)), ("test_batch.bin", test)]:
        labels = random.integers(0, 10, count).astype(np.uint8)
        pixels = random.integers(0, 80, (count, 3, 32, 32)).astype(np.uint8)
        for image, label in zip(pixels, labels, strict=True):
            image[label % 3, 3 * label : 3 * label + 3] = 255
        write_cifar(folder / name, pixels, labels)
    return folder


def test_the_mean_is_the_training_images(tmp_path: Path) -> None:
    write(tmp_path / "cifar" / "cifar-10-batches-bin", (30, 30, 30, 30, 30))
    data = load(tmp_path / "cifar")
    assert len(data.train) == 150 and len(data.test) == 21 and not data.generated
    np.testing.assert_allclose(data.train.mean, data.train.pixels.numpy().mean(0) / 255, rtol=1e-5)
    images, _ = data.train.batch(np.arange(150))
    assert images.mean(0).abs().max() < 1e-5


def test_bad_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="there is no folder"):
        load(tmp_path / "none")
    folder = write(tmp_path / "cifar", (10, 10, 10, 10))
    with pytest.raises(BadData, match=r"data_batch_5\.bin cannot be read"):
        load(folder)
    mark_generated(folder, generator="textures", seed=1)
    assert len(load(folder).train) == 40  # of generated data there may be fewer files
    (folder / "data_batch_2.bin").write_bytes(b"x" * 3000)
    with pytest.raises(BadData, match=r"data_batch_2\.bin has 3000 bytes"):
        load(folder)


def test_a_depth_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="--depth 57"):
        Options.of({"depth": 57})
    assert sum(p.numel() for p in network("v1", 8).parameters()) < 100_000


def test_only_steps_if_only_their_speed_is_wanted(tmp_path: Path) -> None:
    write(tmp_path / "data", (20, 20, 20, 20, 20))
    given = {"data": str(tmp_path / "data"), "out": str(tmp_path / "out"), "network": "v1", "depth": 8, "epochs": 1}
    result = train(Options.of({**given, "batch": 50, "validate": False, "save": False}))
    assert result["steps"] == 2 and "val_accuracy" not in result
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["metrics.jsonl", "run.json"]


def test_a_short_run_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "data", (20, 20, 20, 20, 20))
    options = {"data": str(tmp_path / "data"), "out": str(tmp_path / "out"), "network": "v1", "depth": 8, "epochs": 4}
    result = train(Options.of({**options, "batch": 10, "base_batch": 10, "warmup": "none", "emulate_workers": 2}))
    *_, test_loss, test_accuracy = capsys.readouterr().out.splitlines()[:-3]  # before those of the end
    assert test_loss == f"Test loss: {result['val_loss']}" and test_accuracy.startswith("Test accuracy: ")
    losses = [line for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines() if "val_loss" in line]
    assert len(losses) == 4
    content = torch.load(result["checkpoint"], weights_only=True)
    groups = content["optimizer"]["param_groups"]
    assert [group["weight_decay"] for group in groups] == [2e-4, 0]
