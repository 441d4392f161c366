"""How the learning rate falls after its peak: as a factor of the peak, by how far the run is.

Written ``30,60,80`` (a tenth from each of these epochs on), ``every:30``, ``41:0.125,61:0.025`` (these factors),
``cosine``, ``polynomial:2``, ``exponential:0.94`` or ``none``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Literal, NamedTuple

from hora.errors import UsageError

__all__ = ["Decay", "parse_decay"]

POLYNOMIAL_END = 1e-4  # the published recipes end at this rate, not at zero
TENTH = 0.1


class Decay(NamedTuple):
    """
    >>> study = parse_decay("30,60,80")
    >>> [round(study.factor(epoch, 0, 90), 6) for epoch in (0, 29.99, 30, 60, 80, 89)]
    [1.0, 1.0, 0.1, 0.01, 0.001, 0.001]
    """

    kind: Literal["none", "steps", "every", "cosine", "polynomial", "exponential"] = "none"
    number: float = 0.0  # epochs between steps, the power, or the factor an epoch
    steps: tuple[tuple[float, float], ...] = ()  # (epoch, factor from then on)

    def factor(self, epoch: float, warmup_epochs: float, epochs: float) -> float:
        """What the peak is multiplied by at ``epoch``. Smooth decays begin when the warm-up ends."""
        span = max(epochs - warmup_epochs, 1e-12)
        done = min(max(epoch - warmup_epochs, 0.0) / span, 1.0)
        match self.kind:
            case "steps":
                passed = bisect_right([at for at, _ in self.steps], epoch)
                return self.steps[passed - 1][1] if passed else 1.0
            case "every":
                return float(TENTH ** int(epoch // self.number))
            case "cosine":
                return 0.5 * (1.0 + math.cos(math.pi * done))
            case "polynomial":
                return float((1.0 - done) ** self.number)
            case "exponential":
                return float(self.number ** max(epoch - warmup_epochs, 0.0))
        return 1.0

    def rate(self, peak: float, epoch: float, warmup_epochs: float, epochs: float) -> float:
        """The rate itself."""
        end = min(POLYNOMIAL_END, peak) if self.kind == "polynomial" else 0.0
        return end + (peak - end) * self.factor(epoch, warmup_epochs, epochs)

    def __str__(self) -> str:
        if self.kind == "steps":
            tenths = all(math.isclose(f, TENTH ** (i + 1)) for i, (_, f) in enumerate(self.steps))
            return ",".join(f"{at:g}" if tenths else f"{at:g}:{factor:g}" for at, factor in self.steps)
        return f"{self.kind}:{self.number:g}" if self.number else self.kind


_DEFAULTS = {"none": 0.0, "cosine": 0.0, "every": 30.0, "polynomial": 2.0, "exponential": 0.94}


def parse_decay(text: str) -> Decay:
    """A decay as it is written on a command line.

    >>> parse_decay("30,60").steps == ((30.0, 0.1), (60.0, 0.1 ** 2))
    True
    >>> parse_decay("41:0.125,61:0.025").steps
    ((41.0, 0.125), (61.0, 0.025))
    >>> parse_decay("polynomial"), str(parse_decay("every:30"))
    (Decay(kind='polynomial', number=2.0, steps=()), 'every:30')
    """
    word = text.strip().lower()
    name, colon, number = word.partition(":")
    if name in _DEFAULTS:
        value = _number(number, text) if colon else _DEFAULTS[name]
        if (value > 0) != (_DEFAULTS[name] > 0):
            raise UsageError(f"decay {text!r}: {name} takes {'a positive' if _DEFAULTS[name] else 'no'} number.")
        return Decay(name, value)  # type: ignore[arg-type]  # the keys of _DEFAULTS are kinds
    steps = []
    for position, part in enumerate(word.split(",")):
        at, colon, factor = part.partition(":")
        steps.append((_number(at, text), _number(factor, text) if colon else TENTH ** (position + 1)))
    if [at for at, _ in steps] != sorted({at for at, _ in steps}):
        raise UsageError(f"decay {text!r}: the epochs must rise. Write for example 30,60,80.")
    return Decay("steps", steps=tuple(steps))


def _number(text: str, whole: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(
            f"decay {whole!r} is not known. Write epochs such as 30,60,80, with factors such as 41:0.125,61:0.025, "
            f"or one of {', '.join(_DEFAULTS)}."
        )
    return value
