"""Generated showers: 3DGAN's layout, its energy relation, and the physics that a profile shows."""

from __future__ import annotations

import math
from pathlib import Path

import h5py
import numpy as np
import pytest

from hora.data.make.showers import Drawn, draw_showers, expected_ecal, make_showers
from hora.data.showers import ShowerFiles, find_shower_files
from hora.errors import UsageError


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    """A thousand showers."""
    return Drawn(*(np.concatenate(arrays) for arrays in zip(*(draw_showers(5, 0, n) for n in range(20)), strict=True)))


def between(drawn: Drawn, low: float, high: float) -> Drawn:
    chosen = (drawn.energy >= low) & (drawn.energy < high)
    return Drawn(drawn.ecal[chosen], drawn.hcal[chosen], drawn.energy[chosen])


def test_3dgans_layout(tmp_path: Path) -> None:
    folder = make_showers(tmp_path / "showers", samples=25, per_file=10, seed=3).folder
    files = find_shower_files(folder)
    assert [path.name for path in files] == ["EleEscan_0001.h5", "EleEscan_0002.h5", "EleEscan_0003.h5"]
    with h5py.File(files[2]) as file:
        assert file["ECAL"].shape == (5, 25, 25, 25) and file["HCAL"].shape == (5, 5, 5, 60)
        assert file["target"].shape[0] == 5 and set(file["target"][:, 0]) == {11}
        assert ((file["target"][:, 1] >= 10) & (file["target"][:, 1] <= 500)).all()
        assert np.isfinite(file["ECAL"][()]).all() and (file["ECAL"][()] >= 0).all()
    everything = ShowerFiles(files)
    assert len(everything) == 25
    np.testing.assert_array_equal(everything.read([10]).ecal[0], draw_showers(3, 1, 0).ecal[0])


def test_the_same_seed_gives_the_same_bytes_by_any_number_of_processes(tmp_path: Path) -> None:
    one, two, other = (
        {path.name: path.read_bytes() for path in find_shower_files(made.folder)}
        for seed, jobs in ((1, 1), (1, 2), (2, 1))
        for made in [make_showers(tmp_path / f"{seed}-{jobs}", samples=70, per_file=60, seed=seed, jobs=jobs)]
    )
    assert one == two
    assert one != other


def test_the_relation_of_the_facts() -> None:
    for hundreds in (0.1, 1.0, 2.5, 5.0):
        by_hand = hundreds * (2.21 - 0.28 * hundreds + 0.11 * hundreds**2 - 0.023 * hundreds**3 + 0.0018 * hundreds**4)
        assert float(expected_ecal(100 * hundreds)) == pytest.approx(by_hand)


def test_sums_follow_it_and_fluctuate_as_the_root_of_the_energy(drawn: Drawn) -> None:
    for low, high in ((10, 100), (100, 250), (250, 500)):
        some = between(drawn, low, high)
        ratio = some.ecal.sum(axis=(1, 2, 3), dtype=np.float64) / expected_ecal(some.energy)
        assert ratio.mean() == pytest.approx(1, abs=0.01)
        # Each of 35 particles a GeV leaves an exponential deposit: twice the variance of counting; and 1 % besides.
        expected = math.sqrt((2 / 35 / some.energy).mean() + 0.01**2)
        assert ratio.std() == pytest.approx(expected, rel=0.25)


def test_depth_grows_with_the_logarithm_of_the_energy(drawn: Drawn) -> None:
    profile = drawn.ecal.sum(axis=(1, 2), dtype=np.float64)
    depth = (profile * (np.arange(25) + 0.5)).sum(axis=1) / profile.sum(axis=1) * 0.9  # radiation lengths
    slope, _ = np.polyfit(np.log(drawn.energy), depth, 1)
    assert 0.8 < slope < 1.2  # one radiation length for every e-fold, less what leaves through the back
    at_100 = between(drawn, 80, 125)
    mean = at_100.ecal.sum(axis=(0, 1, 2), dtype=np.float64)
    y = math.log(100 / 0.008)
    maximum, shape = y - 0.812, 0.81 + (0.458 + 2.26 / 74) * y  # Grindhammer and Peters, tungsten
    t = (np.arange(25) + 0.5) * 0.9
    gamma = t ** (shape - 1) * np.exp(-(shape - 1) / maximum * t)
    np.testing.assert_allclose(mean / mean.sum(), gamma / gamma.sum(), atol=0.012)
    assert mean.argmax() == pytest.approx(maximum / 0.9 - 0.5, abs=1.2)


def test_across_there_is_a_core_and_a_halo(drawn: Drawn) -> None:
    flat = drawn.ecal.sum(axis=(0, 3), dtype=np.float64)
    np.testing.assert_allclose(flat.sum(axis=0), flat.sum(axis=1), rtol=0.15)  # as wide as it is high
    assert np.unravel_index(flat.argmax(), flat.shape) == (12, 12)
    along = flat[12, 12:] / flat.sum()
    core, halo = (
        -1 / np.polyfit(range(3), np.log(along[:3]), 1)[0],
        -1 / np.polyfit(range(8), np.log(along[4:12]), 1)[0],
    )
    assert core < 1 and 2 < halo < 4  # cells over which they fall to a third


def test_most_cells_are_empty_and_more_leaks_at_high_energies(drawn: Drawn) -> None:
    low, high = between(drawn, 10, 60), between(drawn, 400, 500)
    assert 0.01 < (low.ecal > 1e-6).mean() < (high.ecal > 1e-6).mean() < 0.25
    assert (high.hcal.sum() / high.energy.sum()) > 2 * (low.hcal.sum() / low.energy.sum())


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"per_file": 0}])
def test_wrong_numbers_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="at least one"):
        make_showers(tmp_path / "showers", **wrong)
