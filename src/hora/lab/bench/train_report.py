"""What `hora bench train` found: rows made of the ranks' reports, the table, and the same as markdown.

Speeds drift more from round to round than contenders differ within one, so what is shown is the median over rounds of
the comparison within a round, not the comparison of two medians.
"""

from __future__ import annotations

import statistics

from rich import box
from rich.markup import escape
from rich.table import Table

from hora.lab.bench.figures import ratio_text, time_text
from hora.lab.bench.plan import TRAININGS, RankReport, Result, Row, cell

__all__ = ["LIMIT_MEANING", "MEANING", "cell_text", "headings", "merge", "remark", "speed_text", "table"]

LIMIT, IN_STEP = "limit", "in_step"
MEANING = "shares are compared within each round"
LIMIT_MEANING = (
    "The limit is the same processes training without communicating; in step they do so too, but meet once a step with "
    "four bytes: what is missing there is waiting for the slower worker, and no library can win it back"
)


def merge(reports: list[RankReport]) -> list[Row]:
    """One row a network. A round took as long as its slowest rank.

    >>> seconds = {"mlp": {"limit": [0.01, 0.02], "hora": [0.02, 0.04]}}
    >>> report = RankReport(rank=0, seconds=seconds, calls={"mlp": {"limit": 1, "hora": 1}}, versions={})
    >>> [row] = merge([report])
    >>> row.name, row.shares["hora"], row.added_us["hora"]
    ('MLP 784-1024-1024-10, batch 64', 0.5, 15000.0)
    """
    rows = []
    for key, contenders in reports[0].seconds.items():
        slowest = {
            contender: [max(round_) for round_ in zip(*(r.seconds[key][contender] for r in reports), strict=True)]
            for contender in contenders
        }
        limit = slowest[LIMIT]
        rows.append(
            Row(
                name=TRAININGS[key].title,
                cells={name: cell(rounds, reports[0].calls[key][name]) for name, rounds in slowest.items()},
                images=TRAININGS[key].images,
                shares={
                    name: round(statistics.median(a / b for a, b in zip(limit, rounds, strict=True)), 4)
                    for name, rounds in slowest.items()
                },
                added_us={
                    name: round(1e6 * statistics.median(b - a for a, b in zip(limit, rounds, strict=True)), 3)
                    for name, rounds in slowest.items()
                },
            )
        )
    return rows


def speed_text(row: Row, contender: str) -> str:
    """Images a second and worker.

    >>> speed_text(Row(name="x", images=64, cells={"hora": cell([0.02])}), "hora")
    '3,200/s'
    """
    speed = 1e6 * row.images / row.cells[contender].median_us
    return f"{speed:,.0f}/s" if speed >= 99.95 else f"{speed:.1f}/s"


def cell_text(row: Row, contender: str) -> str:
    """What a contender's column says: speed and share of the limit, or the time it adds where there are no images.

    >>> row = Row(name="x", images=4, cells={"hora": cell([0.5])}, shares={"hora": 0.97}, added_us={"hora": 15_000.0})
    >>> cell_text(row, "hora"), cell_text(row, "ddp")
    ('8.0/s (97 %)', '')
    """
    if contender not in row.cells:
        return ""
    if not row.images:
        took = time_text(row.cells[contender].median_us)
        return f"{took} a step" if contender == LIMIT else f"+{time_text(row.added_us[contender])}"
    speed = speed_text(row, contender)
    return speed if contender == LIMIT else f"{speed} ({100 * row.shares[contender]:.0f} %)"


def headings(result: Result) -> list[tuple[str, str]]:
    """(key, heading) of every contender that was measured."""
    return [(key, label) for key, label in result.labels.items() if any(key in row.cells for row in result.rows)]


def remark(result: Result) -> str:
    """What the bare gradients say in one figure; empty if they, or DDP, were not measured.

    >>> row = Row(name=TRAININGS["gradients"].title, cells={}, added_us={"hora": 5e3, "ddp": 40e3})
    >>> remark(Result(bench="train", np=2, command="", rows=[row], machine={}, versions={}, labels={"ddp": "DDP"}))
    'To a step of 161 gradients with nothing to hide behind, DDP adds 8.0x what Hora adds'
    """
    for row in result.rows:
        hora = row.added_us.get("hora", 0.0)
        if row.name == TRAININGS["gradients"].title and hora > 0:
            times = [
                f"{result.labels[key]} adds {ratio_text(added / hora)} what Hora adds"
                for key, added in row.added_us.items()
                if key not in ("hora", LIMIT, IN_STEP) and added > 0
            ]
            if times:
                return f"To a step of 161 gradients with nothing to hide behind, {', '.join(times)}"
    return ""


def table(result: Result, title: str) -> Table:
    """The result as a table."""
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1))
    made.add_column("")
    for key, heading in headings(result):
        made.add_column(escape(heading), justify="right", no_wrap=True, style="bold" if key == "hora" else "")
    for row in result.rows:
        made.add_row(escape(row.name), *(cell_text(row, key) for key, _ in headings(result)))
    return made
