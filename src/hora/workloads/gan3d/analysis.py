"""How much generated showers look like real ones: moments and profiles, in bins of primary energy.

Everything is a sum over events, so workers each look at their share and add up. The definitions are upstream's; what it
left open is decided: a generated shower without energy has no moments and counts only in the profile; cells where no
real shower leaves anything, and bins without events, are left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["BINS_GEV", "Errors", "errors", "moments", "near_a_bin", "profiles", "shapes", "tally"]

BINS_GEV = (100.0, 200.0, 300.0, 400.0)
TOLERANCE_GEV = 5.0
CELLS = 25

_EVENTS, _LIT, _MOMENTS, _PROFILES = 0, 1, slice(2, 8), slice(8, 8 + 3 * CELLS)  # columns of a tally


class Errors(NamedTuple):
    """Mean relative errors; 0 is perfect. Printed as upstream prints its list."""

    total: float
    moment: float
    profile: float

    def text(self) -> str:
        """
        >>> Errors(0.75, 0.25, 0.5).text()
        'Result =  [0.75, 0.25, 0.5]'
        """
        return f"Result =  {list(self)}"


def profiles(showers: Tensor) -> Tensor:
    """The energy in each layer of cells, (events, 3, 25), along the three axes of (events, 25, 25, 25)."""
    return torch.stack([showers.sum(axes) for axes in ((2, 3), (1, 3), (1, 2))], dim=1)


def moments(along: Tensor) -> Tensor:
    """For each profile, (…, 25), the mean position and the mean squared distance from it, (…, 2); 0 without energy.

    >>> moments(torch.tensor([0.0, 1.0, 0.0, 1.0] + [0.0] * 21))
    tensor([2., 1.])
    """
    places = torch.arange(CELLS, dtype=along.dtype)
    share = along / along.sum(-1, keepdim=True).clamp_min(torch.finfo(along.dtype).tiny)
    mean = (share * places).sum(-1)
    return torch.stack([mean, (share * (places - mean[..., None]) ** 2).sum(-1)], dim=-1)


def near_a_bin(energy_gev: Tensor) -> Tensor:
    """Whether the energy is near the middle of some bin.

    >>> near_a_bin(torch.tensor([94.0, 96.0, 304.0, 405.0]))
    tensor([False,  True,  True, False])
    """
    return torch.stack([_in_bin(energy_gev, middle) for middle in BINS_GEV]).any(0)


def _in_bin(energy_gev: Tensor, middle: float) -> Tensor:
    return (energy_gev > middle - TOLERANCE_GEV) & (energy_gev < middle + TOLERANCE_GEV)


def tally(real: Tensor, generated: Tensor, energy_gev: Tensor) -> Tensor:
    """The sums that errors are computed from, (bins, 2, columns): of real showers, and of generated ones of the same
    primary energies. Add those of all batches and workers."""
    found = torch.zeros(len(BINS_GEV), 2, 8 + 3 * CELLS, dtype=torch.float64)
    for bin_sums, middle in zip(found, BINS_GEV, strict=True):
        chosen = _in_bin(energy_gev, middle)
        for sums, showers in zip(bin_sums, (real, generated), strict=True):
            along = profiles(showers[chosen].double())
            sums[_EVENTS] = len(along)
            sums[_LIT] = (along[:, 0].sum(-1) > 0).sum()
            sums[_MOMENTS] = moments(along).sum(0).flatten()
            sums[_PROFILES] = along.sum(0).flatten()
    return found


def errors(sums: Tensor) -> Errors | None:
    """What a tally of all events says; None if no bin has an event.

    >>> showers = torch.rand(8, 25, 25, 25)
    >>> errors(tally(showers, showers, torch.full((8,), 101.0)))
    Errors(total=0.0, moment=0.0, profile=0.0)
    """
    sums = sums[(sums[:, 0, _LIT] > 0)]
    if not len(sums):
        return None
    mean_moments = sums[..., _MOMENTS] / sums[..., _LIT, None].clamp_min(1)
    mean_profiles = sums[..., _PROFILES] / sums[..., _EVENTS, None]
    moment = _relative(mean_moments).nanmean()
    profile = _relative(mean_profiles).unflatten(1, (3, CELLS)).nanmean(2).mean()
    return Errors(float(moment + profile), float(moment), float(profile))


def shapes(sums: Tensor) -> list[dict[str, Any]]:
    """The means themselves, to be looked at, for each bin that has events.

    >>> found = shapes(tally(torch.ones(2, 25, 25, 25), torch.ones(2, 25, 25, 25), torch.full((2,), 101.0)))
    >>> [(shape["gev"], shape["events"], shape["real"]["profiles"][0][3]) for shape in found]
    [(100.0, 2, 625.0)]
    """
    made = []
    for gev, both in zip(BINS_GEV, sums, strict=True):
        if both[0, _EVENTS] > 0:
            kinds = {
                kind: {
                    "moments": (of[_MOMENTS] / of[_LIT].clamp_min(1)).unflatten(0, (3, 2)).tolist(),
                    "profiles": (of[_PROFILES] / of[_EVENTS].clamp_min(1)).unflatten(0, (3, CELLS)).tolist(),
                }
                for kind, of in zip(("real", "generated"), both, strict=True)
            }
            made.append({"gev": gev, "events": int(both[0, _EVENTS]), **kinds})
    return made


def _relative(means: Tensor) -> Tensor:
    """|real - generated| / real, from (bins, 2, columns); nan where there is nothing real."""
    real, generated = means.unbind(1)
    return torch.where(real == 0, torch.nan, (real - generated).abs() / real.abs())
