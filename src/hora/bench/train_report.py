"""What `hora bench train` found: rows made of the ranks' reports, and tables.

Speeds drift more from round to round than contenders differ within one, so what is shown is the median over rounds of
the comparison within a round, not the comparison of two medians.
"""

from __future__ import annotations

import statistics

from rich.markup import escape
from rich.table import Table

from hora import terminal, text
from hora.bench.plan import TRAININGS, BenchRow, RankReport, Result, cell, longest_p99
from hora.text import micros_text, ratio_text

__all__ = [
    "FLOOR_MEANING",
    "LIMIT_MEANING",
    "MEANING",
    "cell_text",
    "headings",
    "lines",
    "link_text",
    "merge",
    "remark",
    "speed_text",
    "table",
]

LIMIT, IN_STEP = "limit", "in_step"
VERSUS = (("hora", IN_STEP), ("hora", "ddp"), ("hora_bf16", "ddp_bf16"), ("hora_bf16", "ddp"))
MEANING = "shares are compared within each round"
LIMIT_MEANING = (
    "The limit is the same processes training without communicating; in step they do so too, but meet once a step with "
    "four bytes: what is missing there is waiting for the slower worker, and no library can win it back"
)
FLOOR_MEANING = (
    "The floor is the least that a step can take between these hosts: gradients leave when they are there, not faster "
    "than the link, and the optimizer waits for the last"
)


def merge(reports: list[RankReport]) -> list[BenchRow]:
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
        cells = {
            name: cell(rounds, reports[0].calls[key][name], longest_p99(reports, key, name))
            for name, rounds in slowest.items()
        }
        rows.append(
            BenchRow(
                name=TRAININGS[key].title,
                cells=cells,
                images=TRAININGS[key].images,
                shares={
                    name: round(statistics.median(a / b for a, b in zip(limit, rounds, strict=True)), 4)
                    for name, rounds in slowest.items()
                },
                added_us={
                    name: round(1e6 * statistics.median(b - a for a, b in zip(limit, rounds, strict=True)), 3)
                    for name, rounds in slowest.items()
                },
                versus={
                    f"{ours}/{theirs}": round(
                        statistics.median(b / a for a, b in zip(slowest[ours], slowest[theirs], strict=True)), 4
                    )
                    for ours, theirs in VERSUS
                    if ours in slowest and theirs in slowest
                },
                floors_us={
                    wire: round(max(cells[LIMIT].median_us, *(1e6 * r.floors[key][wire] for r in reports)), 3)
                    for wire in reports[0].floors.get(key, {})
                },
            )
        )
    return rows


def speed_text(row: BenchRow, contender: str) -> str:
    """Images a second and worker.

    >>> speed_text(BenchRow(name="x", images=64, cells={"hora": cell([0.02])}), "hora")
    '3,200/s'
    """
    speed = 1e6 * row.images / row.cells[contender].median_us
    return f"{speed:,.0f}/s" if speed >= 99.95 else f"{speed:.1f}/s"


def cell_text(row: BenchRow, contender: str) -> str:
    """What a contender's column says: speed and share of the limit, or the time it adds where there are no images.

    >>> row = BenchRow(name="x", images=4, cells={"hora": cell([0.5])}, shares={"hora": 0.97},
    ...     added_us={"hora": 15_000.0})
    >>> cell_text(row, "hora"), cell_text(row, "ddp")
    ('8.0/s (97 %)', '')
    """
    if "/" in contender:
        return f"{row.versus[contender]:.2f}x" if contender in row.versus else ""
    if contender not in row.cells:
        return ""
    if not row.images:
        took = micros_text(row.cells[contender].median_us)
        return f"{took} a step" if contender == LIMIT else f"+{micros_text(row.added_us[contender])}"
    speed = speed_text(row, contender)
    return speed if contender == LIMIT else f"{speed} ({100 * row.shares[contender]:.0f} %)"


def headings(result: Result) -> list[tuple[str, str]]:
    """(key, heading) of everything that can be said of a network: who was measured, and who was compared with whom."""
    labels = result.labels
    measured = [(key, label) for key, label in labels.items() if any(key in row.cells for row in result.rows)]
    compared = dict.fromkeys(pair for row in result.rows for pair in row.versus)
    return [*measured, *((pair, " / ".join(labels[key] for key in pair.split("/"))) for pair in compared)]


def lines(result: Result) -> list[list[str]]:
    """The table as text, its headings first. On one host a line for each network; between hosts, where there is more to
    say of each contender, a column for each: what a step takes, its spread and the 99th percentile."""
    columns = headings(result)
    if not result.link_mbit_per_s:
        body = [[row.name, *(cell_text(row, key) for key, _ in columns)] for row in result.rows]
        return [["", *(heading for _, heading in columns)], *body]
    made = [["", *(row.name for row in result.rows)]]
    for key, heading in columns:
        made.append([heading, *(_step_text(row, key) for row in result.rows)])
    references = [key for key, _ in columns if key in (LIMIT, IN_STEP)]
    for number, wire in enumerate(dict.fromkeys(wire for row in result.rows for wire in row.floors_us)):
        name = "floor" if wire == "float32" else f"floor, {wire}"
        cells = [micros_text(row.floors_us[wire]) if wire in row.floors_us else "" for row in result.rows]
        made.insert(1 + len(references) + number, [name, *cells])
        ours = "hora" if wire == "float32" else f"hora_{wire}"
        shares = [
            f"{row.floors_us[wire] / row.cells[ours].median_us:.2f}x"
            if ours in row.cells and wire in row.floors_us
            else ""
            for row in result.rows
        ]
        if any(shares):
            made.append([f"{result.labels[ours]} / {name}", *shares])
    return made


def _step_text(row: BenchRow, key: str) -> str:
    if "/" in key:
        return cell_text(row, key)
    if (found := row.cells.get(key)) is None:
        return ""
    return f"{micros_text(found.median_us)} ±{found.spread:.0%}, p99 {micros_text(found.p99_us)}"


def link_text(result: Result) -> str:
    """What the link carries.

    >>> link_text(Result(bench="train", np=2, command="", rows=[], machine={}, versions={}, link_mbit_per_s=956.2))
    'The link between the hosts carries 956 Mbit/s in each direction'
    """
    if not (rate := result.link_mbit_per_s):
        return ""
    return f"The link between the hosts carries {text.link_text(rate)} in each direction"


def remark(result: Result) -> str:
    """What the bare gradients say in one figure; empty if they, or DDP, were not measured.

    >>> row = BenchRow(name=TRAININGS["gradients"].title, cells={}, added_us={"hora": 5e3, "ddp": 40e3})
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


def table(result: Result, title: str, full: bool) -> Table:
    """The result as a table; where there is no room for all columns, lines are what columns are otherwise."""
    cells = lines(result)
    if not full and not result.link_mbit_per_s:
        cells = [list(column) for column in zip(*cells, strict=True)]
    first, *others = cells
    headings = ["", *(heading.replace("/ ", "/\n") for heading in first[1:])]
    made = terminal.table(title, headings, left=("",), bold=result.labels["hora"], padding=(0, 1))
    for line in others:
        made.add_row(*map(escape, line), style="bold" if line[0] == result.labels["hora"] else "")
    return made
