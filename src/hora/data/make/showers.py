"""Electron showers in a calorimeter that nobody built, as EleEscan files of 3DGAN's layout.

How deep a shower reaches follows a gamma distribution whose maximum lies deeper as the logarithm of the energy grows,
with the fluctuations from shower to shower of Grindhammer and Peters (arXiv:hep-ex/0001020), for tungsten. Across it, a
narrow core and a wide halo fall off exponentially, both wider with depth. Cells collect a random number of particles,
so the measured sum fluctuates as the root of the energy. Its mean is the relation that 3DGAN trains with; what leaves
through the back is seen by the HCAL.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hora.data.make.generate import Made, generate, over_processes, part_rng
from hora.data.once import StatusReporter
from hora.data.showers import CELLS, EVENTS_PER_FILE, write_showers
from hora.errors import UsageError

__all__ = ["ECAL_RELATION", "ENERGY_RANGE_GEV", "draw_showers", "expected_ecal", "make_showers"]

PART = 50  # events with random numbers of their own
_BYTES = 25_000  # an event in its file, packed, about
_REVISION = 1  # of what is drawn: data of another one is other data

ENERGY_RANGE_GEV = (10.0, 500.0)
ECAL_RELATION = (0.0018, -0.023, 0.11, -0.28, 2.21)  # sum over energy, as a polynomial of hundreds of GeV

_CRITICAL_GEV, _CHARGE = 0.0080, 74  # of tungsten: where losses by radiation and ionisation are equal; protons
_LAYER_X0 = 0.9  # radiation lengths a layer
_PARTICLES_PER_GEV = 35.0  # in the whole of a shower, each with a deposit of its own size: 24 % at 1 GeV
_UNEVENNESS = 0.01  # of the calorimeter itself, whatever the energy
_CORE_CELLS, _HALO_CELLS = 0.45, 2.1  # lengths over which they fall off, before the maximum
_CORE_SHARE = 0.82
_HCAL_CELLS = (5, 5, 60)
_CORE_WINDOW = slice(6, 19)  # cells further out see nothing of it

_Floats = npt.NDArray[np.float32]
_Doubles = npt.NDArray[np.float64]


class Drawn(NamedTuple):
    """``ecal`` (events, 25, 25, 25), depth last; ``hcal`` (events, 5, 5, 60); ``energy`` (events,) in GeV."""

    ecal: _Floats
    hcal: _Floats
    energy: _Floats


def make_showers(
    folder: Path,
    *,
    samples: int = 20_000,
    per_file: int = EVENTS_PER_FILE,
    seed: int = 42,
    jobs: int = 1,
    reporter: StatusReporter | None = None,
) -> Made:
    """Write ``samples`` showers of 10 to 500 GeV, ``per_file`` in each of the files ``EleEscan_0001.h5`` and so on.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     made = make_showers(Path(place) / "showers", samples=10, per_file=5)
    ...     sorted(path.name for path in made.folder.glob("*.h5"))
    ['EleEscan_0001.h5', 'EleEscan_0002.h5']
    """
    if samples < 1 or per_file < 1:
        raise UsageError(f"{samples} samples, {per_file} a file: there must be at least one of each.")

    def fill(folder: Path, reporter: StatusReporter) -> None:
        counts = [min(per_file, samples - first) for first in range(0, samples, per_file)]
        parts = [(file, number) for file, count in enumerate(counts) for number in range(-(-count // PART))]
        done = 0
        with contextlib.closing(over_processes(functools.partial(_draw, seed), parts, jobs)) as drawn:
            for file, count in enumerate(counts, 1):
                ecal, hcal = np.empty((count, *CELLS), np.float32), np.empty((count, *_HCAL_CELLS), np.float32)
                energy = np.empty(count, np.float32)
                for first in range(0, count, PART):
                    place, some = slice(first, first + PART), next(drawn)
                    cut = slice(min(PART, count - first))
                    ecal[place], hcal[place], energy[place] = some.ecal[cut], some.hcal[cut], some.energy[cut]
                    done += cut.stop
                    reporter.progress("making showers", done, samples, "events")
                write_showers(folder / f"EleEscan_{file:04d}.h5", ecal, energy, hcal)

    facts = {"generator": "showers", "revision": _REVISION, "seed": seed, "samples": samples, "per_file": per_file}
    return generate(folder, fill, facts, nbytes=samples * _BYTES, reporter=reporter)


def expected_ecal(energy: npt.ArrayLike) -> _Doubles:
    """The mean sum over all cells of showers of these energies in GeV.

    >>> expected_ecal([100, 500]).round(3).tolist()
    [2.019, 9.05]
    """
    hundreds = np.asarray(energy, np.float64) / 100
    return hundreds * np.polyval(ECAL_RELATION, hundreds)


def _draw(seed: int, part: tuple[int, int]) -> Drawn:
    return draw_showers(seed, *part)


def draw_showers(seed: int, file: int, number: int) -> Drawn:
    """The events of one part of a file.

    >>> drawn = draw_showers(42, 0, 0)
    >>> drawn.ecal.shape, drawn.energy.shape
    ((50, 25, 25, 25), (50,))
    """
    rng = part_rng(seed, file, number)
    energy = rng.uniform(*ENERGY_RANGE_GEV, PART)
    depth, leaked, maximum = _longitudinal(energy, rng)
    particles = energy * _PARTICLES_PER_GEV
    mean = _lateral(maximum, rng)
    mean *= (particles[:, None] * depth).astype(np.float32)[:, None, None, :]
    # Most cells get nothing. If the first of a Poisson process's arrivals comes in time, the others are drawn: -log(u)
    # is when it comes.
    u = rng.random(mean.shape, np.float32)
    hit = np.flatnonzero(u > np.exp(-mean))
    left = mean.reshape(-1)[hit] + np.log(u.reshape(-1)[hit])
    counted = 1 + rng.poisson(np.maximum(left, 0))
    scale = (expected_ecal(energy) / particles * rng.normal(1, _UNEVENNESS, PART)).astype(np.float32)
    ecal = np.zeros(mean.shape, np.float32)
    deposits = rng.standard_gamma(counted.astype(np.float32), dtype=np.float32)  # each of a size of its own
    ecal.reshape(-1)[hit] = deposits * scale[hit // (mean.size // PART)]
    return Drawn(ecal, _behind(energy * leaked, rng), energy.astype(np.float32))


def _longitudinal(energy: _Doubles, rng: np.random.Generator) -> tuple[_Doubles, _Doubles, _Doubles]:
    """Each layer's share of what is measured, the share that leaves through the back, and where the maximum is.

    Depths are in radiation lengths.
    """
    y = np.log(energy / _CRITICAL_GEV)
    mean_maximum, mean_shape = np.log(y - 0.812), np.log(0.81 + (0.458 + 2.26 / _CHARGE) * y)
    spread_maximum, spread_shape = 1 / (-1.4 + 1.26 * y), 1 / (-0.58 + 0.86 * y)
    together = 0.705 - 0.023 * y
    one, other = rng.standard_normal((2, len(energy)))
    maximum = np.exp(mean_maximum + spread_maximum * one)
    shape = np.exp(mean_shape + spread_shape * (together * one + np.sqrt(1 - together**2) * other))
    shape = np.maximum(shape, 1.1)
    rate = (shape - 1) / maximum
    reached = _gamma_cdf(shape, rate)
    return np.diff(reached, axis=1) / reached[:, -1:], 1 - reached[:, -1], maximum


def _gamma_cdf(shape: _Doubles, rate: _Doubles) -> _Doubles:
    """How much of a gamma distribution lies before each layer's edges: summed in small steps, to where it has ended."""
    fine, layers = 8, CELLS[2]
    t = (np.arange(4 * layers * fine) + 0.5) * (_LAYER_X0 / fine)
    log_density = (shape - 1)[:, None] * np.log(t) - rate[:, None] * t
    density = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    summed = np.concatenate([np.zeros((len(shape), 1)), np.cumsum(density, axis=1)], axis=1)
    before: _Doubles = summed[:, : layers * fine + 1 : fine] / summed[:, -1:]
    return before


