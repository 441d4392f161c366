"""A run or an experiment in full, and the list of all, on a console: readable without colour, at most 100 columns."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hora import terminal
from hora.errors import BadData
from hora.lab import trial
from hora.lab.columns import column, is_number, value_text
from hora.lab.records import generations
from hora.lab.records.compare import Comparison
from hora.lab.records.files import TRIALS, Experiment, RunFolder, state_of
from hora.lab.records.summary import RecordSummary
from hora.lab.records.typed import typed_command
from hora.lab.records.words import changed, when
from hora.lab.show import WIDTH
from hora.text import share_text, size_text
from hora.workloads import WORKLOADS, options_of
from hora.workloads.folder import Generation, RunFile

__all__ = ["columns_of", "print_comparison", "print_experiment", "print_list", "print_run", "table"]

_EPOCHS = 12  # shown; of more, the first and the last
_LOG_LINES = 15
_STYLES = {"failed": "red", "died": "red", "out of memory": "red", "not readable": "red", "timeout": "red",
           "interrupted": "yellow", "gone": "yellow", "running": "cyan"}  # fmt: skip
_MEASURED = (
    "images_per_s", "images_per_s_study", "first_batch_s", "data_s", "cpu_share", "gpu_share", "memory_bytes", "seconds"
)  # fmt: skip
_TOLD_ABOVE = ("workload", "workers", "emulated_workers", "seed", "batch", "global_batch", "peak_lr", "precision",
               "accumulate", "generated_data")  # fmt: skip


def table(*headings: str, title: str = "") -> Table:
    """An empty table; headings with a leading '>' are of numbers."""
    plain = [text.removeprefix(">") for text in headings]
    return terminal.table(title, plain, left=[text for text in headings if not text.startswith(">")], wrap=True)


def print_list(out: Console, lines: Sequence[RecordSummary], runs: Path) -> None:
    """All records, a line each."""
    if not lines:
        _say(
            out, f"Nothing was run in {runs} yet. 'hora train' and 'hora lab' write there; --runs names another folder."
        )
        return
    heads = ["when", "kind", "workload", "workers", "state", "result"]
    cells = [
        [when(line.started), _cut(line.kind or "?", 12), _cut(line.workload, 16), line.workers, line.state, line.result]
        for line in lines
    ]
    widths = [max(len(row[column]) for row in [heads, *cells]) for column in range(len(heads))]
    widths[-1] = min(widths[-1], max(len(heads[-1]), out.width - sum(widths[:-1]) - 2 * len(widths[:-1])))
    cells = [[*row[:-1], _cut(row[-1], widths[-1])] for row in cells]
    room = out.width - sum(widths) - 2 * len(widths)
    heading = "  ".join(map(str.ljust, heads, widths)) + ("  folder" if room >= len("folder") else "")
    out.print(f"[bold]{heading.rstrip()}[/bold]", soft_wrap=True)
    for row, line in zip(cells, lines, strict=True):
        texts = [escape(text.ljust(width)) for text, width in zip(row, widths, strict=True)]
        texts[3] = row[3].rjust(widths[3])
        texts[4] = _state(line.state) + " " * (widths[4] - len(line.state))
        text = "  ".join(texts)
        fits = len(line.folder) <= room  # else it has a line of its own: it is there to be copied, so never folded
        out.print(f"{text}  {escape(line.folder)}" if fits else text.rstrip(), soft_wrap=True)
        if not fits:
            out.print(f"    {escape(line.folder)}", soft_wrap=True)


def _cut(text: str, width: int) -> str:
    """
    >>> _cut("efficiency 80 % on 2", 12), _cut("done", 12)
    ('efficiency …', 'done')
    """
    return text if len(text) <= width else f"{text[: width - 1]}…"


# ---- a run ----


def print_run(out: Console, run: RunFolder) -> None:
    """A run: options, environment and results. BadData, after all else, if the lab's outcome is incomplete."""
    file, state = run.file, state_of(run.file)
    outcome, problem = _outcome(run)
    if outcome is not None and state in ("done", "failed", "died"):
        state = outcome.state
    _title(out, f"{file.workload}, {_workers(run, outcome)}", state, (outcome.error if outcome else "") or file.error)
    _pairs(out, "", {
        "folder": str(run.folder),
        "started": _period(file.started, file.ended),
        "command": shlex.join(typed_command(file)),
    })  # fmt: skip
    _pairs(out, "Configuration", _configuration(run, outcome))
    _pairs(out, "Environment", _environment(file))
    _pairs(out, "Results", _results(run, outcome))
    _epochs(out, run.epochs())
    _generations(out, file.generations)
    if state not in ("done", "running") and (log := run.log(_LOG_LINES)):
        _heading(out, f"The last lines of {run.folder / trial.LOG}")
        for line in log:
            out.print(f"  {line}", markup=False, soft_wrap=True)
    if timelines := run.timelines():
        _say(out, f"Where the time went: hora timeline {shlex.join(map(str, timelines))}")
    if problem is not None:
        raise problem


