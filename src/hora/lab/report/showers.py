"""Generated showers beside real ones, of runs of 3DGAN with --analysis: profiles, moments, and how much energy is left.

A run keeps them in ``showers.json``: for each bin of primary energy the mean profile along the three axes and the mean
moments, of real and of generated showers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hora.lab.report import cells
from hora.lab.report.charts import Axis, ChartPoint, Figure, Style, lines
from hora.lab.report.gather import ReportedRun

__all__ = ["FILE", "figures", "read", "table"]

FILE = "showers.json"
_AXES = ("x", "y", "z, the depth")
_KINDS: tuple[tuple[str, Style], ...] = (("real", "dashed"), ("generated", "solid"))

Shapes = Sequence[Mapping[str, Any]]


def read(ran: ReportedRun) -> Shapes:
    """What the run has kept; nothing if it has not, or it cannot be read."""
    try:
        return msgspec.json.decode((ran.folder / FILE).read_bytes(), type=list[dict[str, Any]])
    except (OSError, msgspec.DecodeError):
        return []


def figures(name: str, place: int, shapes: Shapes) -> list[Figure]:
    """A plot of the profiles for each axis, and one of the energy."""
    found, of = [], f": {name}" if name else ""
    for number, axis in enumerate(_AXES):
        points = [
            ChartPoint(f"{shape['gev']:g} GeV", cell, value, style=style, note=kind)
            for shape in shapes
            for kind, style in _KINDS
            for cell, value in enumerate(shape[kind]["profiles"][number])
        ]
        found.append(
            lines(
                f"gan3d-profile-{place + 1}-{axis[0]}",
                f"Energy along {axis}{of}",
                points,
                Axis("cell", "d"),
                Axis("energy, mean of showers", "~s"),
                caption="Solid: generated, dashed: real, by primary energy.",
                dots=False,
            )
        )
    ratios = [
        ChartPoint(kind, shape["gev"], sum(shape[kind]["profiles"][0]) / shape["gev"])
        for kind, _ in _KINDS
        for shape in shapes
        if shape["gev"]
    ]
    found.append(
        lines(
            f"gan3d-energy-{place + 1}",
            f"Energy deposited, of the primary particle's{of}",
            ratios,
            Axis("primary energy, GeV", "d"),
            Axis("deposited / primary", ".3~r"),
        )
    )
    return found


def table(name: str, shapes: Shapes, about: str) -> cells.ReportTable:
    """The moments of both kinds, bin by bin."""
    rows = []
    for shape in shapes:
        for number, axis in enumerate("xyz"):
            for order, what in enumerate(("mean", "spread")):
                real, generated = (shape[kind]["moments"][number][order] for kind, _ in _KINDS)
                rows.append(
                    {
                        "GeV": shape["gev"], "events": shape["events"], "axis": axis, "moment": what, "real": real,
                        "generated": generated, "off_share": (generated - real) / real if real else None,
                    }
                )  # fmt: skip
    return cells.table(rows, f"Moments of showers{f': {name}' if name else ''}", about=about)
