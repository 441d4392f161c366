"""What is found on test events, with networks whose answers are known: so the losses are, too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hora.torch as hvd
from hora.data.showers import write_showers
from hora.workloads.gan3d.data import ShowerDataset
from hora.workloads.gan3d.evaluate import analyse, losses_on
from hora.workloads.gan3d.game import TorchGan
from hora.workloads.gan3d.model import Judgement
from hora.workloads.gan3d.options import Options

ENERGIES_GEV = [101.0, 150.0, 199.0, 250.0, 304.0]  # three of them near the middle of a bin


class Printer(nn.Module):
    """Makes the same shower every time, and counts them."""

    def __init__(self, shower: Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.shower, self.made = shower, 0

    def forward(self, noise: Tensor) -> Tensor:
        self.made += len(noise)
        return self.shower.expand(len(noise), 1, 25, 25, 25) * self.scale


class Critic(nn.Module):
    """Is nine tenths sure that whatever has energy is real, and of the opposite otherwise; guesses 100 GeV."""

    def forward(self, showers: Tensor) -> Judgement:
        ecal = showers.sum((1, 2, 3, 4))
        return Judgement(0.1 + 0.8 * (ecal > 0).float(), torch.ones(len(showers)), ecal)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture
def shower() -> Tensor:
    return torch.rand(25, 25, 25, generator=torch.Generator().manual_seed(1)) + 0.1


@pytest.fixture
def showers(shower: Tensor, tmp_path: Path) -> ShowerDataset:
    """The same shower, whatever the energy."""
    events = np.repeat(shower.numpy()[None], len(ENERGIES_GEV), 0)
    write_showers(tmp_path / "EleEscan_0.h5", events, np.array(ENERGIES_GEV, np.float32))
    return ShowerDataset([tmp_path / "EleEscan_0.h5"])


def game(shower: Tensor, **options: Any) -> TorchGan:
    return TorchGan(Printer(shower), Critic(), Options.of({"batch": 2, **options}))  # type: ignore[arg-type]


def test_losses_of_both_networks(shower: Tensor, showers: ShowerDataset) -> None:
    found = losses_on(game(torch.zeros_like(shower)), showers, nullcontext())
    right, wrong = -math.log(0.9), -math.log(0.1)
    total, generation, auxiliary, ecal = found["discriminator"]
    assert generation == pytest.approx(right)  # of real showers, and of dark ones that it takes for generated
    assert ecal == pytest.approx(50.0)  # nothing of real ones, all of dark ones
    assert total == pytest.approx(8 * generation + 0.2 * auxiliary + 0.1 * ecal)
    total, generation, auxiliary, ecal = found["generator"]
    assert (generation, ecal) == pytest.approx((wrong, 100.0))
    assert total == pytest.approx(8 * generation + 0.2 * auxiliary + 0.1 * ecal)
    believed = losses_on(game(shower), showers, nullcontext())
    assert believed["generator"][1] == pytest.approx(right)
    assert believed["discriminator"][1] == pytest.approx((right + wrong) / 2)


def test_fewer_events_if_told(shower: Tensor, showers: ShowerDataset) -> None:
    few = game(torch.zeros_like(shower), test_events=1)
    found = losses_on(few, showers, nullcontext())
    assert few.generator.made == 3  # type: ignore[attr-defined]  # one for the discriminator, two for the generator
    assert 0 < found["discriminator"][2] < 1000


def test_the_same_random_numbers_every_time(shower: Tensor, showers: ShowerDataset) -> None:
    once = losses_on(game(shower), showers, nullcontext())
    torch.manual_seed(7)
    assert losses_on(game(shower), showers, nullcontext()) == once
    assert losses_on(game(shower, seed=43), showers, nullcontext()) != once


def test_analysis_generates_only_what_counts(shower: Tensor, showers: ShowerDataset) -> None:
    perfect = game(shower)
    found, shapes = analyse(perfect, showers, nullcontext())
    assert shapes and all(shape["real"] == shape["generated"] for shape in shapes)
    assert list(found or []) == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)
    assert perfect.generator.made == 3  # type: ignore[attr-defined]
    double, _ = analyse(game(2 * shower), showers, nullcontext())
    assert list(double or []) == pytest.approx([1.0, 0.0, 1.0], abs=1e-5)  # the same shape, twice the energy
