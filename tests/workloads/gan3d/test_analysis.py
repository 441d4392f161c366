"""Moments and profiles against a second implementation, written with numpy from upstream's description."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from hora.workloads.gan3d.analysis import errors, tally

Doubles = npt.NDArray[np.float64]
AXES = ((2, 3), (1, 3), (1, 2))  # what is summed over for the profile along x, y, z


def numpys_moments(showers: Doubles) -> Doubles:
    """Mean over events of the first moment and the second central one, for each axis: (3, 2)."""
    total = showers.sum((1, 2, 3))
    found = []
    for axes in AXES:
        profile = showers.sum(axes)
        places = np.arange(profile.shape[1])
        first = np.array([np.dot(row, places) for row in profile]) / total
        second = (
            np.array([np.dot(row, (places - middle) ** 2) for row, middle in zip(profile, first, strict=True)]) / total
        )
        found.append([first.mean(), second.mean()])
    return np.array(found)


def numpys_errors(real: Doubles, generated: Doubles, energy: Doubles, bins: list[float]) -> list[float]:
    moment, profile = [], []
    for middle in bins:
        near = np.where((energy > middle - 5) & (energy < middle + 5))[0]
        act, gan = real[near], generated[near]
        a, g = numpys_moments(act), numpys_moments(gan)
        moment.append(np.mean(np.abs((a - g) / a)))
        of_axes = []
        for axes in AXES:
            a, g = act.sum(axes).mean(0), gan.sum(axes).mean(0)
            of_axes.append(np.mean(np.abs((a - g) / a)))
        profile.append(np.mean(of_axes))
    return [np.mean(moment) + np.mean(profile), np.mean(moment), np.mean(profile)]


def random_showers(events: int, seed: int) -> tuple[Doubles, Doubles, Doubles]:
    rng = np.random.default_rng(seed)
    energy = rng.choice([96.0, 103.0, 200.0, 297.0, 404.0, 250.0, 405.5], events)
    real, generated = rng.random((2, events, 25, 25, 25)) * energy[:, None, None, None]
    return real, generated**2, energy


def tensors(*arrays: Doubles) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def test_errors_are_numpys() -> None:
    drawn = random_showers(60, seed=1)
    found = errors(tally(*tensors(*drawn)))
    assert list(found or []) == pytest.approx(numpys_errors(*drawn, [100, 200, 300, 400]), rel=1e-9)


def test_shares_add_up() -> None:
    """Three workers with uneven shares find what one finds."""
    drawn = random_showers(40, seed=2)
    shares = [tally(*tensors(*(array[rank::3] for array in drawn))) for rank in range(3)]
    alone = errors(tally(*tensors(*drawn)))
    assert list(errors(sum(shares, torch.zeros(1))) or []) == pytest.approx(list(alone or []), rel=1e-12)


def test_bins_without_events_are_left_out() -> None:
    real, generated, energy = random_showers(60, seed=3)
    only = np.isin(energy, [200.0, 404.0])
    chosen = real[only], generated[only], energy[only]
    found = errors(tally(*tensors(*chosen)))
    assert list(found or []) == pytest.approx(numpys_errors(*chosen, [200, 400]), rel=1e-9)
    assert errors(tally(*tensors(real[:2], generated[:2], np.array([250.0, 405.5])))) is None


def test_dark_showers_have_no_moments_but_count_in_the_profile() -> None:
    real, _, energy = random_showers(20, seed=4)
    half = real.copy()
    half[::2] = 0
    energy[:] = 200.0
    found = errors(tally(*tensors(real, half, energy)))
    assert found is not None
    lit = numpys_moments(real[1::2]), numpys_moments(real)
    assert found.moment == pytest.approx(np.mean(np.abs((lit[1] - lit[0]) / lit[1])), rel=1e-9)
    everything_dark = errors(tally(*tensors(real, np.zeros_like(real), energy)))
    assert everything_dark is not None and everything_dark.moment == 1.0 and everything_dark.profile == 1.0


def test_cells_that_nothing_real_reaches_are_left_out() -> None:
    real, generated, energy = random_showers(10, seed=5)
    energy[:] = 300.0
    real[:, :3] = 0
    found = errors(tally(*tensors(real, generated, energy)))
    a, g = real.sum((2, 3)).mean(0)[3:], generated.sum((2, 3)).mean(0)[3:]
    others = [np.mean(np.abs(1 - generated.sum(x).mean(0) / real.sum(x).mean(0))) for x in AXES[1:]]
    assert found is not None
    assert found.profile == pytest.approx(np.mean([np.mean(np.abs((a - g) / a)), *others]), rel=1e-9)
