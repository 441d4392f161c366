"""Means over seeds, and whether two of them differ by more than chance: Welch's interval of a difference of means."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

__all__ = ["Difference", "difference", "mean", "spread"]

# Student's t that leaves 2.5 % above, by degrees of freedom
_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 15: 2.131,
      20: 2.086, 30: 2.042, 60: 2.000, 120: 1.980}  # fmt: skip


class Difference(msgspec.Struct, frozen=True):
    """The difference of two means, with its 95 % interval ``low`` to ``high``; nan with a single seed."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.low)

    @property
    def beyond_chance(self) -> bool:
        return self.known and (self.low > 0 or self.high < 0)


def mean(values: Sequence[float]) -> float:
    """nan of none."""
    return statistics.fmean(values) if values else math.nan


def spread(values: Sequence[float]) -> float:
    """The standard deviation; nan of fewer than two.

    >>> spread([1.0, 3.0]), spread([1.0])
    (1.4142135623730951, nan)
    """
    return statistics.stdev(values) if len(values) > 1 else math.nan


def difference(left: Sequence[float], right: Sequence[float]) -> Difference:
    """How much larger the left mean is.

    >>> found = difference([0.95, 0.96, 0.97], [0.90, 0.91, 0.92])
    >>> round(found.value, 3), round(found.low, 3), round(found.high, 3), found.beyond_chance
    (0.05, 0.027, 0.073, True)
    >>> difference([0.95], [0.90]).known
    False
    """
    value = mean(left) - mean(right)
    if len(left) < 2 or len(right) < 2:
        return Difference(value)
    parts = [statistics.variance(side) / len(side) for side in (left, right)]
    error = math.sqrt(sum(parts))
    if not error:
        return Difference(value, value, value)
    freedom = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (left, right), strict=True))
    reach = _t(freedom) * error
    return Difference(value, value - reach, value + reach)


def _t(freedom: float) -> float:
    """Of the next smaller number of degrees in the table, which is on the safe side; between the small ones, a line.

    >>> _t(4.0), round(_t(2.5), 3), _t(1000)
    (2.776, 3.742, 1.98)
    """
    below = max((known for known in _T if known <= freedom), default=1)
    if below < 10 and freedom > below:
        return _T[below] + (freedom - below) * (_T[below + 1] - _T[below])
    return _T[below]
