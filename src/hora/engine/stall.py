"""Stalls and deadlocks: who waits for whom, and for how long. Pure; snapshots and time are passed in.

A *deadlock* is certain: ranks whose every submitting thread waits inside Hora for operations that only each other
could complete. It is reported within two seconds. A *stall* is only suspicious: a rank has not submitted what others
wait for, and may rightly be saving a checkpoint. It is warned about, and fails after a bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hora.config.settings import Settings
from hora.engine.backend import Pending, RankState, Snapshot
from hora.engine.explain import compact_ranks

__all__ = ["Fail", "StallWatch", "Warn", "find_deadlock", "warning_text"]

_DEADLOCK_S = 1.0  # operations younger than this may only look stuck: a peer may be just about to submit
_WARN_AGAIN = 3  # warn after 1, 3, 9, … times the first delay


class Warn(NamedTuple):
    """Something to tell the user: these operations have waited ``age_s``, for these ranks."""

    pending: tuple[Pending, ...]
    missing: tuple[int, ...]
    age_s: float


class Fail(NamedTuple):
    """A verdict for ``Backend.fail``."""

    pending: Pending
    kind: str
    text: str


def find_deadlock(snapshot: Snapshot) -> tuple[Pending, ...]:
    """The operations that can never complete, because those who are missing wait for such operations themselves.

    Take the ranks that are blocked. One of them may yet go on if something it waits for misses nobody who is blocked;
    strike those out until none is left to strike out. Who remains waits in a circle.
    """
    by_key = {(p.name, p.members): p for p in snapshot.pending}
    joined = {r.rank for r in snapshot.ranks if any(name == "join" for name, _ in r.waiting_on)}
    others = {r.rank for r in snapshot.ranks} - joined
    stuck = {r.rank: r for r in snapshot.ranks if r.blocked}

    def hopeless(key: tuple[str, tuple[int, ...]]) -> bool:
        if key[0] == "join":
            return bool(others & stuck.keys())
        pending = by_key.get(key)
        return pending is not None and bool((set(pending.missing) - joined) & stuck.keys())

    def may_go_on(state: RankState) -> bool:
        return not state.waiting_on or not all(hopeless(key) for key in state.waiting_on)

    while free := [rank for rank, state in stuck.items() if may_go_on(state)]:
        for rank in free:
            del stuck[rank]
    waited = {key for state in stuck.values() for key in state.waiting_on}
    return tuple(p for key, p in by_key.items() if key in waited and hopeless(key))


class StallWatch:
    """Looks at snapshots as one rank sees them, and says what is to be done."""

    def __init__(self, rank: int, settings: Settings) -> None:
        self._rank, self._settings = rank, settings
        self._suspects: frozenset[tuple[str, tuple[int, ...]]] = frozenset()
        self._warned: dict[tuple[str, tuple[int, ...]], float] = {}  # when next, in seconds of age

    def look(self, snapshot: Snapshot) -> list[Warn | Fail]:
        """Deadlocks are judged on two looks in a row; everybody judges, and the first verdict counts."""
        actions: list[Warn | Fail] = []
        deadlock = [p for p in find_deadlock(snapshot) if p.age_s >= _DEADLOCK_S]
        suspects = frozenset((p.name, p.members) for p in deadlock)
        if suspects and suspects == self._suspects:
            text = _deadlock_text(deadlock)
            actions += [Fail(p, "deadlock", text) for p in deadlock]
        self._suspects = suspects
        if self._settings.stall_check and not actions:
            actions += self._stalls(snapshot)
        return actions

    def _stalls(self, snapshot: Snapshot) -> list[Warn | Fail]:
        mine = [p for p in snapshot.pending if p.requests and min(p.requests) == self._rank]
        keys = {(p.name, p.members) for p in mine}
        self._warned = {key: when for key, when in self._warned.items() if key in keys}
        late, actions = [], list[Warn | Fail]()
        for p in mine:
            key = (p.name, p.members)
            if p.age_s >= self._settings.stall_fail_s > 0:
                actions.append(Fail(p, "stall", _stall_text(p)))
            elif p.age_s >= self._warned.get(key, self._settings.stall_warn_s):
                self._warned[key] = self._warned.get(key, self._settings.stall_warn_s) * _WARN_AGAIN
                late.append(p)
        if late:
            missing = tuple(sorted({rank for p in late for rank in p.missing}))
            actions.append(Warn(tuple(late), missing, max(p.age_s for p in late)))
        return actions


def warning_text(warn: Warn, stacks: dict[int, str], fail_s: float) -> str:
    """What to print about a stall."""
    lines = [
        f"{compact_ranks(warn.missing)} did not submit what others have waited {warn.age_s:.0f} s for:",
        *_operations(warn.pending),
        f"This is fine if it is saving or validating meanwhile; the operations fail after {fail_s:g} s.",
    ]
    for rank, stack in stacks.items():
        lines += [f"What rank {rank} is doing:", *("  " + line for line in stack.rstrip().splitlines())]
    return "\n".join(lines)


def _operations(pending: Iterable[Pending], most: int = 6) -> list[str]:
    pending = list(pending)
    lines = []
    for p in pending[:most]:
        where = "; ".join(sorted({request.line for request in p.requests.values()}))
        lines.append(
            f"  '{p.name}' of {compact_ranks(p.members)}: submitted by {compact_ranks(p.requests)} ({where}), "
            f"missing {compact_ranks(p.missing)}"
        )
    if len(pending) > most:
        lines.append(f"  and {len(pending) - most} more")
    return lines


def _deadlock_text(pending: Iterable[Pending]) -> str:
    return "\n".join(
        [
            "deadlock: these ranks wait for each other, so none can go on:",
            *_operations(pending, most=32),
            "Every member must submit the same operation under the same name and kind. Nothing was computed; these",
            "operations fail on every rank that submitted them.",
        ]
    )


def _stall_text(p: Pending) -> str:
    return "\n".join(
        [
            f"{compact_ranks(p.missing)} did not submit '{p.name}' within {p.age_s:.0f} s:",
            *_operations([p]),
            "Nothing was computed and only this operation failed.",
            "If that rank needs longer, raise HORA_STALL_SHUTDOWN_TIME_SECONDS.",
        ]
    )
