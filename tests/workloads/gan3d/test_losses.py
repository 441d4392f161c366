"""The losses against values computed by hand and by numpy; what is sampled."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hora.workloads.gan3d.losses import each, ecal_of, flipped, sample, weighted
from hora.workloads.gan3d.model import Judgement
from hora.workloads.gan3d.options import Options


def judgement(*values: list[float]) -> Judgement:
    return Judgement(*(torch.tensor(value) for value in values))


def test_losses_by_hand() -> None:
    found = judgement([0.9, 0.2], [1.5, 3.0], [2.0, 9.0])
    wanted = judgement([1.0, 0.0], [1.0, 4.0], [4.0, 6.0])
    by_hand = [[-math.log(0.9), 50.0, 50.0], [-math.log(0.8), 25.0, 50.0]]
    parts = each(found, wanted)
    torch.testing.assert_close(parts, torch.tensor(by_hand))
    mean = weighted(parts.mean(0), Options().loss_weights)  # 8 x 0.1643 + 0.2 x 37.5 + 0.1 x 50
    assert float(mean) == pytest.approx(8 * (-math.log(0.9) - math.log(0.8)) / 2 + 7.5 + 5.0, rel=1e-6)


def test_a_sure_mistake_costs_what_keras_charges() -> None:
    """Probabilities are cut off at 1e-7 from both ends, so no loss is infinite; and a target of 0 divides by 1e-7."""
    parts = each(judgement([0.0, 1.0], [1.0, 0.0], [0.0, 0.0]), judgement([1.0, 0.0], [0.0, 0.0], [1.0, 1.0]))
    assert parts[:, 0].tolist() == pytest.approx(
        [-math.log(1e-7), -math.log(float(np.float32(1) - np.float32(1 - 1e-7)))]
    )
    assert parts[:, 1].tolist() == pytest.approx([1e9, 0.0])


numbers = st.floats(0.015625, 20, width=32)


@given(
    st.lists(st.tuples(st.floats(0.015625, 0.984375, width=32), st.booleans(), numbers, numbers, numbers), min_size=1)
)
def test_losses_are_numpys(rows: list[tuple[float, bool, float, float, float]]) -> None:
    p, label, energy, guessed, ecal = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    expected = np.stack(
        [
            -np.where(label == 1, np.log(p), np.log1p(-p)),
            100 * np.abs(energy - guessed) / energy,
            100 * np.abs(energy - ecal) / energy,
        ],
        axis=1,
    )
    found = each(
        judgement(p.tolist(), guessed.tolist(), ecal.tolist()), judgement(label.tolist(), *[energy.tolist()] * 2)
    )
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3, atol=1e-4)


@given(st.lists(st.floats(0.1, 5), min_size=1))
def test_deposited_energy_is_upstreams_polynomial(energies: list[float]) -> None:
    energy = np.array(energies)
    polynomial = energy * np.polyval([0.0018, -0.023, 0.11, -0.28, 2.21], energy)
    np.testing.assert_allclose(ecal_of(torch.from_numpy(energy)).numpy(), polynomial, rtol=1e-12)
    np.testing.assert_allclose(ecal_of(torch.from_numpy(energy), "double", 100.0).numpy(), 200 * energy, rtol=1e-12)


def test_samples_are_noise_times_energy() -> None:
    made, energy = sample(4000, 200, torch.Generator().manual_seed(0))
    assert float(energy.min()) >= 0.1 and float(energy.max()) <= 5.0
    assert float(energy.mean()) == pytest.approx(2.55, abs=0.1)
    noise = made / energy[:, None]
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(noise.std()) == pytest.approx(1.0, abs=0.01)
    again, _ = sample(4000, 200, torch.Generator().manual_seed(0))
    assert torch.equal(made, again)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_labels_are_flipped_as_often_as_told(label: float) -> None:
    torch.manual_seed(0)
    labels = torch.full((20_000,), label)
    assert torch.equal(flipped(labels, 0.0), labels)
    changed = (flipped(labels, 0.05) != labels).float().mean()
    assert float(changed) == pytest.approx(0.05, abs=0.01)
