"""The section on elastic jobs: experiments with kills, and the generations of every run that had some."""

from __future__ import annotations

from hora.lab.records.generations import rows
from hora.lab.report import cells
from hora.lab.report.gather import ReportInput
from hora.lab.report.section import Section

__all__ = ["elastic"]

_MOST_RUNS = 8


def elastic(gathered: ReportInput) -> Section | None:
    """What was lost, who came, and what it cost."""
    tables, words = [], []
    for measured in gathered.experiments:
        if measured.experiment.kind == "elastic" and measured.experiment.rows:
            words += [f"{each['title'][:1].upper()}{each['title'][1:]}." for each in measured.experiment.findings]
            tables.append(
                cells.table(
                    measured.experiment.rows, measured.name, first=["run"], leave_out=["error"], about=measured.about
                )
            )
    files = [(ran.name, ran.file) for ran in gathered.all_runs() if ran.file is not None]
    changed = [(name, file.generations) for name, file in files if len(file.generations) > 1]
    generations = [cells.table(rows(found), f"Generations: {name}") for name, found in changed[:_MOST_RUNS]]
    if not tables and not generations:
        return None
    return Section(anchor="elastic", title="Workers lost and come", words=words, tables=[*tables, *generations])