def _lateral(maximum: _Doubles, rng: np.random.Generator) -> _Floats:
    """How each layer's share is divided over its cells: (events, 25, 25, 25), the sum over x and y is one.

    The particle enters anywhere in the middle cell. A core is narrower than a cell, whose share is therefore taken at
    four points in it.
    """
    middle = rng.uniform(-0.5, 0.5, (2, PART)).astype(np.float32) + np.float32((CELLS[0] - 1) / 2)
    layers = (np.arange(CELLS[2]) + 0.5) * _LAYER_X0
    stage = (layers / maximum[:, None]).astype(np.float32)  # 1 at the maximum
    core_length = np.float32(_CORE_CELLS) * (np.float32(0.7) + np.float32(0.3) * stage)
    halo_length = np.float32(_HALO_CELLS) * (np.float32(0.6) + np.float32(0.4) * stage)
    core_share = np.float32(_CORE_SHARE) * np.exp(np.float32(-0.25) * np.maximum(stage - 1, 0))
    across = _exponential(halo_length, 1 - core_share, middle, slice(CELLS[0]), (0.0,))
    across[:, _CORE_WINDOW, _CORE_WINDOW] += _exponential(core_length, core_share, middle, _CORE_WINDOW, (-0.25, 0.25))
    return across


def _exponential(length: _Floats, share: _Floats, middle: _Floats, window: slice, points: tuple[float, ...]) -> _Floats:
    cells = np.arange(CELLS[0], dtype=np.float32)[window]
    profile = np.zeros((PART, len(cells), len(cells), CELLS[2]), np.float32)
    for off_x in points:
        for off_y in points:
            x, y = (cells + np.float32(off) - at[:, None] for off, at in zip((off_x, off_y), middle, strict=True))
            radius = np.sqrt(x[:, :, None] ** 2 + y[:, None, :] ** 2)
            profile += np.exp(radius[..., None] * (-1 / length)[:, None, None, :])
    scale: _Floats = share / profile.sum(axis=(1, 2))
    profile *= scale[:, None, None, :]
    return profile


def _behind(leaked_gev: _Doubles, rng: np.random.Generator) -> _Floats:
    """What the HCAL sees: in its first layers, mostly in the middle."""
    layers = np.exp(-np.arange(_HCAL_CELLS[2]) / 1.5)
    tower = np.exp(-np.hypot(*np.meshgrid(np.arange(-2, 3), np.arange(-2, 3))) / 0.5)
    shares = tower[:, :, None] / tower.sum() * layers / layers.sum()
    counted = rng.poisson(leaked_gev[:, None, None, None] * shares * _PARTICLES_PER_GEV)
    seen: _Floats = (counted * (0.02 / _PARTICLES_PER_GEV)).astype(
        np.float32
    )  # on the ECAL's scale: about 2 for 100 GeV
    return seen
