"""The whole way: from folders to the page and its plots."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from hora import __version__
from hora.errors import UsageError
from hora.files import replacing
from hora.lab.records import Experiment
from hora.lab.report import benchmarks, elastic, gan, learning, plans, render, speed, study, sweeps, time_spent
from hora.lab.report.answer import answer
from hora.lab.report.gather import ReportInput, gather
from hora.lab.report.methods import failures, methods
from hora.lab.report.section import Section
from hora.text import plural
from hora.workloads.folder import RunFile

__all__ = ["Written", "sections", "write"]


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What was made, and what could not be read for it."""

    page: Path
    plots: list[Path]
    words: list[str]
    problems: list[str]


def sections(gathered: ReportInput) -> list[Section]:
    """Those that have something to show, in the order of the page. One whose rows are not what they should be is a
    problem, and the others are made."""
    makers = (
        study.study, speed.scaling, speed.throughput, learning.quality, gan.gan3d, elastic.elastic, sweeps.sweep,
        plans.plans, time_spent.timelines, time_spent.utilisation, benchmarks.benchmarks, failures,
    )  # fmt: skip
    found = []
    for maker in makers:
        try:
            section = maker(gathered)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            gathered.problems.append(
                f"the section on {maker.__name__} could not be made: a record has rows that are not as Hora writes "
                f"them ({type(error).__name__}: {error})."
            )
        else:
            if section is not None:
                drawn = [figure for figure in section.figures if figure.worth]
                if drawn or section.tables:
                    found.append(msgspec.structs.replace(section, figures=drawn))
    return found


def write(paths: Sequence[Path], page: Path, plots: Path | None = None, title: str = "") -> Written:
    """Make a page of all that is in these paths, and its plots as files in ``plots`` (default: NAME-plots beside it).
    Raises BadData if there is nothing in them that can be read."""
    render.check()
    gathered = gather(paths)
    found = sections(gathered)
    said = answer(gathered)
    figures = [figure for section in found for figure in section.figures]
    folder = plots or page.with_name(f"{page.stem}-plots")
    values = {
        "title": title or _title(gathered),
        "facts": _facts(gathered),
        "answer": said,
        "problems": gathered.problems,
        "sections": found,
        "methods": methods(gathered),
        "version": __version__,
        "made": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "plots": f"{folder.name}/" if figures else "",
    }
    text = render.fill(values, figures)
    drawn = render.draw(figures, folder) if figures else []
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        with replacing(page) as file:
            file.write(text.encode())
    except OSError as error:
        raise UsageError(f"-o {page} cannot be written: {error.strerror}. Give another file.") from None
    return Written(page=page, plots=drawn, words=[str(each) for each in said.words], problems=gathered.problems)


def _title(gathered: ReportInput) -> str:
    titles = list(dict.fromkeys(measured.experiment.title for measured in gathered.experiments))
    workloads = {title.partition(": ")[0] for title in titles}
    workloads |= {ran.file.workload for ran in gathered.runs if ran.file and titles}
    if len(workloads) == 1 and len(titles) < 5:
        named = [title.partition(": ")[2] or title for title in titles]
        return f"{next(iter(workloads))}: {_listed(named)}"
    if not titles and len(gathered.runs) == 1 and gathered.runs[0].file:
        return f"{gathered.runs[0].file.workload}, {plural(gathered.runs[0].file.workers, 'worker')}"
    return "What was measured"


def _listed(words: Sequence[str]) -> str:
    """
    >>> _listed(["a", "b", "c"]), _listed(["a"])
    ('a, b and c', 'a')
    """
    return ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + words[-1]


def _counts(gathered: ReportInput) -> str:
    parts = [
        (len(gathered.experiments), "experiment"), (len(gathered.runs), "run"), (len(gathered.benches), "benchmark"),
        (0 if gathered.experiments or gathered.runs else len(gathered.spent), "timeline"),
    ]  # fmt: skip
    said = [plural(count, name) for count, name in parts if count]
    return _listed(said) if said else "nothing"


def _facts(gathered: ReportInput) -> str:
    """A line below the title: how many trials, on what, when."""
    trials = sum(len(measured.runs) for measured in gathered.experiments)
    files: list[Experiment | RunFile] = [measured.experiment for measured in gathered.experiments]
    files += [ran.file for ran in gathered.runs if ran.file]
    hosts = {str(file.host.get("hostname", "")) for file in files} - {""}
    cores = {int(file.host["cores"]) for file in files if file.host.get("cores")}
    said = [_counts(gathered), plural(trials, "trial") if trials else ""]
    if len(hosts) == 1 and len(cores) == 1:
        said.append(f"{next(iter(hosts))}, {plural(next(iter(cores)), 'core')}")
    elif hosts:
        said.append(plural(len(hosts), "host"))
    started = min((file.started for file in files if file.started), default="")
    said.append(started[:10])
    return " · ".join(part for part in said if part)
