"""The study's three questions, answered from the miniature's rows and beside its own: how throughput scales with
workers, framework and batch; what naive scaling costs in accuracy; whether scaled rates and warm-ups recover it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hora.lab.quality.verdict import finding, gap_of, points_text, score_text, sure_text
from hora.lab.study.published import QUALITY, baseline_top1, published_quality, speed_up
from hora.predict.published import throughput

__all__ = ["QUESTIONS", "answers"]

Row = dict[str, Any]
IMPOSSIBLE = 1.15  # times ideal; a little more than ideal can be, with more cache
QUESTIONS = (
    "How does throughput scale with workers, by framework and batch size?",
    "How much accuracy does naive scaling cost?",
    "Do a scaled learning rate and a warm-up recover it?",
)


def answers(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One finding per question; it also says what was not run."""
    speeds = [row for row in rows if row["what"] == "throughput"]
    qualities = [row for row in rows if row["what"] == "quality"]
    parts = (_throughput(speeds), _naive(qualities), _remedies(qualities))
    return [
        {**finding(f"question {number}", answer, f"Here: {here}", f"In the study: {there}"), "question": question}
        for number, (question, (answer, here, there)) in enumerate(zip(QUESTIONS, parts, strict=True), start=1)
    ]


# ---- how throughput scales ----


def _throughput(rows: Sequence[Row]) -> tuple[str, str, str]:
    many = [row for row in rows if row["state"] == "done" and row["workers"] > 1 and row["speed_up"]]
    if not many:
        return "not answered: no run of several workers is done", "nothing was measured", _study_speed()
    count = max(row["workers"] for row in many)
    many = [row for row in many if row["workers"] == count]
    best = max(row["speed_up"] for row in many)
    told = ", ".join(f"{row['here']} with batch {row['batch']} {row['speed_up']:.2f}x" for row in many)
    larger = {True: " A larger batch scales better.", False: " A larger batch does not scale better.", None: ""}
    if best > IMPOSSIBLE * count:
        answer = f"not answered: {count} workers seem {best:.1f} times as fast as one, so the machine was not quiet"
        return answer, f"{count} workers: {told}", _study_speed()
    answer = f"{count} workers are {best:.2f} times as fast as one at best, {_share(best / count)} of ideal"
    return answer, f"{count} workers: {told}.{larger[_by_batch(many)]}{_first_batch(rows)}", _study_speed()


def _by_batch(many: Sequence[Row]) -> bool | None:
    """Whether the largest batch scales better than the smallest, in the form that was run with several."""
    several = sorted((row for row in many if row["framework"] == "horovod+tensorflow"), key=lambda row: row["batch"])
    return None if len(several) < 2 else bool(several[-1]["speed_up"] > several[0]["speed_up"])


def _first_batch(rows: Sequence[Row]) -> str:
    """What the study's formula loses to the first batch, on one worker."""
    for row in rows:
        steady = row["steady_images_per_s"]
        if row["framework"] == "horovod+pytorch" and row["workers"] == 1 and steady and row["images_per_s"]:
            share = 1 - row["images_per_s"] / steady
            if share < 0.005:
                return ""
            less = _share(share)
            return f" On one worker the study's formula, with the very first step, says {less} less than steady steps."
    return ""


def _study_speed() -> str:
    """
    >>> _study_speed()[:67]
    'by 2 GPUs 1.79x (horovod+tensorflow, batch 32), 1.81x (64), 1.87x ('
    """
    parts = []
    for gpus in (2, 32):
        told, before = [], ""
        for row in throughput():
            if row.workers == gpus:
                name = f"{row.batch}" if row.framework == before else f"{row.framework}, batch {row.batch}"
                told.append(f"{speed_up(row.framework, row.batch, gpus) or 0:.{2 if gpus < 10 else 1}f}x ({name})")
                before = row.framework
        parts.append(f"by {gpus} GPUs {', '.join(told)}")
    return "; ".join(parts)


# ---- what naive scaling costs ----


