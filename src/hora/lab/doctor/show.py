"""The report: aligned, with symbols and words, on a terminal; one plain line a finding in a log.

Rooms are shown in their order, each as soon as all of it is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hora.lab.doctor.check import Check, Finding, Status

__all__ = ["Report", "plain"]

_LOOK: dict[Status, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "note": ("•", "cyan"),
    "warning": ("!", "yellow"),
    "problem": ("✗", "bold red"),
    "not here": ("-", "dim"),
}
_ASCII = {"✓": "+", "•": "*", "✗": "x"}


def plain(finding: Finding) -> str:
    """A finding as one line.

    >>> plain(Finding(name="nofile", room="limits", status="problem", told="64 open files", fix="ulimit -n 80"))
    'problem   limits/nofile: 64 open files. Fix: ulimit -n 80'
    """
    fix = f". Fix: {finding.fix}" if finding.fix else ""
    return f"{finding.status:<9} {finding.room}/{finding.name}: {finding.told.rstrip('.')}{fix}"


class Report:
    """Shows findings as they come, in the order of ``checks``."""

    def __init__(self, console: Console, checks: Sequence[Check], names: Sequence[str] = ()) -> None:
        self._console = console
        self._waiting: dict[str, list[str]] = {}
        for check in checks:
            self._waiting.setdefault(check.room, []).append(check.name)
        self._found: dict[str, dict[str, list[Finding]]] = {room: {} for room in self._waiting}
        self._width = max((len(name) for name in [*names, *(check.name for check in checks)]), default=0)

    def add(self, check: Check, findings: list[Finding]) -> None:
        """Take what a check found; shows every room that is now complete and has its turn."""
        self._found[check.room][check.name] = findings
        for room in list(self._waiting):
            if len(self._found[room]) < len(self._waiting[room]):
                break
            self._show(room, [finding for name in self._waiting.pop(room) for finding in self._found[room][name]])

    def _show(self, room: str, findings: Sequence[Finding]) -> None:
        if not self._console.is_terminal:
            for finding in findings:
                self._console.out(plain(finding), highlight=False)
            return
        self._console.print(Text(room, style="bold"))
        grid = Table.grid(padding=(0, 1, 0, 0), expand=False)
        grid.add_column(width=1)
        grid.add_column(width=9, no_wrap=True)
        grid.add_column(width=self._width + 1, no_wrap=True)
        grid.add_column(overflow="fold")
        for finding in findings:
            grid.add_row(*self._row(finding))
        self._console.print(Padding(grid, (0, 0, 1, 2)))

    def _row(self, finding: Finding) -> tuple[Text, Text, Text, Text]:
        symbol, style = _LOOK[finding.status]
        if not self._console.encoding.lower().startswith("utf"):
            symbol = _ASCII.get(symbol, symbol)
        quiet = "dim" if finding.status == "not here" else ""
        told = Text(finding.told, style=quiet)
        if finding.fix:
            hint = "bold" if finding.status in ("problem", "warning") else quiet
            told.append("\nfix: ", style=style).append(finding.fix, style=hint)
        return Text(symbol, style), Text(finding.status, style), Text(finding.name, quiet), told