def _outcome(run: RunFolder) -> tuple[trial.TrialOutcome | None, BadData | None]:
    try:
        return run.outcome(), None
    except BadData as error:
        return None, error


def _workers(run: RunFolder, outcome: trial.TrialOutcome | None) -> str:
    if outcome is not None and outcome.trial.independent:
        return f"{outcome.trial.workers} workers, each by itself"
    file = run.file
    count = file.emulated_workers or file.workers
    made = f"{count} worker{'' if count == 1 else 's'}"
    if file.emulated_workers:
        made += f" emulated by {file.workers} process{'' if file.workers == 1 else 'es'}"
    return f"{made} on {file.hosts} hosts" if file.hosts > 1 else made


def _configuration(run: RunFolder, outcome: trial.TrialOutcome | None) -> dict[str, str]:
    file = run.file
    usual = msgspec.to_builtins(options_of(file.workload)()) if file.workload in WORKLOADS else {}
    facts = {column(name).title: value_text(name, value) for name, value in changed(file.options, usual).items()}
    for name in ("batch", "epochs"):
        if name in file.options:
            facts.setdefault(name, value_text(name, file.options[name]))
    for name in ("global_batch", "peak_lr"):
        if name in file.result:
            facts[column(name).title] = value_text(name, file.result[name])
    if file.threads_per_worker:
        facts["threads per worker"] = str(file.threads_per_worker)
    if outcome is not None and outcome.trial.transport != "auto":
        facts["transport"] = outcome.trial.transport
    return facts


def _results(run: RunFolder, outcome: trial.TrialOutcome | None) -> dict[str, str]:
    result = dict(run.file.result)
    if outcome is not None:
        result = {**result, **outcome.result}
        result = {name: value for name, value in result.items() if not name.startswith("images_per_s_")}
        for name in _MEASURED:
            result[name] = getattr(outcome, name)
    if not result and run.steps():
        result = {name: value for name, value in run.steps()[-1].items() if name not in ("epoch", "samples")}
    facts = {
        column(name).title: value_text(name, value)
        for name, value in result.items()
        if name not in _TOLD_ABOVE and not isinstance(value, list | dict) and value_text(name, value) != ""
    }
    if outcome is not None and outcome.step_s and "images/s" in facts:
        ends = (outcome.images_per_s_low, outcome.images_per_s_high)
        low, high = (value_text("images_per_s", end) or "?" for end in ends)
        facts["images/s"] += (
            f"  (90 %: {low} to {high}; {len(outcome.step_s)} steps, {outcome.warmup_steps} before them left out)"
        )
    if outcome is not None and outcome.study_steps and column("images_per_s_study").title in facts:
        facts[column("images_per_s_study").title] += f"  (of the first {outcome.study_steps} steps, none left out)"
    if result.get("generated_data"):
        facts["caution"] = "the data is generated: accuracies say nothing about the real data set"
    return facts


def _generations(out: Console, found: Sequence[Generation]) -> None:
    if len(found) < 2:
        return
    lines = generations.rows(found[-_EPOCHS:])
    made = table(*(f">{column(name).title}" for name in lines[0]))
    for line in lines:
        made.add_row(*(escape(value_text(name, value)) for name, value in line.items()))
    _heading(out, "Generations: workers that left and came" + (f", the last {_EPOCHS}" * (len(found) > _EPOCHS)))
    out.print(made)


