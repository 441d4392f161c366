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
    "PAYLOAD",
    "PROGRESS",
    "TRAININGS",
    "TRAIN_LABELS",
    "BenchPlan",
    "BenchRow",
    "ContenderTime",
    "RankReport",
    "Result",
    "TrainingRow",
    "cell",
    "longest_p99",
    "merge",
    "parse_size",
]

LABELS = {
    "hora": "Hora",
    "hora_shared": "Hora shared",
    "hora_bf16": "Hora bf16",
    "hora_ucx": "Hora, UCX",
    "gloo": "Gloo",
    "nccl": "NCCL",
    "mpi": "Open MPI",
    "memcpy": "memcpy",
}
"""Every contender of the collective benchmarks, in the order of their columns."""

TRAIN_LABELS = {
    "limit": "limit",
    "in_step": "in step",
    "hora": "Hora",
    "hora_bf16": "Hora bf16",
    "ddp": "DDP",
    "ddp_tuned": "DDP tuned",
    "ddp_bf16": "DDP bf16",
    "horovod": "Horovod",
}
"""Every contender of `hora bench train`. The limit is training without communicating; in step, the same but meeting."""


class TrainingRow(NamedTuple):
    """A row of `hora bench train`: what it is called, and how many images a worker takes in one step."""

    title: str
    images: int = 0


TRAININGS = {
    "resnet50": TrainingRow("ResNet-50, batch 4, 64x64", 4),
    "mlp": TrainingRow("MLP 784-1024-1024-10, batch 64", 64),
    "mnist": TrainingRow("MNIST CNN, batch 64", 64),
    "gradients": TrainingRow("161 gradients, trivial backward"),
}
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax")
LEARNING_RATE, MOMENTUM = 1e-3, 0.9
BATCHES = 8  # different batches, taken in turn
CONTENDERS = tuple(LABELS)
DEFAULT_SIZES = (4, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
GRADIENTS = "161 gradients"  # the one row of that benchmark
PROGRESS = "@bench "  # starts a line of progress in a worker's output
PAYLOAD = 1448 / 1514  # of an Ethernet frame, with TCP over IPv4
SCHEMA = 1


class BenchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers are to do. ``round_s`` is how long one contender's turn should last: one call at least."""

    bench: Literal["allreduce", "gradients", "train"]
    contenders: tuple[str, ...]
    models: tuple[str, ...] = ()  # for train
    framework: str = "torch"  # for train
    device: str = "cpu"  # where tensors are; one for each worker
    sizes: tuple[int, ...] = ()  # bytes, for allreduce
    link_bytes_per_s: float = 0.0  # what was said of the link between hosts; 0: to be measured
    rounds: int = 21
    round_s: float = 0.03
    seed: int = 1


class RankReport(msgspec.Struct, kw_only=True):
    """What one worker measured: seconds per call, by row and contender, one number per round.

    ``p99`` is of single calls. Between hosts also: what the link carries, and by row and element type on the wire how
    long a step must take because of it.
    """

    rank: int
    seconds: dict[str, dict[str, list[float]]]
    calls: dict[str, dict[str, int]]
    versions: dict[str, str]
    p99: dict[str, dict[str, float]] = {}
    floors: dict[str, dict[str, float]] = {}
    link_bytes_per_s: float = 0.0
    notes: list[str] = []


class ContenderTime(msgspec.Struct, frozen=True, kw_only=True):
    """One contender in one row: microseconds per call of the slowest rank, over all rounds."""

    median_us: float
    low_us: float  # a tenth of the rounds were faster
    high_us: float  # a tenth of the rounds were slower
    rounds: int
    calls_per_round: int = 1
    p99_us: float = 0.0  # of single calls; 0 where a call is too short to be timed alone

    @property
    def spread(self) -> float:
        """Half the width between the low and the high mark, as a share of the median.

        >>> ContenderTime(median_us=10.0, low_us=9.0, high_us=12.0, rounds=5).spread
        0.15
        """
        return (self.high_us - self.low_us) / 2 / self.median_us if self.median_us else 0.0


class BenchRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table; ``bytes`` is what each rank brings to one call (0 where that means nothing).

    Of training also: how many images a worker takes in one step, what share of the limit's speed each contender reached
    and how much longer than the limit its step took, both as medians over rounds of the figure within a round.
    ``versus`` has speeds over speeds likewise, such as ``hora/in_step``. ``floors_us`` is by element type on the wire:
    what a step takes at least, because of the link between hosts.
    """

    name: str
    cells: dict[str, ContenderTime]
    bytes: int = 0
    images: int = 0
    shares: dict[str, float] = {}
    added_us: dict[str, float] = {}
    versus: dict[str, float] = {}
    floors_us: dict[str, float] = {}

    def ratio(self, contender: str, to: str = "hora") -> float | None:
        """How many times longer ``contender`` takes than ``to``.

        >>> row = BenchRow(name="4 B", cells={k: ContenderTime(median_us=v, low_us=v, high_us=v, rounds=1) for k, v in
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
    rows: list[BenchRow]
    machine: dict[str, str | int]
    versions: dict[str, str]
    notes: list[str] = []
    labels: dict[str, str] = msgspec.field(default_factory=lambda: dict(LABELS))
    started: str = ""
    hosts: str = ""  # between which; empty if on one
    link_mbit_per_s: float = 0.0  # between hosts, without headers; 0 where it is not known
    schema: int = SCHEMA


def cell(per_round_s: list[float], calls: int = 1, p99_s: float = 0.0) -> ContenderTime:
    """Summarise one contender's rounds.

    >>> cell([1e-6, 2e-6, 9e-6]).median_us
    2.0
    """
    micros = sorted(1e6 * s for s in per_round_s)
    last = len(micros) - 1
    return ContenderTime(
        median_us=round(statistics.median(micros), 3),
        low_us=round(micros[round(0.1 * last)], 3),
        high_us=round(micros[round(0.9 * last)], 3),
        rounds=len(micros),
        calls_per_round=calls,
        p99_us=round(1e6 * p99_s, 3),
    )


def merge(reports: list[RankReport], sizes: dict[str, int]) -> list[BenchRow]:
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
            cells[contender] = cell(slowest, reports[0].calls[name][contender], longest_p99(reports, name, contender))
        rows.append(BenchRow(name=name, cells=cells, bytes=sizes.get(name, 0)))
    return rows


def longest_p99(reports: list[RankReport], row: str, contender: str) -> float:
    """That of the slowest rank; 0 if single calls were not timed."""
    return max(report.p99.get(row, {}).get(contender, 0.0) for report in reports)


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
