"""Figures as people read them: three digits and a unit, one digit and a cross."""

from __future__ import annotations

__all__ = ["ratio_text", "time_text"]


def time_text(micros: float) -> str:
    """Three digits and a unit.

    >>> [time_text(t) for t in (2.345, 227.1, 980.4, 41_230.0, 1_234_567.0)]
    ['2.35 µs', '227 µs', '980 µs', '41.2 ms', '1.23 s']
    """
    for limit, unit in ((999.5, "µs"), (999_500.0, "ms"), (float("inf"), "s")):
        if micros < limit:
            scaled = micros / {"µs": 1.0, "ms": 1e3, "s": 1e6}[unit]
            digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
            return f"{scaled:.{digits}f} {unit}"
    raise AssertionError("unreachable")


def ratio_text(ratio: float | None) -> str:
    """
    >>> ratio_text(98.7), ratio_text(4.256), ratio_text(0.75), ratio_text(None)
    ('99x', '4.3x', '0.75x', '')
    """
    if ratio is None:
        return ""
    return f"{ratio:.0f}x" if ratio >= 9.95 else f"{ratio:.1f}x" if ratio >= 1 else f"{ratio:.2f}x"
