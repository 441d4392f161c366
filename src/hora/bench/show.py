"""The tables of `hora bench`: readable without colour, on a dark or a light terminal, and in a log."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hora import terminal
from hora.bench import train_report
from hora.bench.plan import BenchRow, ContenderTime, Result
from hora.text import micros_text, ratio_text

__all__ = ["TITLES", "cell_text", "print_result", "provenance", "ratios", "shows_p99", "table", "winner"]

TITLES = {
    "allreduce": "allreduce of float32, in place, by name",
    "gradients": "the gradients of ResNet-50, submitted asynchronously",
    "train": "training, images a second of one worker and share of the limit",
    "train hosts": "training between hosts, one step",
    "launch": "what Hora costs before anything is computed",
}
SMALL_BYTES = 64 << 10
TIE = 0.97  # who is less than this much faster than Hora's own connections has not won
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
        if key not in ("hora_shared", "hora_bf16", "hora_ucx", "memcpy", "limit", "in_step", "ddp_tuned", "ddp_bf16"):
            versions.append(version if version.startswith(label) else f"{label} {version}")
    machine = f"{facts['cpu']}, {facts['cores']} cores, {memory:.0f} GiB, Python {facts['python']}"
    return f"{machine}; {', '.join(versions)}"


def table(result: Result, full: bool) -> Table:
    """The result as a table; ``full`` shows the spread beside each median and gives the columns room."""
    bench = "train hosts" if result.bench == "train" and result.hosts else result.bench
    title = f"{TITLES[bench]}, {result.np} workers"
    if result.bench == "train":
        return train_report.table(result, title, full)
    keys = [key for key in result.labels if any(key in row.cells for row in result.rows)]
    columns = ratios(result)
    names = [result.labels[key] if full else result.labels[key].replace(" ", "\n") for key in keys]
    headings = ["", *names, *(heading.replace("/ ", "/\n") for heading, _, _ in columns)]
    bold = names[keys.index("hora")] if "hora" in keys else ""
    made = terminal.table(title, headings, left=("",), bold=bold, padding=(0, 1) if full else (0, 0))
    for row in result.rows:
        tail = shows_p99(result, row)
        cells = [_cell_text(row.cells.get(key), full, tail) for key in keys]
        made.add_row(escape(row.name), *cells, *(ratio_text(row.ratio(over, under)) for _, over, under in columns))
    return made


def shows_p99(result: Result, row: BenchRow) -> bool:
    """Whether the 99th percentile is shown: between hosts, of what is small, for there it is the wait that counts."""
    return bool(result.hosts) and 0 < row.bytes <= SMALL_BYTES


def _cell_text(cell: ContenderTime | None, full: bool, tail: bool) -> str:
    if cell is None:
        return ""
    return cell_text(cell, tail) if full else micros_text(cell.median_us)


def cell_text(cell: ContenderTime, tail: bool) -> str:
    """Median and spread, and the 99th percentile of single calls if it is wanted and known.

    >>> cell_text(ContenderTime(median_us=10.0, low_us=9.0, high_us=12.0, rounds=5, p99_us=31.0), tail=True)
    '10.0 µs ±15%, p99 31.0 µs'
    """
    spread = f"{micros_text(cell.median_us)} ±{cell.spread:.0%}"
    return f"{spread}, p99 {micros_text(cell.p99_us)}" if tail and cell.p99_us else spread


def winner(result: Result) -> str:
    """Between hosts: whose way is the fastest, in one line; empty where nothing was compared. A tie goes to Hora's own.

    >>> def row(name, **times):
    ...     return BenchRow(name=name, cells={k: ContenderTime(median_us=t, low_us=t, high_us=t, rounds=1) for k,
    ...     t in times.items()})
    >>> found = Result(bench="allreduce", np=2, command="", machine={}, versions={}, hosts="h1:1,h2:1", rows=[
    ...     row("4 B", hora=40.0, gloo=300.0, mpi=20.0), row("1 MB", hora=900.0, gloo=3000.0, mpi=2000.0),
    ...     row("16 MB", hora=15e3, gloo=25e3, mpi=15e3)])
    >>> winner(found)
    "Fastest between these hosts: Open MPI for 4 B, Hora's own connections for 1 MB and 16 MB. HORA_TRANSPORT=mpi \
chooses Open MPI"
    >>> found.rows = found.rows[1:]
    >>> winner(found)
    "Fastest between these hosts: Hora's own connections, at every size"
    """
    names = {"hora": "Hora's own connections", **{key: result.labels.get(key, key) for key in ("mpi", "gloo")}}
    won: dict[str, list[str]] = {}
    for row in result.rows if result.hosts else ():
        times = {key: row.cells[key].median_us for key in names if key in row.cells}
        if len(times) > 1:
            won.setdefault(min(times, key=lambda key: times[key] * (TIE if key == "hora" else 1.0)), []).append(
                row.name
            )
    if not won:
        return ""
    if len(won) == 1:
        [only] = won
        said = f"{names[only]}, at every size"
    else:
        said = ", ".join(f"{names[key]} for {_listed(rows)}" for key, rows in won.items())
    others = [f"HORA_TRANSPORT={key} chooses {names[key]}" for key in won if key != "hora"]
    return ". ".join([f"Fastest between these hosts: {said}", *others])


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def print_result(result: Result, console: Console) -> None:
    """The table, what the figures mean, and on what they were measured."""
    if not console.is_terminal:
        console.width = max(console.width, 170 if result.hosts else 130)  # a log has no width; do not fold its lines
    console.print(table(result, console.width >= FULL_WIDTH), highlight=False)
    rounds = max((cell.rounds for row in result.rows for cell in row.cells.values()), default=0)
    meaning = f"Median of {rounds} rounds"
    if result.bench != "launch":
        meaning += " taken by turns, time per call of the slowest worker"
    spread = "± is half the width between the 10th and 90th percentile"
    lines = [f"{meaning}; {train_report.MEANING if result.bench == 'train' else spread}.", f"{provenance(result)}."]
    if result.bench == "train":
        floor = train_report.FLOOR_MEANING if any(row.floors_us for row in result.rows) else ""
        told = (train_report.LIMIT_MEANING, train_report.link_text(result), floor, train_report.remark(result))
        lines[1:1] = [f"{said}." for said in told if said]
    if said := winner(result):
        lines.insert(1, f"{said}.")
    lines += [f"Note: {note}." for note in result.notes]
    for line in lines:
        console.print(line, highlight=False, markup=False)
