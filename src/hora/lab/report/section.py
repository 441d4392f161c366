"""A section of the page: words, plots, tables. The modules that make them return none if they have nothing to say."""

from __future__ import annotations

import msgspec

from hora.lab.report.cells import ReportTable
from hora.lab.report.charts import Figure

__all__ = ["Section"]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """``anchor`` is its place on the page. ``reference`` are tables to look something up in, folded away."""

    anchor: str
    title: str
    words: list[str] = []
    figures: list[Figure] = []
    tables: list[ReportTable] = []
    reference: list[ReportTable] = []
    notes: list[str] = []
