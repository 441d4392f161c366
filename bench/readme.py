"""Puts measured figures into the README and draws its picture, so that no figure is ever typed by hand.

    python bench/readme.py            rewrite what stands between the markers, and docs/img/allreduce.svg
    python bench/readme.py --check    change nothing; exit 1 if that would have changed something

``<!-- bench:NAME -->`` … ``<!-- /bench -->`` in the README holds the table of ``bench/results/NAME.json``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import chart
import msgspec

from hora.lab.bench import train_report
from hora.lab.bench.figures import ratio_text, time_text
from hora.lab.bench.plan import Result
from hora.lab.bench.show import provenance, ratios

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "bench" / "results"
PICTURE, PICTURE_OF = ROOT / "docs" / "img" / "allreduce.svg", "allreduce-2"
SLOT = re.compile(r"(<!-- bench:(?P<name>[a-z0-9-]+) -->\n).*?(<!-- /bench -->)", re.DOTALL)


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
        cells = [f"{time_text(c.median_us)} ±{c.spread:.0%}" if (c := row.cells.get(key)) else "" for key in keys]
        shown = [f"**{text}**" if key == "hora" and text else text for key, text in zip(keys, cells, strict=True)]
        lines.append(
            "| " + " | ".join([row.name, *shown, *(ratio_text(row.ratio(o, u)) for _, o, u in columns)]) + " |"
        )
    rounds = max(cell.rounds for row in result.rows for cell in row.cells.values())
    lines += [
        "",
        f"`{result.command}`: median of {rounds} rounds ± half the width between the 10th and 90th percentile, on "
        f"{provenance(result)}." + "".join(f" Note: {note}." for note in result.notes),
    ]
    return "\n".join(lines) + "\n"


def training(result: Result) -> str:
    """The same of `hora bench train`, whose columns say speeds and shares."""
    columns = train_report.headings(result)
    lines = ["| " + " | ".join(["", *(heading for _, heading in columns)]) + " |", "| --- |" + " ---: |" * len(columns)]
    for row in result.rows:
        texts = [(key, train_report.cell_text(row, key)) for key, _ in columns]
        shown = [f"**{text}**" if key == "hora" and text else text for key, text in texts]
        lines.append("| " + " | ".join([row.name, *shown]) + " |")
    rounds = max(cell.rounds for row in result.rows for cell in row.cells.values())
    remark = train_report.remark(result)
    told = [*([remark] if remark else []), *(f"Note: {note}" for note in result.notes)]
    measured = f"`{result.command}`: median of {rounds} rounds, on {provenance(result)}."
    lines += ["", " ".join([measured, *(f"{said}." for said in told)])]
    return "\n".join(lines) + "\n"


def filled(text: str) -> str:
    """The README with every slot filled from its result; a slot without a result says how to get one."""

    def fill(slot: re.Match[str]) -> str:
        result = load(slot["name"])
        body = markdown(result) if result else "*Not measured yet: `make bench` fills this in.*\n"
        return slot[1] + body + slot[3]

    return SLOT.sub(fill, text)


def main() -> int:
    wanted = {README: filled(README.read_text())}
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
