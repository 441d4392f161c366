"""Draws a result of `hora bench allreduce --json` as an SVG: bars for every contender, one group a size.

    python bench/chart.py bench/results/allreduce-2.json docs/img/allreduce.svg

Times span five decades from 4 bytes to 64 MB, so every group has its own scale, from zero to its slowest contender:
within a group the lengths compare truly, and the figure at the end of each bar says how long it took. The same input
gives the same bytes, so that the picture can be kept under version control and checked.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.sax.saxutils import escape

import msgspec

from hora.bench.plan import ContenderTime, Result
from hora.text import micros_text

WIDTH, LEFT, RIGHT = 760, 190, 90
BAR, GAP, GROUP_GAP = 13, 3, 16
TOP, BOTTOM = 58, 30
WIDEST_SPREAD = 0.30  # of rounds around their median: beyond it a figure is not shown

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .title { font-size: 16px; font-weight: 600 }
  .size { font-weight: 600 }
  .quiet { fill: #57606a }
  .hora { fill: #c2410c } .hora_shared { fill: #f59e0b } .gloo { fill: #64748b } .mpi { fill: #94a3b8 }
  .memcpy { fill: none; stroke: #94a3b8 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .quiet { fill: #9198a1 } .hora { fill: #fb923c } .hora_shared { fill: #fcd34d }
  }
"""


def steady(cell: ContenderTime) -> bool:
    """Whether the rounds agree well enough for their median to be told."""
    return cell.spread <= WIDEST_SPREAD


def svg(result: Result) -> str:
    """The picture. Colours follow the reader's light or dark scheme; nothing is said by colour alone."""
    keys = [key for key in result.labels if any(key in row.cells for row in result.rows)]
    out: list[str] = []
    y = TOP
    for row in result.rows:
        slowest = max((cell.median_us for cell in row.cells.values() if steady(cell)), default=1.0)
        out.append(f'  <text class="size" x="12" y="{y + BAR - 3}">{escape(row.name)}</text>')
        for key in keys:
            cell = row.cells.get(key)
            if cell is None:
                continue
            length = max(1.0, (WIDTH - LEFT - RIGHT) * cell.median_us / slowest) if steady(cell) else 1.0
            text = y + BAR - 3
            label = escape(result.labels[key])
            out.append(f'  <text class="quiet" x="{LEFT - 8}" y="{text}" text-anchor="end">{label}</text>')
            out.append(f'  <rect class="{key}" x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2"/>')
            told = micros_text(cell.median_us) if steady(cell) else "varies"
            out.append(f'  <text x="{LEFT + length + 6:.1f}" y="{text}">{told}</text>')
            y += BAR + GAP
        y += GROUP_GAP
    height = y - GROUP_GAP + BOTTOM
    title = f"allreduce between {result.np} workers on one host: time per call"
    described = "; ".join(
        f"{row.name}: "
        + ", ".join(
            f"{result.labels[key]} {micros_text(cell.median_us) if steady(cell) else 'varies'}"
            for key, cell in row.cells.items()
        )
        for row in result.rows
    )
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'role="img" aria-labelledby="title description">',
        f'  <title id="title">{escape(title)}</title>',
        f'  <desc id="description">{escape(described)}</desc>',
        f"  <style>{STYLE}  </style>",
        f'  <text class="title" x="12" y="24">{escape(title)}</text>',
        '  <text class="quiet" x="12" y="42">float32, in place; median of the slowest worker; shorter is better; '
        "each group has its own scale</text>",
    ]
    where = f"{result.machine['cpu']}, {result.machine['cores']} cores"
    foot = [f'  <text class="quiet" x="12" y="{height - 10}">{escape(where)}</text>', "</svg>"]
    return "\n".join(head + out + foot) + "\n"


def main(source: str, target: str) -> None:
    result = msgspec.json.decode(Path(source).read_bytes(), type=Result)
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_text(svg(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
