"""What others have published, as data: ``tables.json``, and typed access to what the lab compares itself with.

The numbers are those of the reference study (a thesis of 2019 that trained ResNet-50 on ImageNet with 1 to 32 P100
GPUs: throughput in its tables 1 to 9, accuracy and time in 10 to 15, log lines of its figures 11 to 13), of a team's
report, of a competition's rules, and of a course's assignment. Scripts of the study:
github.com/juhany/dl-experiments at da06c8b. What has been computed from them stands apart, under ``derived`` in the
file, and is not read here.

>>> [(row.batch, row.workers, row.images_per_s) for row in throughput("pytorch")][:2]
[(128, 1, 207.11), (128, 2, 372.09)]
>>> hardware()["interconnect"]
'FDR InfiniBand'
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Any

import msgspec

from hora.errors import UsageError

__all__ = [
    "FRAMEWORKS",
    "LogLine",
    "Throughput",
    "TrainingTime",
    "first_batch",
    "hardware",
    "one_worker_log",
    "tables",
    "throughput",
    "training_times",
]

FRAMEWORKS = ("horovod+tensorflow", "pytorch", "horovod+pytorch")


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the study's tables 1 to 9."""

    table: int
    framework: str
    batch: int
    workers: int
    images_per_s: float


class TrainingTime(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the study's tables 10 to 15: what 90 epochs reached; ``minutes`` where the study says."""

    table: int
    framework: str
    batch: int
    workers: int
    top1: float
    top5: float
    minutes: int | None


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a line the study's script printed: seconds of this batch, and their average so far."""

    batch: int
    seconds: float
    average_s: float


@lru_cache(maxsize=1)
def tables() -> dict[str, Any]:
    """The whole document, as it is. It is shared: do not change it.

    >>> sorted(tables()["thesis"]["tables"], key=int)[-1]
    '15'
    """
    found: dict[str, Any] = msgspec.json.decode(files(__name__).joinpath("tables.json").read_bytes())
    return found


def hardware() -> dict[str, Any]:
    """The machine of the study."""
    found: dict[str, Any] = tables()["thesis"]["hardware"]
    return found


def throughput(framework: str | None = None) -> tuple[Throughput, ...]:
    """Published throughputs, of one framework or of all, by batch size and then by workers.

    >>> len(throughput()), len(throughput("horovod+tensorflow"))
    (35, 21)
    """
    if framework is not None and framework not in FRAMEWORKS:
        raise UsageError(
            f"nothing is published for {framework!r}. The tables have three frameworks. "
            f"Name one of {', '.join(FRAMEWORKS)}"
        )
    found = [
        Throughput(
            table=int(number),
            framework=row["framework"],
            batch=row["batch_per_gpu"],
            workers=row["gpus"],
            images_per_s=row["images_per_sec"],
        )
        for number, table in tables()["thesis"]["tables"].items()
        if table["kind"] == "throughput"
        for row in table["rows"]
        if framework in (None, row["framework"])
    ]
    return tuple(sorted(found, key=lambda row: (FRAMEWORKS.index(row.framework), row.batch, row.workers)))


def training_times() -> tuple[TrainingTime, ...]:
    """Published accuracy and time of whole runs, in the order of the tables.

    >>> [(row.workers, row.top1) for row in training_times()][0]
    (1, 73.286)
    """
    return tuple(
        TrainingTime(
            table=int(number),
            framework=row["framework"],
            batch=row["batch_per_gpu"],
            workers=row["gpus"],
            top1=row["best_top1_percent"],
            top5=row["best_top5_percent"],
            minutes=row.get("train_time_minutes"),
        )
        for number, table in tables()["thesis"]["tables"].items()
        if table["kind"] == "accuracy"
        for row in table["rows"]
    )


def first_batch(framework: str) -> dict[int, float]:
    """Seconds of the very first batch by worker count, where a figure of the study shows them.

    >>> first_batch("pytorch")[2], first_batch("horovod+tensorflow")
    (18.532, {})
    """
    samples = tables()["thesis"]["log_samples"]
    return {
        workers: samples[figure][framework]["time"]
        for figure, workers in (("figure_12_2gpu", 2), ("figure_13_32gpu", 32))
        if framework in samples[figure]
    }


def one_worker_log() -> tuple[LogLine, ...]:
    """Five lines of a run on one GPU (figure 11), around the batch whose average the tables use.

    >>> [(line.batch, line.average_s) for line in one_worker_log()][2]
    (199, 0.633)
    """
    lines = tables()["thesis"]["log_samples"]["figure_11_1gpu"]
    return tuple(LogLine(batch=line["batch"], seconds=line["time"], average_s=line["time_avg"]) for line in lines)
