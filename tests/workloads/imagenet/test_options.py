"""The schedules by name against the study's table of experiments, Goyal's recipe and MLPerf's."""

from __future__ import annotations

import pytest
import torch

from hora.errors import UsageError
from hora.workloads.imagenet.model import resnet
from hora.workloads.imagenet.options import Options
from hora.workloads.imagenet.train import make_optimizer

SAMPLES = 1_281_167


@pytest.mark.parametrize(
    ("schedule", "batch", "workers", "expected"),
    [  # experiment, rates by epoch
        ("naive", 128, 32, {0: 0.1, 29: 0.1, 30: 0.01, 60: 0.001, 89: 0.001}),  # 4
        ("linear", 128, 1, {0: 0.05, 30: 0.005, 60: 0.0005, 80: 0.00005}),  # 5
        ("linear", 128, 32, {0: 1.6, 30: 0.16, 80: 0.0016}),  # 5
        ("stepping:5", 128, 8, {0: 0.4 / 6, 4: 0.4 * 5 / 6, 5: 0.4}),  # 6
        ("stepping:5", 128, 24, {5: 1.2, 30: 0.12}),  # 6
        ("stepping:5", 32, 32, {0: 0.4 / 6, 5: 0.4}),  # 7
        ("gradual:5", 128, 16, {0: 0.05, 1: 0.2, 5: 0.8}),  # 8
        ("gradual:10", 128, 32, {0: 0.05, 1: 0.205, 10: 1.6, 30: 0.16}),  # 9
        ("goyal", 32, 256, {0: 0.1, 2.5: 1.65, 5: 3.2, 30: 0.32, 60: 0.032, 80: 0.0032}),
    ],
)
def test_published_rates(schedule: str, batch: int, workers: int, expected: dict[float, float]) -> None:
    options = Options.of({"schedule": schedule, "batch": batch})
    plan = options.plan(SAMPLES, workers)
    assert {epoch: plan.lr_at_epoch(epoch) for epoch in expected} == pytest.approx(expected)
    assert options.epochs == 90


def test_goyals_recipe() -> None:
    goyal = Options.of({"schedule": "goyal"})
    assert goyal.batch == 32 and goyal.zero_gamma and goyal.small_fc and goyal.decay_weights_only
    optimizer = make_optimizer(resnet("resnet18"), goyal, 3.2)
    assert [(g["nesterov"], g["weight_decay"], g["lr"]) for g in optimizer.param_groups] == [
        (True, 1e-4, 3.2), (True, 0.0, 3.2)
    ]  # fmt: skip


def test_mlperfs_recipe() -> None:
    lars = Options.of({"schedule": "lars"})
    assert [lars.plan(SAMPLES, workers).peak_lr for workers in (32, 128, 256)] == [10, 25, 31.2]
    assert lars.label_smoothing == 0.1 and lars.epochs == 42
    optimizer = make_optimizer(resnet("resnet18"), lars, 10.0)
    assert type(optimizer).__name__ == "LARS"
    assert [(g["adapt"], g["weight_decay"], g["eta"]) for g in optimizer.param_groups] == [
        (True, 2e-4, 0.001), (False, 0.0, 0.001)
    ]  # fmt: skip


def test_the_studys_optimizer_decays_everything() -> None:
    optimizer = make_optimizer(resnet("resnet18"), Options.of({}), 0.05)
    assert isinstance(optimizer, torch.optim.SGD) and len(optimizer.param_groups) == 1
    group = optimizer.param_groups[0]
    assert (group["momentum"], group["weight_decay"], group["nesterov"]) == (0.9, 1e-4, False)


def test_what_was_given_goes_before_the_schedule() -> None:
    mine = Options.of({"schedule": "goyal", "warmup": "iteration:2", "batch": 64, "optimizer": "lamb"})
    assert (mine.warmup, mine.batch, mine.optimizer, mine.decay) == ("iteration:2", 64, "lamb", "30,60,80")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"resize": 200}, "--resize 200 is less than --image-size 224"),
        ({"evaluate": True}, "--evaluate needs something"),
        ({"arch": "vgg16"}, "--arch vgg16"),
        ({"label_smoothing": 1.0}, "--label-smoothing 1.0"),
        ({"warmup": "steep:5"}, "steep:5"),
    ],
)
def test_what_is_refused_before_anything_starts(given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Options.of(given)
