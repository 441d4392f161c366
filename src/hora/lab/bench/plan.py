"""What a benchmark is to measure, and what it found: the file that tells workers their task, and ``--json``; typed."""

from __future__ import annotations

import statistics
from typing import Literal, NamedTuple

import msgspec

from hora.errors import UsageError

__all__ = [
    "BATCHES",
    "CONTENDERS",
    "DEFAULT_SIZES",
    "FRAMEWORKS",
    "GRADIENTS",
    "LABELS",
    "LEARNING_RATE",
    "MOMENTUM",
    "PROGRESS",
    "TRAININGS",
    "TRAIN_LABELS",
    "Cell",
    "Plan",
    "RankReport",
    "Result",
    "Row",
    "Training",
    "cell",
    "merge",
    "parse_size",
    "size_text",
]

LABELS = {
    "hora": "Hora",
    "hora_shared": "Hora shared",
    "hora_bf16": "Hora bf16",
    "gloo": "Gloo",
    "mpi": "Open MPI",
    "memcpy": "memcpy",
}
"""Every contender of the collective benchmarks, in the order of their columns."""

TRAIN_LABELS = {
    "limit": "limit",
    "in_step": "in step",
    "hora": "Hora",
    "ddp": "DDP",
    "ddp_tuned": "DDP tuned",
    "horovod": "Horovod",
}
"""Every contender of `hora bench train`. The limit is training without communicating; in step, the same but meeting."""


class Training(NamedTuple):
    """A row of `hora bench train`: what it is called, and how many images a worker takes in one step."""

    title: str
    images: int = 0


