"""Momentum correction: when the learning rate jumps, a velocity that has the old rate folded into it must jump with it.

Goyal et al. (remark 2). PyTorch's SGD keeps the rate out of the velocity and needs nothing; Keras's and MXNet's fold it
in. Horovod's callbacks scale the momentum for the one batch on which the rate changes; ``hora.keras`` scales the
velocity, because Keras 3 compiles the momentum into the step.
"""

from __future__ import annotations

__all__ = ["MomentumCorrection"]


class MomentumCorrection:
    """Gives the momentum to use for each batch, told its learning rate.

    >>> correct = MomentumCorrection(0.9)
    >>> [round(correct(rate), 3) for rate in (0.1, 0.1, 0.2, 0.2)]
    [0.9, 0.9, 1.8, 0.9]
    """

    def __init__(self, momentum: float) -> None:
        self._momentum, self._last = momentum, 0.0

    def __call__(self, rate: float) -> float:
        last, self._last = self._last, rate
        return self._momentum * rate / last if last and rate != last else self._momentum
