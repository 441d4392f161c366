"""Runs checks. Those that measure time run one after another with nothing beside them, the others all at once. A check
that raises or does not come back in time is a finding like any other, and the doctor goes on."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from hora.lab.doctor.check import Check, Finding
from hora.lab.doctor.machine import Machine

__all__ = ["conduct"]

_AT_ONCE = 8
Told = Callable[[Check, list[Finding]], None]


def conduct(checks: Sequence[Check], machine: Machine, begun: Callable[[Check], None], told: Told) -> list[Finding]:
    """Run all checks; ``told`` hears of each as it ends. Findings are in the order of the checks.

    >>> check = Check("core", "", lambda machine: Finding(name="core", status="ok", told="it loads"))
    >>> [found.status for found in conduct([check], Machine({}), lambda check: None, lambda check, found: None)]
    ['ok']
    """
    found: dict[int, list[Finding]] = {}
    together = [number for number, check in enumerate(checks) if not check.alone]
    alone = [[number] for number, check in enumerate(checks) if check.alone]
    try:
        for group in [together, *alone]:
            for number, findings in _at_once(group, checks, machine, begun):
                found[number] = findings
                told(checks[number], findings)
    finally:
        machine.close()
    return [finding for number in range(len(checks)) for finding in found[number]]


def _at_once(
    numbers: Sequence[int], checks: Sequence[Check], machine: Machine, begun: Callable[[Check], None]
) -> Iterable[tuple[int, list[Finding]]]:
    """Run these together, a few at a time. Threads that are given up are left behind: they hold nothing we need."""
    results: queue.SimpleQueue[tuple[int, list[Finding]]] = queue.SimpleQueue()
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


def _findings(check: Check, machine: Machine) -> list[Finding]:
    try:
        found = check.look(machine)
    except Exception as error:
        told = f"the check itself failed: {type(error).__name__}: {error}"
        found = Finding(name=check.name, status="warning", told=told, fix="Please report it with 'hora env --json'.")
    return _ready(found if isinstance(found, list) else [found], check)


def _given_up(check: Check) -> Finding:
    return Finding(
        name=check.name,
        status="problem",
        told=f"no result within {check.deadline_s:.0f} s, so it was given up",
        fix="Something it asked does not answer: a file system, a daemon or a device. Look there first.",
    )


def _ready(findings: list[Finding], check: Check) -> list[Finding]:
    return [
        msgspec.structs.replace(finding, room=check.room, tried=finding.tried or check.tried) for finding in findings
    ]
