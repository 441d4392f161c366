"""Chooses checks, runs them and shows what they found.

Those that measure time run one after another and alone, the others all at once. A check that raises or exceeds its
deadline is a finding like any other, and the doctor continues. The report is aligned, with symbols and
words, on a terminal, and one plain line a finding in a log; groups are shown in their order, each as soon as it is
known.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hora.doctor import hardware, hosts, software, system, transports
from hora.doctor.check import Check, CheckResult, Status, problem, warning
from hora.doctor.machine import Machine
from hora.errors import UsageError

__all__ = ["GROUPS", "DoctorReport", "choose", "conduct", "plain"]

# ---- all checks, group by group, in the order in which they are shown ----

GROUPS: dict[str, tuple[Check, ...]] = {
    group: tuple(check._replace(group=group) for check in checks)
    for group, checks in (
        ("installation", software.INSTALLATION),
        ("frameworks", software.FRAMEWORKS),
        ("processor", hardware.PROCESSOR),
        ("memory", hardware.MEMORY),
        ("limits", system.LIMITS),
        ("kernel", system.KERNEL),
        ("network", system.NETWORK),
        ("gpus", hardware.GPUS),
        ("mpi", transports.MPI),
        ("batch", hosts.BATCH),
        ("hosts", hosts.HOSTS),
        ("leftovers", system.LEFTOVERS),
        ("transports", transports.TRANSPORTS),
    )
}


def choose(only: Sequence[str] = (), quick: bool = False) -> list[Check]:
    """The checks to run: all, or those named by check or by group; without the slow ones if ``quick``.

    >>> [check.name for check in choose(["nofile", "kernel"])]
    ['nofile', 'kernel']
    >>> choose(["nofiel"])
    Traceback (most recent call last):
    hora.errors.UsageError: --only nofiel: there is no such check...
    """
    every = [check for checks in GROUPS.values() for check in checks]
    for name in only:
        if name not in GROUPS and name not in {check.name for check in every}:
            listed = "; ".join(f"{group}: {', '.join(check.name for check in GROUPS[group])}" for group in GROUPS)
            raise UsageError(f"--only {name}: there is no such check or group. There are {listed}.")
    chosen = [check for check in every if not only or check.name in only or check.group in only]
    return [check for check in chosen if not (quick and check.slow)]


# ---- run them ----

_AT_ONCE = 8
Told = Callable[[Check, list[CheckResult]], None]


def conduct(checks: Sequence[Check], machine: Machine, begun: Callable[[Check], None], told: Told) -> list[CheckResult]:
    """Run all checks; ``told`` is called for each as it ends. Findings are in the order of the checks.

    >>> check = Check("core", "", lambda machine: CheckResult("ok", "it loads"))
    >>> [found.status for found in conduct([check], Machine({}), lambda check: None, lambda check, found: None)]
    ['ok']
    """
    found: dict[int, list[CheckResult]] = {}
    together = [number for number, check in enumerate(checks) if not check.exclusive]
    exclusive = [[number] for number, check in enumerate(checks) if check.exclusive]
    try:
        for group in [together, *exclusive]:
            for number, findings in _at_once(group, checks, machine, begun):
                found[number] = findings
                told(checks[number], findings)
    finally:
        machine.close()
    return [finding for number in range(len(checks)) for finding in found[number]]


def _at_once(
    numbers: Sequence[int], checks: Sequence[Check], machine: Machine, begun: Callable[[Check], None]
) -> Iterable[tuple[int, list[CheckResult]]]:
    """Run these together, a few at a time. Threads that are given up are left behind: they hold nothing we need."""
    results: queue.SimpleQueue[tuple[int, list[CheckResult]]] = queue.SimpleQueue()
    waiting, ends = list(numbers), dict[int, float]()
    while waiting or ends:
        while waiting and len(ends) < _AT_ONCE:
            number = waiting.pop(0)
            begun(checks[number])
            ends[number] = time.monotonic() + checks[number].deadline_s

            def look(number: int = number) -> None:
                results.put((number, _findings(checks[number], machine)))

            threading.Thread(target=look, name=f"check {checks[number].name}", daemon=True).start()
        try:
            number, findings = results.get(timeout=max(0.0, min(ends.values()) - time.monotonic()))
        except queue.Empty:
            number = min(ends, key=ends.__getitem__)
            findings = _ready([_given_up(checks[number])], checks[number])
        if ends.pop(number, None) is not None:  # else it was given up already
            yield number, findings


def _findings(check: Check, machine: Machine) -> list[CheckResult]:
    try:
        found = check.look(machine)
    except Exception as error:
        told = f"the check itself failed: {type(error).__name__}: {error}"
        found = warning(told, "Please report it with 'hora env --json'.")
    return _ready(found if isinstance(found, list) else [found], check)


def _given_up(check: Check) -> CheckResult:
    return problem(
        f"no result within {check.deadline_s:.0f} s, so it was given up",
        "Something it asked does not answer: a file system, a daemon or a device. Look there first.",
    )


def _ready(findings: list[CheckResult], check: Check) -> list[CheckResult]:
    return [
        msgspec.structs.replace(
            finding, name=finding.name or check.name, group=check.group, tried=finding.tried or check.tried
        )
        for finding in findings
    ]


# ---- show what they found ----

_LOOK: dict[Status, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "note": ("•", "cyan"),
    "warning": ("!", "yellow"),
    "problem": ("✗", "bold red"),
    "not here": ("-", "dim"),
}
_ASCII = {"✓": "+", "•": "*", "✗": "x"}


def plain(finding: CheckResult) -> str:
    """A finding as one line.

    >>> plain(CheckResult(name="nofile", group="limits", status="problem", told="64 open files", fix="ulimit -n 80"))
    'problem   limits/nofile: 64 open files. Fix: ulimit -n 80'
    """
    fix = f". Fix: {finding.fix}" if finding.fix else ""
    return f"{finding.status:<9} {finding.group}/{finding.name}: {finding.told.rstrip('.')}{fix}"


class DoctorReport:
    """Shows findings as they come, in the order of ``checks``."""

    def __init__(self, console: Console, checks: Sequence[Check], names: Sequence[str] = ()) -> None:
        self._console = console
        self._waiting: dict[str, list[str]] = {}
        for check in checks:
            self._waiting.setdefault(check.group, []).append(check.name)
        self._found: dict[str, dict[str, list[CheckResult]]] = {group: {} for group in self._waiting}
        self._width = max((len(name) for name in [*names, *(check.name for check in checks)]), default=0)

    def add(self, check: Check, findings: list[CheckResult]) -> None:
        """Take what a check found; shows every group that is now complete and has its turn."""
        self._found[check.group][check.name] = findings
        for group in list(self._waiting):
            if len(self._found[group]) < len(self._waiting[group]):
                break
            self._show(group, [finding for name in self._waiting.pop(group) for finding in self._found[group][name]])

    def _show(self, group: str, findings: Sequence[CheckResult]) -> None:
        if not self._console.is_terminal:
            for finding in findings:
                self._console.out(plain(finding), highlight=False)
            return
        self._console.print(Text(group, style="bold"))
        grid = Table.grid(padding=(0, 1, 0, 0), expand=False)
        grid.add_column(width=1)
        grid.add_column(width=9, no_wrap=True)
        grid.add_column(width=self._width + 1, no_wrap=True)
        grid.add_column(overflow="fold")
        for finding in findings:
            grid.add_row(*self._row(finding))
        self._console.print(Padding(grid, (0, 0, 1, 2)))

    def _row(self, finding: CheckResult) -> tuple[Text, Text, Text, Text]:
        symbol, style = _LOOK[finding.status]
        if not self._console.encoding.lower().startswith("utf"):
            symbol = _ASCII.get(symbol, symbol)
        quiet = "dim" if finding.status == "not here" else ""
        told = Text(finding.told, style=quiet)
        if finding.fix:
            hint = "bold" if finding.status in ("problem", "warning") else quiet
            told.append("\nfix: ", style=style).append(finding.fix, style=hint)
        return Text(symbol, style), Text(finding.status, style), Text(finding.name, quiet), told
