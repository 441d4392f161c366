"""The section on elastic jobs: experiments with kills, and the generations of every run that had some."""

from __future__ import annotations

from hora.lab.records import generations
from hora.lab.report import cells
from hora.lab.report.gather import ReportInput
from hora.lab.report.section import Section
from hora.lab.show import capital

__all__ = ["elastic"]

_MOST_RUNS = 8


def elastic(gathered: ReportInput) -> Section | None:
    """What was lost, who came, and what it cost."""
    tables, words = [], []
    for measured in gathered.of_kind("elastic"):
        words += [f"{capital(each['title'])}." for each in measured.experiment.findings]
        rows = measured.experiment.rows
        tables.append(cells.table(rows, measured.name, first=["run"], leave_out=["error"], about=measured.about))
    files = [(ran.name, ran.file) for ran in gathered.all_runs() if ran.file is not None]
    changed = [(name, file.generations) for name, file in files if len(file.generations) > 1]
    tables += [cells.table(generations.rows(found), f"Generations: {name}") for name, found in changed[:_MOST_RUNS]]
    if not tables:
        return None
    return Section(anchor="elastic", title="Workers lost and added", words=words, tables=tables)
