"""How it was measured: methods as the experiments state them, machine, versions, commands, seeds; what did not end."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from hora.lab.records import Experiment
from hora.lab.records.typed import typed_command
from hora.lab.report import cells
from hora.lab.report.answer import is_generated, sentence
from hora.lab.report.gather import ReportedRun, ReportInput
from hora.lab.report.section import Section
from hora.text import plural, size_text
from hora.workloads.folder import RunFile

__all__ = ["Environment", "Methods", "failures", "methods"]


class Environment(msgspec.Struct, frozen=True):
    """What some of it ran on and with, as pairs of name and value."""

    title: str
    facts: list[tuple[str, str]]


class Methods(msgspec.Struct, frozen=True, kw_only=True):
    """The last section."""

    notes: list[str]
    environments: list[Environment]
    tables: list[cells.ReportTable]
    commands: list[str]


def methods(gathered: ReportInput) -> Methods:
    """All that somebody needs to judge the figures, or to measure again."""
    runs = list(gathered.all_runs())
    notes = [sentence(note) for measured in gathered.experiments for note in measured.experiment.notes]
    warmups = {ran.outcome.warmup_steps for ran in runs if ran.outcome and ran.outcome.step_s}
    if warmups and not any("warm-up" in note for note in notes):
        low, high = min(warmups), max(warmups)
        count = plural(low, "step") if low == high else f"{low} to {high} steps"
        notes.append(f"Throughput leaves out the warm-up: the first {count} of a run.")
    if seeds := _seeds(runs):
        notes.append(f"Seeds: {', '.join(map(str, seeds))}.")
    if any(is_generated(ran) for ran in runs):
        notes.append("Some or all of the data is generated. It has the sizes and formats of the real data set.")
    commands = [shlex.join(_short(measured.experiment.command)) for measured in gathered.experiments]
    commands += [shlex.join(typed_command(ran.file)) for ran in gathered.runs if ran.file]
    commands += [result.command for _, result in gathered.benches]
    return Methods(
        notes=list(dict.fromkeys(notes)),
        environments=_environments(gathered),
        tables=[],
        commands=[command for command in dict.fromkeys(commands) if command],
    )


def _seeds(runs: list[ReportedRun]) -> list[int]:
    found = {ran.file.options.get("seed") for ran in runs if ran.file}
    return sorted(seed for seed in found if isinstance(seed, int))


def _short(command: list[str]) -> list[str]:
    """The command as it is typed: without the interpreter and the folder of the program.

    >>> _short(["/venv/bin/python", "-m", "hora", "lab", "scaling"]), _short(["/venv/bin/hora", "lab", "list"])
    (['hora', 'lab', 'scaling'], ['hora', 'lab', 'list'])
    """
    if "-m" in command[:4] and command[command.index("-m") + 1 :][:1] == ["hora"]:
        return command[command.index("-m") + 1 :]
    for place, word in enumerate(command[:3]):
        if word.rpartition("/")[2] == "hora":
            return ["hora", *command[place + 1 :]]
    return command


def _environments(gathered: ReportInput) -> list[Environment]:
    """One for every machine and set of versions, with what ran there."""
    found: dict[bytes, tuple[list[str], Mapping[str, Any]]] = {}
    files: list[tuple[str, Experiment | RunFile]] = [(m.name, m.experiment) for m in gathered.experiments]
    files += [(ran.name, ran.file) for ran in gathered.runs if ran.file]
    for name, file in files:
        facts = {"host": file.host, "versions": file.versions, "git": file.git}
        key = msgspec.json.encode(facts, order="deterministic")
        found.setdefault(key, ([], facts))[0].append(name)
    made = []
    for names, facts_there in found.values():
        title = "Environment" if len(found) == 1 else ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        made.append(Environment(title, _facts(**facts_there)))
    times = [file.started for _, file in files if file.started]
    ends = [file.ended for _, file in files if file.ended]
    if made and times:
        made[0].facts.append(("measured", _time(min(times)) + (f" to {_time(max(ends))}" if ends else "")))
    return made


def _facts(host: Mapping[str, Any], versions: Mapping[str, str], git: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    memory = host.get("memory_bytes")
    machine = [
        str(host["cpu_model"]) if host.get("cpu_model") else "",
        plural(host["cores"], "core") if host.get("cores") else "",
        f"{size_text(memory)} of memory" if isinstance(memory, int) else "",
    ]
    facts.append(("machine", ", ".join(part for part in machine if part)))
    facts += [("host", str(host.get("hostname", ""))), ("system", str(host.get("system", "")))]
    facts.append(("versions", ", ".join(f"{name} {version}" for name, version in versions.items())))
    if git.get("commit"):
        facts.append(
            ("git", str(git["commit"])[:12] + (", with changes that were not committed" if git.get("dirty") else ""))
        )
    return [(name, value) for name, value in facts if value]


def _time(text: str) -> str:
    """
    >>> _time("2026-11-16T07:10:15.123+00:00")
    '2026-11-16 07:10 UTC'
    """
    return f"{text[:10]} {text[11:16]} UTC"


def failures(gathered: ReportInput) -> Section | None:
    """Trials and runs that did not end well."""
    rows = []
    for ran in gathered.all_runs():
        state = ran.outcome.state if ran.outcome else ran.file.state if ran.file else "failed"
        error = ran.outcome.error if ran.outcome else ran.file.error if ran.file else ""
        if state != "done":
            rows.append({"run": ran.name, "state": state, "why": error})
    if not rows:
        return None
    words = [f"{plural(len(rows), 'run')} failed or were interrupted, and are not in any figure."]
    return Section(anchor="failures", title="What did not finish", words=words, tables=[cells.table(rows)])
