"""Findings and checks: what was tried, how it went, what to change; and what many of them add up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import msgspec

if TYPE_CHECKING:
    from hora.doctor.machine import Machine

__all__ = [
    "STATUSES", "Check", "CheckResult", "Status", "can_run", "not_here", "note", "ok", "problem", "summary", "warning",
]  # fmt: skip

Status = Literal["ok", "note", "warning", "problem", "not here"]
STATUSES: tuple[Status, ...] = get_args(Status)


class CheckResult(msgspec.Struct, frozen=True):
    """The result of a check.

    ``problem``: something does not work; ``warning``: it is slow or may fail; ``note``: worth knowing; ``not here``:
    this machine does not have it, which is fine. ``stops`` marks a problem with which no job can run. Name, group and
    ``tried`` are the check's by default.
    """

    status: Status
    told: str
    fix: str = ""
    name: str = ""
    tried: str = ""
    group: str = ""
    stops: bool = False
    figures: dict[str, float] = {}


ok = partial(CheckResult, "ok")
note = partial(CheckResult, "note")
warning = partial(CheckResult, "warning")
problem = partial(CheckResult, "problem")
not_here = partial(CheckResult, "not here")


class Check(NamedTuple):
    """Something to try. ``exclusive``: it measures time, so nothing runs beside it. ``slow``: left out by
    ``--quick``."""

    name: str
    tried: str
    look: Callable[[Machine], CheckResult | list[CheckResult]]
    deadline_s: float = 10.0
    exclusive: bool = False
    slow: bool = False
    group: str = ""


def can_run(findings: Sequence[CheckResult]) -> bool:
    """Whether Hora can run a job here, as far as these findings tell.

    >>> can_run([problem("Gloo needs torch")])
    True
    >>> can_run([problem("no worker starts", stops=True)])
    False
    """
    return not any(finding.stops and finding.status == "problem" for finding in findings)


def summary(findings: Sequence[CheckResult]) -> str:
    """The last line: how many of each, and where to begin.

    >>> summary([problem("…", "Raise ulimit -n.", name="job"), warning("…", "Use tsc.", name="clock")])
    '1 problem, 1 warning; the first thing to fix: job. Raise ulimit -n.'
    >>> summary([ok("…")])
    'no problems, no warnings; Hora can run here.'
    """
    of = {status: [finding for finding in findings if finding.status == status] for status in STATUSES}
    worst = sorted(of["problem"], key=lambda finding: not finding.stops) or of["warning"]
    text = f"{_count(len(of['problem']), 'problem')}, {_count(len(of['warning']), 'warning')}; "
    if not worst:
        return text + "Hora can run here."
    return text + f"the first thing to fix: {worst[0].name}. {worst[0].fix}".rstrip()


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
