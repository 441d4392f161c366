"""Quantities as people read them, written the same way by every command: three digits and a unit.

Sizes are in powers of 1024, as ``ls -h`` and the benchmarks of this field have them; links are in bits, as
networks are.
"""

from __future__ import annotations

__all__ = [
    "count_text", "duration_text", "how_long", "link_text", "micros_text", "plural", "rate_text", "ratio_text",
    "share_text", "size_text", "time_text",
]  # fmt: skip


def size_text(nbytes: float) -> str:
    """
    >>> [size_text(size) for size in (-1, 12, 4096, 1536, 1 << 20, 1023 << 10, 102_228_128, 3 << 30, 5 << 40)]
    ['?', '12 B', '4 KB', '1.5 KB', '1 MB', '1023 KB', '97.5 MB', '3 GB', '5 TB']
    """
    if nbytes < 0:
        return "?"
    if nbytes < 1023.5:
        return f"{nbytes:.0f} B"
    power = next((power for power in (1, 2, 3) if nbytes < 1023.5 * 1024**power), 4)
    scaled = nbytes / 1024**power
    number = f"{scaled:.0f}" if scaled >= 99.95 else f"{scaled:.3g}"
    return f"{number} {('KB', 'MB', 'GB', 'TB')[power - 1]}"


def rate_text(bytes_per_s: float | None) -> str:
    """
    >>> rate_text(3 << 30), rate_text(1.5e6), rate_text(None)
    ('3 GB/s', '1.43 MB/s', '')
    """
    return "" if bytes_per_s is None else f"{size_text(bytes_per_s)}/s"


def link_text(mbit_per_s: float) -> str:
    """
    >>> link_text(94.2), link_text(1234.0)
    ('94 Mbit/s', '1.2 Gbit/s')
    """
    return f"{mbit_per_s:.0f} Mbit/s" if mbit_per_s < 1000 else f"{mbit_per_s / 1e3:.1f} Gbit/s"


def time_text(seconds: float) -> str:
    """What was measured, from microseconds to days.

    >>> [time_text(t) for t in (2.345e-6, 227.1e-6, 0.04123, 0.9999, 1.23456, 45.0)]
    ['2.35 µs', '227 µs', '41.2 ms', '1.00 s', '1.23 s', '45.0 s']
    >>> time_text(59.99), time_text(4000)
    ('1 min 0 s', '1 h 7 min')
    """
    if abs(seconds) >= 59.95:
        return duration_text(seconds)
    if not seconds:
        return "0 s"
    unit, scale = ("µs", 1e6) if abs(seconds) < 999.5e-6 else ("ms", 1e3) if abs(seconds) < 0.9995 else ("s", 1.0)
    scaled = seconds * scale
    digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
    return f"{scaled:.{digits}f} {unit}"


def duration_text(seconds: float) -> str:
    """How long a run takes: to the second, and from ten minutes on to the minute.

    >>> [duration_text(t) for t in (12.3, 75.2, 23_640, 534_000)]
    ['12 s', '1 min 15 s', '6 h 34 min', '6 d 4 h 20 min']
    """
    whole = round(seconds)
    if whole < 600:
        return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
    minutes = round(whole / 60)
    days, hours, rest = minutes // 1440, minutes // 60 % 24, minutes % 60
    return " ".join(part for part in (f"{days} d" * (days > 0), f"{hours} h" * (minutes >= 60), f"{rest} min") if part)


def micros_text(micros: float) -> str:
    """``time_text`` of what is kept in microseconds, as timelines and benchmarks are."""
    return time_text(micros / 1e6)


def share_text(share: float) -> str:
    """
    >>> [share_text(share) for share in (0.4567, 0.031, 0.0004, 0.0)]
    ['46 %', '3.1 %', '<0.1 %', '0 %']
    """
    if 0 < share < 0.001:
        return "<0.1 %"
    return f"{share:.1%}".replace("%", " %") if 0 < share < 0.0995 else f"{share:.0%}".replace("%", " %")


def ratio_text(ratio: float | None) -> str:
    """
    >>> ratio_text(98.7), ratio_text(4.256), ratio_text(0.75), ratio_text(None)
    ('99x', '4.3x', '0.75x', '')
    """
    if ratio is None:
        return ""
    return f"{ratio:.0f}x" if ratio >= 9.95 else f"{ratio:.1f}x" if ratio >= 1 else f"{ratio:.2f}x"


def count_text(value: float | None) -> str:
    """
    >>> count_text(4812.3), count_text(81.26), count_text(3.217), count_text(None)
    ('4,812', '81.3', '3.22', '')
    """
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def how_long(epochs: float, steps: float) -> str:
    """How long a training was: in epochs, or in steps if there is not one whole epoch. ``steps``: nan if not known.

    >>> how_long(2, 60), how_long(1.5, 45), how_long(0.0667, 2), how_long(0.5, float("nan"))
    ('2 epochs', '1.5 epochs', '2 steps', '0.5 epochs')
    """
    if 0 < epochs < 1 and steps >= 0.5:
        return plural(round(max(1, steps)), "step")
    return f"{epochs:.3g} {'epoch' if epochs == 1 else 'epochs'}"


def plural(count: float, one: str, many: str = "") -> str:
    """
    >>> plural(1.02, "batch", "batches"), plural(1200, "operation"), plural(2.5, "batch", "batches")
    ('1 batch', '1,200 operations', '2.5 batches')
    """
    number = f"{count:,.0f}" if count >= 100 else f"{count:,.1f}".removesuffix(".0")
    return f"{number} {one if number == '1' else many or one + 's'}"
