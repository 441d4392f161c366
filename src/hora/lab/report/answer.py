"""The answer, which comes first: a sentence for every experiment, and the findings with what to change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hora.lab.columns import column, number_text, value_text
from hora.lab.records.files import state_of
from hora.lab.report.gather import ReportedExperiment, ReportedRun, ReportInput
from hora.lab.report.label import about, labels
from hora.lab.report.speed import number
from hora.lab.report.sweeps import metric_of, varied
from hora.lab.scaling.show import headlines
from hora.lab.scaling.waterfall import CROWDED, above_ideal
from hora.lab.show import capital, gain_text
from hora.text import count_text, how_long, plural, share_text

__all__ = ["ReportAnswer", "ReportFinding", "ReportSentence", "answer", "is_generated", "sentence"]

_LONGEST_ERROR = 120  # letters; the whole is with what did not finish

Row = Mapping[str, Any]
_MOST_RUNS = 3
_CAUTION = "caution:"
_CALM = {"compute", "not communication"}  # as it should be
_WORTH = 0.005  # of a step; less is not worth a word
_LOST = {
    "small batch": "the smaller batch costs",
    "contention": "contention with other workers costs",
    "waiting": "waiting for the slowest takes",
    "moving": "moving gradients takes",
    "communication": "waiting and moving take",
    "data": "waiting for data takes",
    "pauses": "validation and checkpoints take",
}
_CROWDED = "other workers and processes cost"


class ReportFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict as the page shows it."""

    title: str
    what: str = ""
    change: str = ""
    change_label: str = "Change"
    gain: str = ""
    of: str = ""
    calm: bool = False


class ReportSentence(msgspec.Struct, frozen=True):
    """A sentence; ``lead`` says about what, and ``about`` of which record."""

    text: str
    lead: str = ""
    about: str = ""

    def __str__(self) -> str:
        return f"{self.lead} {self.text}".strip()


class ReportAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Sentences, findings, and what makes them unsure."""

    words: list[ReportSentence]
    cautions: list[str]
    findings: list[ReportFinding]


def answer(gathered: ReportInput) -> ReportAnswer:
    """The answer to what was asked."""
    words: list[ReportSentence] = []
    for measured in gathered.experiments:
        lead = f"{measured.experiment.title}." if len(gathered.experiments) + len(gathered.runs) > 1 else ""
        words += [ReportSentence(sentence(text), lead, measured.about) for text in _experiment(measured)]
    words += [_run(ran) for ran in gathered.runs[:_MOST_RUNS]]
    if not words:
        words = [ReportSentence(sentence(spent.report.findings[0].title), f"{spent.name}.") for spent in gathered.spent]
    if not words:
        words = [ReportSentence(sentence(_counted(gathered)))]
    generated = [ran for ran in gathered.all_runs() if is_generated(ran)]
    if generated:
        which = "" if len(generated) == sum(1 for _ in gathered.all_runs()) else " of some runs"
        words.append(
            ReportSentence(f"The data{which} is generated: accuracy on it says nothing about the real data set.")
        )
    notes = [note for measured in gathered.experiments for note in measured.experiment.notes]
    cautions = [line for measured in gathered.experiments for line in _cautions(measured, gathered)]
    cautions += [sentence(note[len(_CAUTION) :].strip()) for note in notes if note.lower().startswith(_CAUTION)]
    return ReportAnswer(words=words, cautions=cautions, findings=_findings(gathered))


def _cautions(measured: ReportedExperiment, gathered: ReportInput) -> list[str]:
    """Warnings: impossible results, jobs slower than one worker, and the link, in the terminal's words."""
    if measured.experiment.kind != "scaling":
        return []
    of = f"{measured.name}: " if len(gathered.experiments) > 1 else ""
    rows = [_flagged(row) for row in measured.experiment.rows if number(row, "workers") > 1]
    return [sentence(f"{of}{line.removeprefix('(!) ')}") for line in headlines(rows)]


def _flagged(row: Row) -> Row:
    """A row that says whether it is above ideal, also of a record that is older than the field."""
    efficiency = number(row, "efficiency")
    return {**row, "above_ideal": bool(row.get("above_ideal")) or above_ideal(efficiency), "efficiency": efficiency}


def is_generated(ran: ReportedRun) -> bool:
    """Whether a run says that its data is."""
    result = ran.outcome.result if ran.outcome else ran.file.result if ran.file else {}
    return bool(result.get("generated_data"))


def sentence(text: str) -> str:
    """The text as a sentence: a capital first, a full stop at the end.

    >>> sentence("rank 1 is late"), sentence("Done.")
    ('Rank 1 is late.', 'Done.')
    """
    return capital(text).rstrip(". ") + "." if text else ""


