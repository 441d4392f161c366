"""Sizes, rates and shares as people read them."""

from __future__ import annotations

__all__ = ["plural", "rate_text", "share_text", "size_text"]


def size_text(nbytes: float) -> str:
    """
    >>> [size_text(size) for size in (-1, 12, 4096, 1 << 20, 102_228_128)]
    ['?', '12 B', '4.0 KB', '1.0 MB', '97 MB']
    """
    if nbytes < 0:
        return "?"
    for unit in ("B", "KB", "MB"):
        if nbytes < 1023.5:
            return f"{nbytes:.1f} {unit}" if unit != "B" and nbytes < 9.95 else f"{nbytes:.0f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GB"


def rate_text(bytes_per_s: float | None) -> str:
    """
    >>> rate_text(3.25e9), rate_text(1.5e6), rate_text(8_200), rate_text(None)
    ('3.25 GB/s', '1.5 MB/s', '8.2 KB/s', '')
    """
    if bytes_per_s is None:
        return ""
    if bytes_per_s < 1e5:
        return f"{bytes_per_s / 1e3:.1f} KB/s"
    return f"{bytes_per_s / 1e9:.2f} GB/s" if bytes_per_s >= 1e8 else f"{bytes_per_s / 1e6:.1f} MB/s"


def share_text(share: float) -> str:
    """
    >>> [share_text(share) for share in (0.4567, 0.031, 0.0004, 0.0)]
    ['46 %', '3.1 %', '<0.1 %', '0 %']
    """
    if 0 < share < 0.001:
        return "<0.1 %"
    return f"{share:.1%}".replace("%", " %") if 0 < share < 0.0995 else f"{share:.0%}".replace("%", " %")


def plural(count: float, one: str, many: str = "") -> str:
    """
    >>> plural(1.02, "batch", "batches"), plural(1200, "operation"), plural(2.5, "batch", "batches")
    ('1 batch', '1,200 operations', '2.5 batches')
    """
    number = f"{count:,.0f}" if count >= 100 else f"{count:,.1f}".removesuffix(".0")
    return f"{number} {one if number == '1' else many or one + 's'}"
