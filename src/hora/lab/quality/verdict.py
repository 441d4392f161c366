"""The verdict on a table: whether the rate must grow with the workers, whether that loses something, what recovers it.

Each sentence compares means over seeds and says whether the difference is more than the seeds' spread: whether the 95 %
interval of it (Welch's) leaves out zero. With one seed nobody knows, and that is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hora.lab.quality.spread import Difference, difference, mean, spread
from hora.lab.show import capital

__all__ = ["finding", "findings", "gap_of", "points_text", "score_text", "sure_text"]

Row = dict[str, Any]
_MORE = "Run it with more --seeds: one seed shows only large differences"


def points_text(value: float) -> str:
    """A difference of accuracies.

    >>> points_text(-0.0213), points_text(0.01)
    ('2.13 points', '1.00 point')
    """
    number = f"{abs(100 * value):.2f}"
    return f"{number} point{'' if number == '1.00' else 's'}"


def score_text(row: Row) -> str:
    """
    >>> score_text({"best_top1_seeds": [0.95, 0.96, 0.97]}), score_text({"best_top1_seeds": [0.95]})
    ('96.00 % ± 1.00 (n = 3)', '95.00 % (n = 1)')
    """
    seeds = row["best_top1_seeds"]
    around = f" ± {100 * spread(seeds):.2f}" if len(seeds) > 1 else ""
    return f"{100 * mean(seeds):.2f} %{around} (n = {len(seeds)})"


def sure_text(gap: Difference) -> str:
    """How sure that difference is.

    >>> sure_text(Difference(0.02, 0.01, 0.03)), sure_text(Difference(0.02, -0.01, 0.05)), sure_text(Difference(0.02))
    ('more than the seeds differ (95 %: 1.00 to 3.00)', 'no more than the seeds differ (95 %: -1.00 to 5.00)',
     'not significant with one seed')
    """
    if not gap.known:
        return "not significant with one seed"
    more = "more" if gap.beyond_chance else "no more"
    return f"{more} than the seeds differ (95 %: {100 * gap.low:.2f} to {100 * gap.high:.2f})"


def finding(kind: str, title: str, what: str, change: str, gain: float = 0.0) -> dict[str, Any]:
    """A finding as all experiments keep them; ``gain`` is in accuracy, as a share."""
    return {
        "kind": kind,
        "title": title,
        "what": what,
        "change": change,
        "gain": round(max(0.0, gain), 6),
        "rank": None,
    }


def findings(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One for each factor, at the largest number of workers that it and the others were run with."""
    base = next((row for row in rows if row["workers"] == 1 and row["best_top1_seeds"]), None)
    if base is None:
        return []
    found = []
    linear = _largest(rows, "linear")
    for name in dict.fromkeys(row["factor"] for row in rows if row["workers"] > 1):
        row = _largest(rows, name)
        assert row is not None
        if not row["best_top1_seeds"]:
            found.append(_none(row))
        elif name == "naive":
            found.append(_naive(row, base))
        elif name == "linear":
            found.append(_linear(row, base))
        else:
            beside = linear if linear and linear["workers"] == row["workers"] and linear["best_top1_seeds"] else None
            found.append(_remedy(row, base, beside))
    return found


def _largest(rows: Sequence[Row], factor: str) -> Row | None:
    """That factor's row with the most workers."""
    return max((row for row in rows if row["factor"] == factor), key=lambda row: row["workers"], default=None)


def gap_of(row: Row, other: Row) -> Difference:
    """How much better one row's best is than another's."""
    return difference(row["best_top1_seeds"], other["best_top1_seeds"])


def _word(gap: Difference) -> str:
    """What happens, in words that are no stronger than the evidence."""
    if not gap.known and not gap.value:
        return "ends as"
    if not gap.known:
        return f"ends {points_text(gap.value)} {'below' if gap.value < 0 else 'above'}"
    if not gap.beyond_chance:
        return "is as good as"
    return "loses to" if gap.value < 0 else "beats" if gap.value > 0 else "is as good as"