def _experiment(measured: ReportedExperiment) -> list[str]:
    experiment = measured.experiment
    sayers = {
        "study": _study, "scaling": _scaling, "throughput": _throughput, "quality": _quality, "sweep": _sweep,
        "elastic": _elastic,
    }  # fmt: skip
    say = sayers.get(experiment.kind)
    words = say(measured) if say is not None and experiment.rows else []
    state = state_of(experiment)
    if state != "done":
        how = {"running": "is still running", "died": "died", "failed": "failed", "interrupted": "was interrupted"}
        error = experiment.error.strip().partition("\n")[0].rstrip(".")
        why = f" ({error if len(error) <= _LONGEST_ERROR else error[:_LONGEST_ERROR].rstrip() + '…'})" if error else ""
        done, says = plural(len(measured.runs), "trial"), "says" if len(measured.runs) == 1 else "say"
        words.append(f"the experiment {how.get(state, state)}{why}: this is what its {done} {says} so far")
    return words


def _study(measured: ReportedExperiment) -> list[str]:
    """The answers to its three questions, as a headline."""
    titles = [str(raw.get("title", "")).rstrip(".") for raw in measured.experiment.findings]
    answered = [title for title in titles if title and not title.startswith("not answered")]
    if not answered:
        return ["none of the study's questions is answered yet"]
    return ["; ".join(answered)]


def _scaling(measured: ReportedExperiment) -> list[str]:
    words = []
    for mode in dict.fromkeys(row.get("mode") for row in measured.experiment.rows):
        rows = [row for row in measured.experiment.rows if row.get("mode") == mode and number(row, "speed_up") > 0]
        if not rows:
            continue
        top = max(rows, key=lambda row: number(row, "workers"))
        low, high = number(top, "efficiency_low"), number(top, "efficiency_high")
        around = f" (90 % interval: {100 * low:.0f} to {100 * high:.0f} %)" if math.isfinite(low) else ""
        said = (
            f"{plural(top['workers'], 'worker')}: {top['speed_up']:.2f} times the speed of one, "
            f"{value_text('efficiency', top.get('efficiency')) or 'an unknown share'} efficient{around}"
        )
        if top["workers"] == 1:
            said = f"One worker: {count_text(number(top, 'images_per_s'))} images/s"
        cost = 1 - number(top, "share_of_limit")
        if _flagged(top)["above_ideal"]:  # never a headline
            said = f"{plural(top['workers'], 'worker')}: no answer, because the measured speed is impossible"
        elif top.get("waterfall"):
            said += _lost(top["waterfall"])
        elif top["workers"] > 1 and math.isfinite(cost):
            costs = f"communication costs {share_text(cost)}, {_rest(top)}"
            said += f"; {costs}" if cost >= 0.005 else "; communication costs nothing measurable"
        several = len({row.get("mode") for row in measured.experiment.rows}) > 1
        words.append(f"{mode} scaling, {said}" if several else said)
    return words


def _lost(parts: Sequence[Row]) -> str:
    """Where a step goes that is not computing: the parts that are worth a word, largest first."""
    found = {str(part["part"]): number(part, "share") for part in parts}
    found = {name: share for name, share in found.items() if name != "computing" and share >= _WORTH}
    if not found:
        return "; next to nothing of a step is lost"
    crowded = any(part["title"] == CROWDED for part in parts)
    words = {**_LOST, "contention": _CROWDED} if crowded else _LOST
    told = [
        f"{words.get(name, name)} {share_text(found[name])}" for name in sorted(found, key=lambda name: -found[name])
    ]
    return f"; of a step, {', '.join(told[:-1]) + ' and ' if len(told) > 1 else ''}{told[-1]}"


def _rest(top: Row) -> str:
    """What the limit says: where efficiency goes that communication does not take."""
    lost = 1 - number(top, "limit_efficiency")
    if math.isfinite(lost) and lost >= 0.02:
        return f"and without any, the same processes beside each other reach {share_text(1 - lost)}"
    return f"at {count_text(number(top, 'images_per_s'))} images/s"


def _throughput(measured: ReportedExperiment) -> list[str]:
    rows = [row for row in measured.experiment.rows if math.isfinite(number(row, "images_per_s"))]
    if not rows:
        return []
    best = max(rows, key=lambda row: number(row, "images_per_s"))
    shown = [{name: row.get(name) for name in ("workers", "batch", "threads", "transport")} for row in rows]
    name = labels(shown)[rows.index(best)]
    of_limit = number(best, "share_of_limit")
    limit = (
        f", {share_text(of_limit)} of the limit without communication"
        if best["workers"] > 1
        and math.isfinite(of_limit)
        and not above_ideal(of_limit)  # more than the limit cannot be
        else ""
    )
    return [f"the fastest is {count_text(number(best, 'images_per_s'))} images/s, with {name}{limit}"]


