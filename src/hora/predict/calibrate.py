"""A calibration by measurement, on this machine: two short benchmarks, about a minute.

`hora bench allreduce` gives latency and bandwidth inside the host; `hora bench train` gives the step with and without
communication, in the same run, so that what drifts drifts for both. The network between hosts cannot be measured from
one host: it is given, or measured by `hora bench allreduce -H`.
"""

from __future__ import annotations

from collections.abc import Callable

from hora.bench import drive, resnet50
from hora.bench.plan import TRAININGS, BenchPlan, BenchRow, Result
from hora.errors import UsageError
from hora.predict.calibration import Calibration, LinkFacts
from hora.predict.network import Cluster, Link, traffic
from hora.predict.step import BACKWARD, expected_max

__all__ = ["GRADIENT_BYTES", "calibrate", "calibration_of", "estimate_s", "link_of"]

GRADIENT_BYTES = {"resnet50": 4 * resnet50.floats(), "mlp": 4 * 1_863_690, "mnist": 4 * 21_840}
SMALL, LARGE = 4, 16 << 20
START_S = 10.0  # of workers, with their first steps
ROUND_S = 2.5  # of two contenders that train, a second or so each
NINETY = 1.2816  # standard deviations from the median to the mark that a tenth exceeds


def calibrate(
    model: str = "resnet50",
    np: int = 2,
    *,
    rounds: int = 11,
    round_s: float = 0.6,
    progress: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Measure ``model`` on ``np`` workers of this machine."""
    if model not in GRADIENT_BYTES or np < 2:
        raise UsageError(
            f"model {model!r} with {np} workers cannot be calibrated. It takes a network that `hora bench train` knows "
            f"and at least two workers. Choose one of {', '.join(GRADIENT_BYTES)}, and two workers or more"
        )
    allreduce = BenchPlan(bench="allreduce", contenders=("hora",), sizes=(SMALL, LARGE), rounds=rounds)
    train = BenchPlan(bench="train", contenders=("limit", "hora"), models=(model,), rounds=rounds, round_s=round_s)
    progress("1/2 moving data: starting workers")
    moved = drive.measure(allreduce, np, "calibrate", [], lambda line: progress(f"1/2 moving data: {line}"))
    progress("2/2 training: starting workers")
    trained = drive.measure(train, np, "calibrate", [], lambda line: progress(f"2/2 training: {line}"))
    return calibration_of(model, np, moved, trained)


def estimate_s(rounds: int) -> float:
    """About how long it takes: two starts, and in every round a turn of each contender.

    >>> estimate_s(11)
    47.5
    """
    return 2 * START_S + rounds * ROUND_S


def link_of(small: BenchRow, large: BenchRow, cluster: Cluster) -> LinkFacts:
    """Latency and bandwidth from the time of a small and of a large allreduce of a cluster on one host.

    >>> from hora.bench.plan import cell
    >>> small, large = BenchRow(name="4 B", bytes=4, cells={"hora": cell([1e-5])}), BenchRow(
    ...     name="x", bytes=10**8, cells={"hora": cell([0.05])})
    >>> link_of(small, large, Cluster(2, 2))
    LinkFacts(bytes_per_s=2000400000.0, latency_s=5e-06)
    """
    asked = traffic(cluster, "ring")
    first, second = (1e-6 * row.cells["hora"].median_us for row in (small, large))
    share = float(asked.inside_share) * (large.bytes - small.bytes)
    rate = share / max(second - first, 1e-9)
    return LinkFacts(bytes_per_s=float(f"{rate:.6g}"), latency_s=float(f"{first / float(asked.inside_turns):.3g}"))


def calibration_of(model: str, np: int, moved: Result, trained: Result) -> Calibration:
    """A calibration from the results of both benchmarks."""
    cluster = Cluster(np, np)
    small, large = sorted(moved.rows, key=lambda row: row.bytes)
    inside = link_of(small, large, cluster)
    [row] = trained.rows
    limit = row.cells["limit"]
    jitter = min(1.0, limit.spread / NINETY)
    alone = 1e-6 * limit.median_us / (1 + jitter * expected_max(np))  # a round takes as long as its slowest worker
    size = GRADIENT_BYTES[model]
    comm = float(traffic(cluster, "ring").seconds(size, Link(inside.bytes_per_s, inside.latency_s), Link(1e99)))
    added = max(0.0, 1e-6 * row.added_us["hora"])
    noted = [f"{model} was measured with {np} workers on one host: they share its memory as they will elsewhere"]
    if added > comm:
        noted.append("training added more than its allreduce takes: none of it is taken to be hidden")
    if comm > BACKWARD * alone:
        noted.append("the allreduce takes longer than the backward pass")
    return Calibration(
        compute_s=alone,
        batch=TRAININGS[model].images,
        gradient_bytes=size,
        per_host=np,
        inside=inside,
        exposed=min(1.0, added / comm),
        jitter=jitter,
        scatter=min(1.0, max(0.01, row.cells["hora"].spread / NINETY)),
        about=f"{TRAININGS[model].title}, measured on {trained.machine.get('cpu', 'this machine')}",
        assumptions=tuple(noted + trained.notes),
    )