TRAININGS = {
    "resnet50": Training("ResNet-50, batch 4, 64x64", 4),
    "mlp": Training("MLP 784-1024-1024-10, batch 64", 64),
    "mnist": Training("MNIST CNN, batch 64", 64),
    "gradients": Training("161 gradients, trivial backward"),
}
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax")
LEARNING_RATE, MOMENTUM = 1e-3, 0.9
BATCHES = 8  # different batches, taken in turn
CONTENDERS = tuple(LABELS)
DEFAULT_SIZES = (4, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
GRADIENTS = "161 gradients"  # the one row of that benchmark
PROGRESS = "@bench "  # starts a line of progress in a worker's output
SCHEMA = 1


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers are to do. ``round_s`` is how long one contender's turn should last: one call at least."""

    bench: Literal["allreduce", "gradients", "train"]
    contenders: tuple[str, ...]
    models: tuple[str, ...] = ()  # for train
    framework: str = "torch"  # for train
    sizes: tuple[int, ...] = ()  # bytes, for allreduce
    rounds: int = 21
    round_s: float = 0.03
    seed: int = 1


class RankReport(msgspec.Struct, kw_only=True):
    """What one worker measured: seconds per call, by row and contender, one number per round."""

    rank: int
    seconds: dict[str, dict[str, list[float]]]
    calls: dict[str, dict[str, int]]
    versions: dict[str, str]
    notes: list[str] = []


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One contender in one row: microseconds per call of the slowest rank, over all rounds."""

    median_us: float
    low_us: float  # a tenth of the rounds were faster
    high_us: float  # a tenth of the rounds were slower
    rounds: int
    calls_per_round: int = 1

    @property
    def spread(self) -> float:
        """Half the width between the low and the high mark, as a share of the median.

        >>> Cell(median_us=10.0, low_us=9.0, high_us=12.0, rounds=5).spread
        0.15
        """
        return (self.high_us - self.low_us) / 2 / self.median_us if self.median_us else 0.0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table; ``bytes`` is what each rank brings to one call (0 where that means nothing).

    Of training also: how many images a worker takes in one step, what share of the limit's speed each contender reached
    and how much longer than the limit its step took, both as medians over rounds of the figure within a round.
    """

    name: str
    cells: dict[str, Cell]
    bytes: int = 0
    images: int = 0
    shares: dict[str, float] = {}
    added_us: dict[str, float] = {}

    def ratio(self, contender: str, to: str = "hora") -> float | None:
        """How many times longer ``contender`` takes than ``to``.

        >>> row = Row(name="4 B", cells={k: Cell(median_us=v, low_us=v, high_us=v, rounds=1) for k, v in
        ...                              {"hora": 2.0, "gloo": 200.0}.items()})
        >>> row.ratio("gloo"), row.ratio("mpi")
        (100.0, None)
        """
        ours, theirs = self.cells.get(to), self.cells.get(contender)
        return theirs.median_us / ours.median_us if ours and theirs and ours.median_us else None


class Result(msgspec.Struct, kw_only=True):
    """One benchmark's outcome, with all that is needed to repeat it."""

    bench: str
    np: int
    command: str
    rows: list[Row]
    machine: dict[str, str | int]
    versions: dict[str, str]
    notes: list[str] = []
    labels: dict[str, str] = msgspec.field(default_factory=lambda: dict(LABELS))
    started: str = ""
    schema: int = SCHEMA


def cell(per_round_s: list[float], calls: int = 1) -> Cell:
    """Summarise one contender's rounds.

    >>> cell([1e-6, 2e-6, 9e-6]).median_us
    2.0
    """
    micros = sorted(1e6 * s for s in per_round_s)
    last = len(micros) - 1
    return Cell(
        median_us=round(statistics.median(micros), 3),
        low_us=round(micros[round(0.1 * last)], 3),
        high_us=round(micros[round(0.9 * last)], 3),
        rounds=len(micros),
        calls_per_round=calls,
    )


def merge(reports: list[RankReport], sizes: dict[str, int]) -> list[Row]:
    """One row per thing measured. A round took as long as its slowest rank.

    >>> a = RankReport(rank=0, seconds={"x": {"hora": [1e-6, 4e-6]}}, calls={"x": {"hora": 7}}, versions={})
    >>> b = RankReport(rank=1, seconds={"x": {"hora": [2e-6, 2e-6]}}, calls={"x": {"hora": 7}}, versions={})
    >>> merge([a, b], {"x": 4})[0].cells["hora"].median_us
    3.0
    """
    rows = []
    for name, contenders in reports[0].seconds.items():
        cells = {}
        for contender in contenders:
            ranks = [report.seconds[name][contender] for report in reports]
            slowest = [max(round_) for round_ in zip(*ranks, strict=True)]
            cells[contender] = cell(slowest, reports[0].calls[name][contender])
        rows.append(Row(name=name, cells=cells, bytes=sizes.get(name, 0)))
    return rows


def parse_size(text: str) -> int:
    """Bytes from ``4``, ``64K``, ``16MB``; whole float32 elements only.

    >>> [parse_size(s) for s in ("4", "64K", "16MB")]
    [4, 65536, 16777216]
    >>> parse_size("6")
    Traceback (most recent call last):
    hora.errors.UsageError: a size of 6 bytes is not a whole number of float32 elements; use a multiple of 4.
    """
    number = text.strip().upper().removesuffix("B").removesuffix("I").strip()
    shift = {"K": 10, "M": 20, "G": 30}.get(number[-1:], 0)
    digits = number[:-1].strip() if shift else number
    if not (digits.isascii() and digits.isdigit()) or int(digits) == 0:
        raise UsageError(f"{text!r} is not a size; write it like 4, 64K or 16MB.")
    size = int(digits) << shift
    if size % 4:
        raise UsageError(f"a size of {size} bytes is not a whole number of float32 elements; use a multiple of 4.")
    return size


def size_text(size: int) -> str:
    """A size as people say it.

    >>> [size_text(n) for n in (4, 4096, 1 << 20, 1536, 102_228_128)]
    ['4 B', '4 KB', '1 MB', '1.5 KB', '97.5 MB']
    """
    for shift, unit in ((30, "GB"), (20, "MB"), (10, "KB")):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.3g} {unit}"
    return f"{size} B"
