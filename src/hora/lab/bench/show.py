"""The tables of `hora bench`: readable without colour, on a dark or a light terminal, and in a log."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hora.lab.bench import train_report
from hora.lab.bench.figures import ratio_text, time_text
from hora.lab.bench.plan import Cell, Result

__all__ = ["TITLES", "print_result", "provenance", "ratios", "table"]

TITLES = {
    "allreduce": "allreduce of float32, in place, by name",
    "gradients": "the gradients of ResNet-50, submitted asynchronously",
    "train": "training, images a second of one worker and share of the limit",
    "launch": "what Hora costs before anything is computed",
}
FULL_WIDTH = 110  # below this the spread is left out


def ratios(result: Result) -> list[tuple[str, str, str]]:
    """The ratio columns a result has: heading, whose time, over whose."""
    present = {key for row in result.rows for key in row.cells}
    wanted = [
        ("gloo", "hora", "Hora"),
        ("gloo", "hora_bf16", "bf16"),
        ("mpi", "hora", "Hora"),
        ("memcpy", "hora_shared", "shared"),
    ]
    return [
        (f"{result.labels[over]} / {short}", over, under)
        for over, under, short in wanted
        if over in present and under in present
    ]


def provenance(result: Result) -> str:
    """What the figures were measured on and with."""
    facts = result.machine
    memory = int(facts["memory_bytes"]) / (1 << 30)
    versions = []
    for key, version in result.versions.items():
        label = "Hora" if key == "hora" else result.labels.get(key, key)
        if key not in ("hora_shared", "hora_bf16", "memcpy", "limit", "in_step", "ddp_tuned"):
            versions.append(version if version.startswith(label) else f"{label} {version}")
    machine = f"{facts['cpu']}, {facts['cores']} cores, {memory:.0f} GiB, Python {facts['python']}"
    return f"{machine}; {', '.join(versions)}"


def table(result: Result, full: bool) -> Table:
    """The result as a table; ``full`` shows the spread beside each median and gives the columns room."""
    title = f"{TITLES[result.bench]}, {result.np} workers"
    if result.bench == "train":
        return train_report.table(result, title)
    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1) if full else (0, 0),
    )
    made.add_column("")
    keys = [key for key in result.labels if any(key in row.cells for row in result.rows)]
    for key in keys:
        heading = result.labels[key] if full else result.labels[key].replace(" ", "\n")
        made.add_column(escape(heading), justify="right", no_wrap=True, style="bold" if key == "hora" else "")
    columns = ratios(result)
    for heading, _, _ in columns:
        made.add_column(escape(heading.replace("/ ", "/\n")), justify="right", no_wrap=True)
    for row in result.rows:
        cells = [_cell_text(row.cells.get(key), full) for key in keys]
        made.add_row(escape(row.name), *cells, *(ratio_text(row.ratio(over, under)) for _, over, under in columns))
    return made


def _cell_text(cell: Cell | None, full: bool) -> str:
    if cell is None:
        return ""
    return f"{time_text(cell.median_us)} ±{cell.spread:.0%}" if full else time_text(cell.median_us)


def print_result(result: Result, console: Console) -> None:
    """The table, what the figures mean, and on what they were measured."""
    if not console.is_terminal:
        console.width = max(console.width, 130)  # a log has no width; do not fold its lines
    console.print(table(result, console.width >= FULL_WIDTH), highlight=False)
    rounds = max((cell.rounds for row in result.rows for cell in row.cells.values()), default=0)
    meaning = f"Median of {rounds} rounds"
    if result.bench != "launch":
        meaning += " taken by turns, time per call of the slowest worker"
    spread = "± is half the width between the 10th and 90th percentile"
    lines = [f"{meaning}; {train_report.MEANING if result.bench == 'train' else spread}.", f"{provenance(result)}."]
    if result.bench == "train":
        lines[1:1] = [f"{said}." for said in (train_report.LIMIT_MEANING, train_report.remark(result)) if said]
    lines += [f"Note: {note}." for note in result.notes]
    for line in lines:
        console.print(line, highlight=False, markup=False)