def _epochs(out: Console, lines: Sequence[Mapping[str, Any]]) -> None:
    if not lines:
        return
    names = [name for name in lines[0] if name not in ("step", "epoch", "samples", "train_s")]
    names = sorted(names, key=lambda name: name != "epoch_s")[:7]
    made = table(">epoch", *(f">{'time' if name == 'epoch_s' else column(name).title}" for name in names))
    skipped = len(lines) - _EPOCHS
    for number, line in enumerate(lines):
        if skipped > 0 and number == _EPOCHS // 2:
            made.add_row("…")
        if skipped <= 0 or number < _EPOCHS // 2 or number >= len(lines) - _EPOCHS // 2:
            made.add_row(str(int(line["epoch"]) + 1), *(value_text(name, line.get(name)) for name in names))
    out.print()
    out.print(made)


# ---- an experiment ----


def print_experiment(
    out: Console, found: Experiment, folder: Path, results: Callable[[Console], None] | None = None
) -> None:
    """An experiment. BadData, after all else, if the outcome of a trial is incomplete. ``results`` prints rows and
    findings as experiments of its kind do; without it, or where the record lacks something for that, they are printed
    as they are."""
    _title(out, f"{found.kind}: {found.title}", state_of(found), found.error)
    _pairs(out, "", {
        **({"label": found.label} if found.label else {}),
        "folder": str(folder),
        "started": _period(found.started, found.ended),
        "command": shlex.join(_short(found.command)),
    })  # fmt: skip
    _pairs(out, "Configuration", {
        name.replace("_", " "): value_text(name, value)
        for name, value in found.options.items() if not isinstance(value, dict) and value_text(name, value) != ""
    })  # fmt: skip
    _pairs(out, "Environment", _environment(found))
    if not (found.rows and results is not None and _printed(out, results)):
        _results_as_they_are(out, found)
    if found.notes:
        out.print()
        for note in found.notes:
            _say(out, note)
    problems = _trials(out, found, folder)
    if problems:
        raise BadData("\n".join(problems))


def _printed(out: Console, results: Callable[[Console], None]) -> bool:
    """Whether all of it could be printed; else nothing is."""
    with out.capture() as shown:
        try:
            results(out)
        except (KeyError, TypeError, ValueError):  # of an older Hora, or of an experiment that was ended early
            return False
    out.file.write(f"\n{shown.get()}")
    return True


def _results_as_they_are(out: Console, found: Experiment) -> None:
    if found.rows:
        out.print()
        out.print(_rows(found.rows))
    for finding in found.findings:
        out.print(f"\n[bold]{escape(str(finding.get('title', '')))}.[/bold]")
        for label, name in (("", "what"), ("Change: ", "change")):
            if finding.get(name):
                _say(out, f"{label}{str(finding[name]).rstrip('.')}.", 2)
        if finding.get("gain"):
            _say(out, f"Gain: up to {share_text(finding['gain'])} less time a step.", 2)


def _rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    names = columns_of(rows)
    figures = [name for name in names if all(row.get(name) is None or is_number(row[name]) for row in rows)]
    made = table(*(f">{column(name).title}" if name in figures else column(name).title for name in names))
    for row in rows:
        made.add_row(*(escape(value_text(name, row.get(name))) for name in names))
    return made