def _quality(measured: ReportedExperiment) -> list[str]:
    rows = [row for row in measured.experiment.rows if math.isfinite(number(row, "best_top1"))]
    several = [row for row in rows if row["workers"] > 1]
    one = next((row for row in rows if row["workers"] == 1), None)
    if not several:
        return []
    most = max(row["workers"] for row in several)
    best = max((row for row in several if row["workers"] == most), key=lambda row: number(row, "best_top1"))
    emulated = " (emulated)" if best.get("emulated") else ""
    beside = f"; one worker reaches {_percent(one)}" if one else ""
    return [f"with {most} workers{emulated}, {best['factor']} is best and reaches {_percent(best)} top-1{beside}"]


def _percent(row: Row) -> str:
    return f"{100 * number(row, 'best_top1'):.2f} %"


def _elastic(measured: ReportedExperiment) -> list[str]:
    return [str(each["title"]) for each in measured.experiment.findings if each.get("title")]


def _sweep(measured: ReportedExperiment) -> list[str]:
    rows = measured.experiment.rows
    best = next((row for row in rows if row.get("best")), None)
    metric = metric_of(measured)
    if best is None:
        return [f"none of {plural(len(rows), 'point')} succeeded"]
    differ = {name: best.get(name) for name in varied(measured, rows, metric)}
    point = ", ".join(f"{column(name).title} {value_text(name, value)}" for name, value in differ.items())
    states = [str(row.get("state")) for row in rows if row.get("state") not in ("done", None)]
    bad = "; " + ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) if states else ""
    return [
        f"the best of {plural(len(rows), 'point')} has a {column(metric).title} of "
        f"{value_text(metric, best.get(metric))}, with {point or 'the only setting'}{bad}"
    ]


def _run(ran: ReportedRun) -> ReportSentence:
    if ran.file is None:
        return ReportSentence("It ended before the first step.", f"{ran.name}.")
    lead, result = f"{ran.file.workload}, {plural(ran.file.workers, 'worker')}.", ran.file.result
    if not result:
        error = f" ({ran.file.error})" if ran.file.error else ""
        return ReportSentence(sentence(f"{ran.file.state}{error}"), lead, about(ran.file))
    said = []
    if ran.epochs and math.isfinite(total := number(ran.epochs[-1], "val_analysis")):  # 3DGAN
        moments, profile = (number(ran.epochs[-1], f"val_{name}_error") for name in ("moment", "profile"))
        said.append(
            f"result {number_text(total)} (moments {number_text(moments)}, profile {number_text(profile)}) after "
            f"{plural(len(ran.epochs), 'epoch')}"
        )
    if "val_accuracy" in result:
        accuracy = value_text("val_accuracy", result["val_accuracy"])
        epochs = float(result.get("epochs") or 0)
        said.append(f"{accuracy} validation accuracy after {how_long(epochs, number(result, 'steps'))}")
    if isinstance(result.get("images_per_s"), int | float):
        said.append(f"{count_text(float(result['images_per_s']))} images/s")
    return ReportSentence(sentence(", ".join(said) or "done"), lead, about(ran.file))


def _counted(gathered: ReportInput) -> str:
    parts = [(len(gathered.spent), "timeline"), (len(gathered.benches), "benchmark"), (len(gathered.runs), "run")]
    return ", ".join(plural(count, name) for count, name in parts if count)


# ---- findings ----


def _findings(gathered: ReportInput) -> list[ReportFinding]:
    """Those of experiments, and of timelines that no experiment has judged."""
    found: list[ReportFinding] = []
    several = len(gathered.experiments) > 1
    judged = {ran.name for measured in gathered.experiments for ran in measured.runs if measured.experiment.findings}
    for measured in gathered.experiments:
        experiment = measured.experiment
        modes = {finding.get("mode") for finding in experiment.findings}
        for raw in experiment.findings:
            of = [measured.name] if several else []
            of += [f"{raw['mode']} scaling"] if raw.get("mode") and len(modes) > 1 else []
            found.append(_finding(raw, ", ".join(of), experiment.kind))
    for spent in gathered.spent:
        if spent.name not in judged:
            raws: Sequence[dict[str, Any]] = msgspec.to_builtins(spent.report.findings)
            found += [_finding(raw, spent.name, "timeline") for raw in raws]
    return found


def _finding(raw: Row, of: str, kind: str) -> ReportFinding:
    gain = number(raw, "gain")
    calm = raw.get("kind") in _CALM
    text = ""
    if gain > 0.001 and not calm:
        speed = kind in ("scaling", "throughput", "timeline")
        text = gain_text(raw) if speed else f"gain: {100 * gain:.2f} points" if kind == "quality" else ""
    title, change = str(raw.get("title", "")), str(raw.get("change", ""))
    if raw.get("question"):  # the study's, with its own answer instead of a change
        return ReportFinding(
            title=str(raw["question"]),
            what=f"{sentence(title)} {sentence(str(raw.get('what', '')))}",
            change=sentence(change.removeprefix("In the study: ")),
            change_label="In the study",
            of=of,
        )
    return ReportFinding(
        title=capital(title),
        what=sentence(str(raw.get("what", ""))),
        change=sentence(change),
        gain=text,
        of=of,
        calm=calm,
    )