def _naive(rows: Sequence[Row]) -> tuple[str, str, str]:
    there = {gpus: (published_quality(4, gpus) or {})["top1"] for gpus in (1, 32)}
    study = (
        f"the same rate on 32 GPUs reaches {_percent(there[32])}, on one {_percent(there[1])}, the baseline "
        f"{_percent(baseline_top1())}: {points_text(there[32] - baseline_top1())} less than the baseline"
    )
    base, row = _row(rows, 5, 1), _largest(rows, 4)
    if base is None or row is None:
        return "not answered: its runs are not done", "nothing was measured", study
    gap, alone = gap_of(row, base), _row(rows, 4, 1)
    beside = f"; one worker at that rate {score_text(alone)}" if alone else ""
    lost = points_text(gap.value)
    title = f"on {row['workers']} workers it costs {lost if gap.value < 0 else f'nothing ({lost} more)'}"
    sure = sure_text(gap)
    here = f"{score_text(row)} on {row['workers']} workers, the baseline {score_text(base)}{beside}; {sure}"
    return title, here, study


# ---- whether remedies recover it ----


def _remedies(rows: Sequence[Row]) -> tuple[str, str, str]:
    told = []
    for quality in QUALITY[1:]:
        top1 = (published_quality(quality.experiment, 32) or {})["top1"]
        told.append(f"{quality.factor} {_percent(top1)} ({points_text(top1 - baseline_top1())} less)")
    study = f"on 32 GPUs, against {_percent(baseline_top1())} on one: {', '.join(told)}"
    base, naive, linear = _row(rows, 5, 1), _largest(rows, 4), _largest(rows, 5)
    if base is None or linear is None:
        return "not answered: its runs are not done", "nothing was measured", study
    count = linear["workers"]
    others = [row for row in rows if row["experiment"] > 5 and row["workers"] == count and row["best_top1_seeds"]]
    words = [_back(naive, linear, base)]
    if others:
        best = max(others, key=lambda row: row["best_top1"])
        gained, still = gap_of(best, linear), gap_of(best, base)
        less = f"{points_text(still.value)} {'less' if still.value < 0 else 'more'} than one worker"
        words.append(
            f"the best remedy, {best['factor']}, adds {points_text(gained.value)} and ends with {less}"
            if gained.value > 0
            else "none of the remedies adds anything to it here"
        )
    here = "; ".join(f"{row['factor']} {_against(row, base)}" for row in (linear, *others))
    diverged = [row["factor"] for row in rows if row["workers"] == count and row["state"] == "diverged"]
    lost = f"; {', '.join(diverged)} diverged" if diverged else ""
    unsure = ". With one seed none of this is significant" if len(base["best_top1_seeds"]) < 2 else ""
    return "; ".join(words), f"on {count} workers, against {score_text(base)} on one: {here}{lost}{unsure}", study


def _back(naive: Row | None, linear: Row, base: Row) -> str:
    """How much of what naive scaling loses the linear rule recovers."""
    left = gap_of(linear, base).value
    lost = -gap_of(naive, base).value if naive and naive["workers"] == linear["workers"] else 0.0
    if lost <= 0:
        return f"the linear rule alone ends {points_text(left)} {'below' if left < 0 else 'above'} one worker"
    return f"the linear rule recovers {_share(min(1.0, max(0.0, 1 + left / lost)))} of what naive scaling costs"


def _against(row: Row, base: Row) -> str:
    gap = gap_of(row, base)
    return f"{score_text(row)}, {points_text(gap.value)} {'less' if gap.value < 0 else 'more'}"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _row(rows: Sequence[Row], experiment: int, workers: int) -> Row | None:
    for row in rows:
        if (row["experiment"], row["workers"]) == (experiment, workers) and row["best_top1_seeds"]:
            return row
    return None


def _largest(rows: Sequence[Row], experiment: int) -> Row | None:
    known = [row for row in rows if row["experiment"] == experiment and row["workers"] > 1 and row["best_top1_seeds"]]
    return max(known, key=lambda row: row["workers"], default=None)
