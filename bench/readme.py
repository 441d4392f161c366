"""Puts measured figures into the README and docs/benchmarks.md and draws their picture: no figure is typed by hand.

    python bench/readme.py            rewrite what stands between the markers, and docs/img/allreduce.svg
    python bench/readme.py --check    change nothing; exit 1 if that would have changed something

``<!-- bench:NAME -->`` … ``<!-- /bench -->`` holds the table of ``bench/results/NAME.json``; ``bench:training`` is the
README's table, made of training on one host and on two, and ``bench:NAME-short`` has the lines of ``SHORT`` only. A
figure whose rounds differ too much (``chart.steady``) or that is above the limit is not shown: the table says that it
varies, and `make bench` is the way to a better one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import chart
import msgspec

from hora.bench import train_report
from hora.bench.elastic.result import ElasticResult
from hora.bench.elastic.result import lines as elastic_lines
from hora.bench.plan import BenchRow, ContenderTime, Result
from hora.bench.show import cell_text, provenance, ratios, shows_p99, winner
from hora.text import ratio_text

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
# The README's table: where, and the result; and its columns.
TRAINING = {"one host": "train-2", "two hosts": "train-hosts-2", "two hosts, 1 Gbit/s": "train-hosts-2-1gbit"}
README_COLUMNS = ("limit", "hora", "ddp", "ddp_tuned", "horovod")
# The README's lines of the table of elastic jobs.
SHORT = ("kill to", "wait for a newcomer", "committed steps", "goodput")
RESULTS = ROOT / "bench" / "results"
PICTURE, PICTURE_OF = ROOT / "docs" / "img" / "allreduce.svg", "allreduce-2"
VARIES = "varies"
SLOT = re.compile(r"(<!-- bench:(?P<name>[a-z0-9-]+) -->\n).*?(<!-- /bench -->)", re.DOTALL)


def elastic(file: Path, *, short: bool = False) -> str:
    """The table of `hora bench elastic`."""
    result = msgspec.json.decode(file.read_bytes(), type=ElasticResult)
    headings, *rows = elastic_lines(result)
    rows = [row for row in rows if not short or row[0].startswith(SHORT)]
    lines = ["| " + " | ".join(headings) + " |", "| --- |" + " ---: |" * (len(headings) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    facts = result.machine
    said = "".join(f" Note: {note}." for note in result.notes)
    versions = result.versions
    programs = [f"Hora {versions['hora']}", f"torch {versions['torch']}"]
    programs += [text for text in versions.values() if text.startswith("torchft")]
    where = f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}; {', '.join(programs)}"
    lines += ["", f"`{result.command}`, {result.np} workers: median / 99th percentile (how many), on {where}.{said}"]
    return "\n".join(lines) + "\n"


def load(name: str) -> Result | None:
    file = RESULTS / f"{name}.json"
    return msgspec.json.decode(file.read_bytes(), type=Result) if file.exists() else None


def markdown(result: Result) -> str:
    """The table, the command that made it, and the machine it ran on."""
    if result.bench == "train":
        return training(result)
    keys = [key for key in result.labels if any(key in row.cells for row in result.rows)]
    columns = ratios(result)
    headings = ["", *(result.labels[key] for key in keys), *(heading for heading, _, _ in columns)]
    lines = ["| " + " | ".join(headings) + " |", "| --- |" + " ---: |" * (len(headings) - 1)]
    for row in result.rows:
        tail = shows_p99(result, row)
        cells = [_cell_text(row.cells.get(key), tail) for key in keys]
        shown = [f"**{text}**" if key == "hora" and text else text for key, text in zip(keys, cells, strict=True)]
        pairs = [(row.ratio(over, under), over, under) for _, over, under in columns]
        compared = [ratio_text(ratio) if _steady(row, over, under) else "" for ratio, over, under in pairs]
        lines.append("| " + " | ".join([row.name, *shown, *compared]) + " |")
    rounds = max(cell.rounds for row in result.rows for cell in row.cells.values())
    notes = [f"Note: {note}" for note in result.notes]
    lines += [
        "",
        f"`{result.command}`: median of {rounds} rounds ± half the width between the 10th and 90th percentile, on "
        f"{provenance(result)}." + "".join(f" {said}." for said in [*filter(None, [winner(result)]), *notes]),
    ]
    return "\n".join(lines) + "\n"


def _cell_text(cell: ContenderTime | None, tail: bool) -> str:
    if cell is None:
        return ""
    return cell_text(cell, tail) if chart.steady(cell) else VARIES


def _steady(row: BenchRow, *keys: str) -> bool:
    return all(key in row.cells and chart.steady(row.cells[key]) for key in keys)


def _sure(row: BenchRow, key: str, text: str) -> bool:
    """Whether what a table says of a contender, or of two (``hora/ddp``), can be told.

    What is above the limit, in step or the floor is no better than these: the figures vary by that much.
    """
    if not key:  # of a floor, or a share of it
        return not text.endswith("x") or float(text[:-1]) <= 1
    if "/" in key:
        ours, theirs = key.split("/")
        return _steady(row, ours, theirs) and (theirs != train_report.IN_STEP or row.versus[key] <= 1)
    return _steady(row, key) and row.shares.get(key, 0) <= 1


def training(result: Result) -> str:
    """The same of `hora bench train`: a line for each network, or, between hosts, for each contender."""
    headings, *rows = train_report.lines(result)
    keys = {heading: key for key, heading in train_report.headings(result)}
    lines = ["| " + " | ".join(headings) + " |", "| --- |" + " ---: |" * (len(headings) - 1)]
    for number, (name, *texts) in enumerate(rows):
        shown = []
        for place, text in enumerate(texts):
            between_hosts = bool(result.link_mbit_per_s)
            heading, row = (name, result.rows[place]) if between_hosts else (headings[1 + place], result.rows[number])
            told = text if not text or _sure(row, keys.get(heading, ""), text) else VARIES
            shown.append(f"**{told}**" if told and heading == result.labels["hora"] else told)
        lines.append("| " + " | ".join([name, *shown]) + " |")
    rounds = max(cell.rounds for row in result.rows for cell in row.cells.values())
    remarks = [said for said in (train_report.link_text(result), train_report.remark(result)) if said]
    remarks += [f"Note: {note}" for note in result.notes]
    measured = f"`{result.command}`: median of {rounds} rounds, on {provenance(result)}."
    lines += ["", " ".join([measured, *(f"{said}." for said in remarks)])]
    return "\n".join(lines) + "\n"


def one_table() -> str:
    """The README's: shares of the limit's speed, on one host and on two, beside DDP; Horovod where it was measured."""
    results = {place: result for place, name in TRAINING.items() if (result := load(name))}
    labels = {key: label for result in results.values() for key, label in train_report.headings(result)}
    keys = [key for key in README_COLUMNS if key in labels]
    lines = ["| " + " | ".join(["", *(labels[key] for key in keys)]) + " |", "| --- |" + " ---: |" * len(keys)]
    for place, result in results.items():
        for row in result.rows:
            if row.images:
                shown = [_share_text(row, key) for key in keys]
                lines.append("| " + " | ".join([f"{row.name}, {place}", *shown]) + " |")
    lines += [""]
    for place, name in TRAINING.items():
        if result := results.get(place):
            rounds = max(cell.rounds for row in result.rows for cell in row.cells.values())
            notes = "".join(f" Note: {note}." for note in result.notes)
            lines.append(f"{place[0].upper()}{place[1:]}: median of {rounds} rounds, on {provenance(result)}.{notes}")
        else:
            lines.append(f"{place[0].upper()}{place[1:]}: not measured yet; bench/results/{name}.json will have it.")
    return "\n".join(lines) + "\n"


def _share_text(row: BenchRow, key: str) -> str:
    if key not in row.cells:
        return ""
    if key == train_report.LIMIT:
        return train_report.speed_text(row, key)
    told = f"{100 * row.shares[key]:.0f} %" if _sure(row, key, "") else VARIES
    return f"**{told}**" if key == "hora" else told


def filled(text: str) -> str:
    """A page with every slot filled from its result; a slot without a result says how to get one."""

    def fill(slot: re.Match[str]) -> str:
        if slot["name"] == "training":
            return slot[1] + one_table() + slot[3]
        name = slot["name"].removesuffix("-short")
        if name.startswith("elastic") and (file := RESULTS / f"{name}.json").exists():
            return slot[1] + elastic(file, short=name != slot["name"]) + slot[3]
        result = load(name)
        target = "bench-hosts" if "hosts" in slot["name"] else "bench"
        body = markdown(result) if result else f"*Not measured yet: `make {target}` fills this in.*\n"
        return slot[1] + body + slot[3]

    return SLOT.sub(fill, text)


def main() -> int:
    wanted = {page: filled(page.read_text()) for page in PAGES}
    if result := load(PICTURE_OF):
        wanted[PICTURE] = chart.svg(result)
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} does not show what is in bench/results/; run: python bench/readme.py")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path])
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
