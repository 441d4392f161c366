"""The optimizers by name: what each does in its first step, and the rates that go with them."""

from __future__ import annotations

import math

import pytest
import torch

from hora.workloads.cifar10.options import Options as Cifar
from hora.workloads.imagenet.options import Options as ImageNet
from hora.workloads.optimizers import NAMES, make

G, LR = 0.5, 0.1
FIRST = {  # of a weight of 1 with a gradient of 0.5
    "sgd": LR * G,
    "momentum": LR * G,
    "nesterov": LR * G * 1.9,
    "adam": LR,
    "adamw": LR,
    "rmsprop": LR * G / math.sqrt(0.1 * G * G),
    "lars": LR * 0.001 / G * G,
    "lamb": LR,
}


@pytest.mark.parametrize("name", NAMES)
def test_the_first_step(name: str) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = make(name, [{"params": [weight]}], LR, 0.9)
    weight.grad = torch.full((1,), G)
    optimizer.step()
    assert 1 - weight.item() == pytest.approx(FIRST[name], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kind", [ImageNet, Cifar])
def test_rates_that_go_with_them(kind: type[ImageNet | Cifar]) -> None:
    own = kind.of({}).lr
    assert {name: kind.of({"optimizer": name}).lr for name in NAMES} == {
        name: 0.001 if name in ("adam", "adamw", "rmsprop", "lamb") else own for name in NAMES
    }
    assert kind.of({"optimizer": "adam", "lr": 0.01}).lr == 0.01  # what is given is taken
    assert kind.of({"optimizer": "adam"}).plan(50_000, 4).peak_lr == pytest.approx(
        0.001 * math.sqrt(4 * kind.of({}).batch / kind.of({}).base_batch)
    )