def _against(row: Row, base: Row, gap: Difference) -> str:
    more = "less" if gap.value < 0 else "more"
    lost = f" {capital(row['state'])}; the mean is of the others." if row["state"] != "done" else ""
    return (
        f"{row['workers']} workers with {row['global_batch']:,} samples a step and a peak rate of {row['peak_lr']:.4g} "
        f"reach {score_text(row)}, one worker {score_text(base)}: {points_text(gap.value)} {more}, "
        f"{sure_text(gap)}.{lost}"
    )


def _none(row: Row) -> dict[str, Any]:
    what = f"{row['factor']} on {row['workers']} workers failed ({row['state']})"
    if row["state"] == "diverged":
        what += f": at a peak rate of {row['peak_lr']:.4g} the loss is not a number"
    change = "Lower the rate or warm it up" if row["state"] == "diverged" else "See the log in its trial's folder"
    return finding(row["factor"], f"{row['factor']}: {row['state']}", what, change)


def _naive(row: Row, base: Row) -> dict[str, Any]:
    gap = gap_of(row, base)
    change = (
        "Let the rate grow with the global batch (--rule linear)"
        if gap.value < 0
        else "The rate may stay as it is for this many workers and epochs"
    )
    title = f"the rate of one worker, kept on {row['workers']}, {_word(gap)} one worker"
    return finding("naive scaling", title, _against(row, base, gap), change, -gap.value)


def _linear(row: Row, base: Row) -> dict[str, Any]:
    gap = gap_of(row, base)
    loses = gap.value < 0 and (gap.beyond_chance or not gap.known)
    change = "Warm up to the large rate; see the warm-ups" if loses else "It needs no remedy here"
    change = change if gap.known else _MORE
    title = f"the linear rule on {row['workers']} workers {_word(gap)} one worker"
    return finding("linear rule", title, _against(row, base, gap), change, -gap.value if loses else 0.0)


def _remedy(row: Row, base: Row, linear: Row | None) -> dict[str, Any]:
    """A warm-up, or a smaller batch: against one worker, and against the linear rule alone."""
    gap, kind = gap_of(row, base), "reduced batch" if row["factor"] == "reduced-batch" else "warm-up"
    what = _against(row, base, gap)
    if linear is None:
        return finding(kind, f"{row['factor']} on {row['workers']} workers {_word(gap)} one worker", what, _keep(gap))
    lost, gained = gap_of(linear, base), gap_of(row, linear)
    beside = "more" if gained.value >= 0 else "less"
    what += (
        f" That is {points_text(gained.value)} {beside} than the linear rule alone ({score_text(linear)}), "
        f"{sure_text(gained)}."
    )
    if not gained.known:
        word = f"{points_text(gained.value)} {beside} than the linear rule alone, not significant with one seed"
    elif lost.value >= 0 or (lost.known and not lost.beyond_chance):
        word = "there is nothing to recover: the linear rule alone has no significant loss"
        if gained.beyond_chance:
            word = "it gains more than was lost" if gained.value > 0 else "it is worse than the linear rule"
    elif gained.value <= 0 or (gained.known and not gained.beyond_chance):
        word = "it does not recover what the linear rule loses"
    else:
        share = min(1.0, gained.value / -lost.value)
        word = f"it recovers {share:.0%} of what the linear rule loses".replace("%", " %")
    title = f"{row['factor']} on {row['workers']} workers: {word}"
    return finding(kind, title, what, _keep(gap), gained.value)


def _keep(gap: Difference) -> str:
    if not gap.known:
        return _MORE
    if gap.value >= 0 or (gap.known and not gap.beyond_chance):
        return "Use this on that many workers"
    return "Something is still missing: more epochs, a longer warm-up or a smaller batch"
