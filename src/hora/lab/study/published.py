"""The reference study's experiments and tables, as its miniature is compared with them.

Experiments 1 to 3 are of throughput, by framework, batch and GPUs; 4 to 9 of quality, each one way to choose the
learning rate, by GPUs. In the tables of 4 to 9 a baseline is repeated; here it is experiment 5's, and once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hora.predict.published import Throughput, tables, throughput

__all__ = ["QUALITY", "SPEED", "Quality", "baseline_top1", "published_quality", "published_speed", "speed_up"]


class Quality(NamedTuple):
    """An experiment of quality: its number, the factor of `hora lab quality` that it is, and its GPUs."""

    experiment: int
    factor: str
    gpus: tuple[int, ...]


QUALITY = (
    Quality(4, "naive", (1, 2, 16, 24, 32)),
    Quality(5, "linear", (1, 32)),
    Quality(6, "stepping", (8, 16, 24, 32)),
    Quality(7, "reduced-batch", (32,)),
    Quality(8, "gradual5", (16, 24, 32)),
    Quality(9, "gradual10", (24, 32)),
)
SPEED = {1: (1,), 2: (2, 4), 3: (8, 16, 24, 32)}  # GPUs by experiment
_TABLES = {4: 10, 5: 11, 6: 12, 7: 13, 8: 14, 9: 15}


def published_quality(experiment: int, gpus: int) -> dict[str, Any] | None:
    """The study's row: ``lr``, ``batch``, ``top1``, ``top5`` as shares, ``minutes``. Of two frameworks, Horovod's.

    >>> published_quality(5, 32)
    {'lr': 1.6, 'batch': 128, 'top1': 0.73078, 'top5': 0.91288, 'minutes': 394}
    >>> published_quality(9, 8) is None
    True
    """
    rows = [
        row
        for row in tables()["thesis"]["tables"][str(_TABLES[experiment])]["rows"]
        if row["gpus"] == gpus and (experiment == 5 or not row["is_baseline"])
    ]
    if not rows:
        return None
    row = next((row for row in rows if row["framework"] == "horovod+pytorch"), rows[0])
    return {
        "lr": row["learning_rate"],
        "batch": row["batch_per_gpu"],
        "top1": round(row["best_top1_percent"] / 100, 5),
        "top5": round(row["best_top5_percent"] / 100, 5),
        "minutes": row.get("train_time_minutes"),
    }


def baseline_top1() -> float:
    """What one GPU reached.

    >>> baseline_top1()
    0.75028
    """
    found = published_quality(5, 1)
    assert found is not None
    return float(found["top1"])


def published_speed(framework: str, batch: int, gpus: int) -> Throughput | None:
    """
    >>> published_speed("pytorch", 128, 2).images_per_s
    372.09
    """
    return next((row for row in throughput(framework) if (row.batch, row.workers) == (batch, gpus)), None)


def speed_up(framework: str, batch: int, gpus: int) -> float | None:
    """The speed-up over one GPU.

    >>> round(speed_up("horovod+pytorch", 128, 32), 1)
    29.4
    """
    many, one = published_speed(framework, batch, gpus), published_speed(framework, batch, 1)
    return many.images_per_s / one.images_per_s if many and one else None
