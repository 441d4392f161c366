"""The batches that do not fit into memory: once one did not, larger ones of the same kind are not tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["MemoryLimits"]

# Options that change nothing about what a run needs of memory; points that differ in others are of another kind.
_WEIGHTLESS = {
    "batch", "lr", "base_batch", "rule", "warmup", "decay", "weight_decay", "decay_weights_only", "momentum", "l2",
    "label_smoothing", "epochs", "seed", "max_steps", "log_every", "save_every", "keep", "zero_gamma", "small_fc",
}  # fmt: skip


class MemoryLimits:
    """
    >>> limits = MemoryLimits()
    >>> limits.learn({"batch": 512, "lr": 0.1, "network": "v2"})
    >>> limits.refuses({"batch": 512, "lr": 0.2, "network": "v2"}), limits.refuses({"batch": 1024, "network": "v2"})
    (512, 512)
    >>> limits.refuses({"batch": 256, "network": "v2"}) or limits.refuses({"batch": 1024, "network": "v1"})
    """

    def __init__(self) -> None:
        self._least: dict[tuple[tuple[str, str], ...], int] = {}

    def learn(self, point: Mapping[str, Any]) -> None:
        """This point did not fit."""
        batch, kind = point["batch"], _kind(point)
        self._least[kind] = min(batch, self._least.get(kind, batch))

    def refuses(self, point: Mapping[str, Any]) -> int | None:
        """The batch that did not fit, if this point's is as large or larger; None if it may be tried."""
        least = self._least.get(_kind(point))
        return least if least is not None and point["batch"] >= least else None

    def __iter__(self) -> Any:
        """(kind in words, the smallest batch that did not fit)."""
        return ((", ".join(f"{k} {v}" for k, v in kind), batch) for kind, batch in self._least.items())


def _kind(point: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(value)) for name, value in point.items() if name not in _WEIGHTLESS))
