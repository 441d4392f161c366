"""The report at several widths, with and without colours."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from hora.lab.doctor.check import Check, Finding
from hora.lab.doctor.show import Report

LONG = "h1 cannot connect to h2 (10.0.0.2: Connection refused, 192.168.7.2: no answer within 3 s), so no job can run"
CHECKS = [Check(name, "", lambda machine: [], room=room) for room, name in [("a", "one"), ("b", "shared-memory")]]


def finding(check: Check, **more: str) -> Finding:
    return Finding(name=check.name, room=check.room, status="problem", told=LONG, fix=more.get("fix", "Open it."))


def shown(width: int, terminal: bool, order: list[int], encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=width, force_terminal=terminal, no_color=True, highlight=False)
    report = Report(console, CHECKS)
    for number in order:
        report.add(CHECKS[number], [finding(CHECKS[number])])
    stream.flush()
    stream.seek(0)
    return stream.read()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_fit_and_everything_is_there(width: int) -> None:
    text = shown(width, True, [0, 1])
    lines = text.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(text.replace("\x1b[1m", "").replace("\x1b[0m", "").split())
    assert "✗ problem one" in words and "fix: Open it." in words and "no job can run" in words.replace("\n", " ")


def test_rooms_keep_their_order() -> None:
    text = shown(80, True, [1, 0])
    assert text.index("one") < text.index("shared-memory")


def test_a_log_has_a_line_a_finding() -> None:
    lines = shown(80, False, [0, 1]).splitlines()
    assert len(lines) == 2 and lines[0] == f"problem   a/one: {LONG}. Fix: Open it."


def test_a_terminal_without_unicode() -> None:
    assert "x problem" in shown(80, True, [0, 1], "ascii").replace("\x1b[1m", "").replace("\x1b[0m", "")