def columns_of(rows: Sequence[Mapping[str, Any]], width: int = WIDTH) -> list[str]:
    """The columns that fit, in their order; those that say nothing, or the same in all rows, are the first to go.

    >>> columns_of([{"workers": 1, "images_per_s": 10.0, "curve": {}, "error": ""}, {"workers": 2, "error": ""}])
    ['workers', 'images_per_s']
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    shown = [
        name for name in names
        if not any(isinstance(row.get(name), dict | list) for row in rows)
        and any(value_text(name, row.get(name)) != "" for row in rows)
    ]  # fmt: skip
    widths = {
        name: 2 + max(len(column(name).title), *(len(value_text(name, row.get(name))) for row in rows))
        for name in shown
    }
    alike = [name for name in shown if len(rows) > 1 and len({value_text(name, row.get(name)) for row in rows}) == 1]
    expendable = [*reversed(alike), *(name for name in reversed(shown) if name not in alike and name != "state")]
    for name in expendable:
        if sum(widths[each] for each in shown) <= width:
            break
        shown.remove(name)
    return shown


def _trials(out: Console, found: Experiment, folder: Path) -> list[str]:
    """Those that were not done, and what is wrong with those whose outcome cannot be read."""
    problems = []
    for name in found.trials:
        place = folder / TRIALS / name
        try:
            outcome = trial.load(place) if (place / trial.FILE).exists() else None
        except BadData as error:
            problems.append(str(error))
            continue
        if outcome is not None and not outcome.done:
            _say(out, f"{name}: {outcome.state}: {outcome.error} (see {place / trial.LOG})", style="red")
    return problems


# ---- a comparison ----


def print_comparison(out: Console, made: Comparison) -> None:
    """Differences first, then results with their ratio to the first."""
    letters = [chr(ord("A") + number) if number < 26 else str(number) for number in range(len(made.folders))]
    for letter, folder in zip(letters, made.folders, strict=True):
        out.print(f"[bold]{letter}[/bold]  {escape(folder)}", soft_wrap=True)
    if made.differences:
        differing = table("what differs", *letters)
        for row in made.differences:
            differing.add_row(escape(row.label), *(escape(value_text(row.name, value) or "-") for value in row.values))
        out.print()
        out.print(differing)
    else:
        _say(out, "Nothing that is recorded differs: the same options, versions and machine.")
    results = table("result", f">{letters[0]}", *(text for each in letters[1:] for text in (f">{each}", f">{each}/A")))
    for row in made.results:
        cells = [value_text(row.name, row.values[0]) or "-"]
        for value, ratio in zip(row.values[1:], row.ratios[1:], strict=True):
            cells += [value_text(row.name, value) or "-", "" if ratio is None else f"{ratio:.2f}"]
        results.add_row(escape(row.label), *map(escape, cells))
    if made.results:
        out.print(results)


# ---- both ----


def _environment(file: RunFile | Experiment) -> dict[str, str]:
    host, git = file.host, file.git
    facts = {
        "host": ", ".join(str(host[name]) for name in ("hostname", "cpu_model", "system") if host.get(name)),
        "cores": f"{host['cores']}, {size_text(host['memory_bytes'])} memory" if "memory_bytes" in host else "",
        "versions": ", ".join(f"{name} {version}" for name, version in file.versions.items()),
    }
    if git:
        facts["git"] = f"{str(git.get('commit'))[:12]}{' with changes' if git.get('dirty') else ''}"
    return {name: text for name, text in facts.items() if text}


def _short(command: Sequence[str]) -> list[str]:
    """A command to read: programs without their folders, documents without their middle.

    >>> _short(["/opt/bin/hora", "train", "mnist"])
    ['hora', 'train', 'mnist']
    """
    words = [Path(command[0]).name, *command[1:]] if command else []
    return [f"{word[:20]}…" if word.startswith("{") and _is_json(word) else word for word in words]


def _is_json(word: str) -> bool:
    try:
        json.loads(word)
    except ValueError:
        return False
    return True


def _period(started: str, ended: str) -> str:
    try:
        seconds = (datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds()
    except ValueError:
        return when(started)
    return f"{when(started)}, took {value_text('seconds', seconds)}"


def _title(out: Console, text: str, state: str, error: str) -> None:
    out.print(f"[bold]{escape(text)}[/bold]: {_state(state)}")
    if error:
        _say(out, error, style=_STYLES.get(state, ""))


def _state(state: str) -> str:
    style = _STYLES.get(state, "green")
    return f"[{style}]{state}[/{style}]"


def _heading(out: Console, text: str) -> None:
    out.print(f"\n[bold]{escape(text)}[/bold]")


def _pairs(out: Console, title: str, facts: Mapping[str, str]) -> None:
    """Names and values; values begin in one column, and are folded under it."""
    facts = {name: text for name, text in facts.items() if text}
    if not facts:
        return
    if title:
        _heading(out, title)
    width = max(map(len, facts))
    for name, text in facts.items():
        _say(out, text, width + 4, first=f"  {name.ljust(width)}  ")


def _say(out: Console, text: str, indent: int = 0, first: str | None = None, style: str = "") -> None:
    margin = " " * indent
    lines = textwrap.wrap(
        text, max(40, out.width), initial_indent=first if first is not None else margin, subsequent_indent=margin,
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip
    for line in lines:
        out.print(line, markup=False, soft_wrap=True, style=style or None)
