"""Stalls and deadlocks: who waits for whom, and for how long. Pure; snapshots and time are passed in.

A *deadlock* is certain: ranks whose every submitting thread waits inside Hora for operations that only each other
could complete. It is reported within two seconds. A *stall* is only suspicious: a rank has not submitted what others
wait for, and may rightly be saving a checkpoint. It is warned about, and fails after a bound. *Silence* is worse: the
rank that others wait for is stopped or does not answer, whether it has submitted or not. It is warned about, and counts
as dead after the same bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hora.config.settings import Settings
from hora.engine.backend import Pending, RankState, Snapshot
from hora.engine.explain import compact_ranks, is_gradient

__all__ = [
    "SilentRank",
    "StallFailure",
    "StallGiveUp",
    "StallWarning",
    "StallWatch",
    "find_deadlock",
    "silence_text",
    "standing",
    "warning_text",
]

_DEADLOCK_S = 1.0  # operations younger than this may only look stuck: a peer may be just about to submit
_WARN_AGAIN = 3  # warn after 1, 3, 9, … times the first delay


class StallWarning(NamedTuple):
    """Something to tell the user: these operations have waited ``age_s``, for these ranks."""

    pending: tuple[Pending, ...]
    missing: tuple[int, ...]
    age_s: float


class StallFailure(NamedTuple):
    """A verdict for ``Backend.fail``."""

    pending: Pending
    kind: str
    text: str


class SilentRank(NamedTuple):
    """Something to tell the user: this rank has not answered for ``age_s`` while others wait for it, some of them for
    operations it has not submitted."""

    state: RankState
    age_s: float
    pending: tuple[Pending, ...] = ()


class StallGiveUp(NamedTuple):
    """A verdict for ``Backend.give_up``."""

    rank: int
    status: str


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

    def earlier(key: tuple[str, tuple[int, ...]], rank: int) -> bool:
        """Whether it waits for the last operation of this name, which is under way, and not for the one pending."""
        return key in by_key and rank in by_key[key].missing

    def may_go_on(state: RankState) -> bool:
        keys = state.waiting_on
        return not keys or not all(hopeless(key) and not earlier(key, state.rank) for key in keys)

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
        self._silent: dict[int, float] = {}  # since when
        self._told: dict[int, float] = {}  # of which silence when next, in seconds of age

    def look(
        self, snapshot: Snapshot, now: float = 0.0
    ) -> list[StallWarning | StallFailure | SilentRank | StallGiveUp]:
        """Deadlocks are judged on two looks in a row; everybody judges, and the first verdict counts."""
        actions: list[StallWarning | StallFailure | SilentRank | StallGiveUp] = []
        deadlock = [p for p in find_deadlock(snapshot) if p.age_s >= _DEADLOCK_S]
        suspects = frozenset((p.name, p.members) for p in deadlock)
        if suspects and suspects == self._suspects:
            text = _deadlock_text(deadlock)
            actions += [StallFailure(p, "deadlock", text) for p in deadlock]
        self._suspects = suspects
        if self._settings.stall_check and not actions:
            actions += self._stalls(snapshot)
            actions += self._silences(snapshot, now)
        return actions

    def _stalls(self, snapshot: Snapshot) -> list[StallWarning | StallFailure]:
        silent = {state.rank for state in snapshot.ranks if state.silent}  # of what misses these, the silences tell
        mine = [
            p for p in snapshot.pending if p.requests and min(p.requests) == self._rank and silent.isdisjoint(p.missing)
        ]
        keys = {(p.name, p.members) for p in mine}
        self._warned = {key: when for key, when in self._warned.items() if key in keys}
        late, actions = [], list[StallWarning | StallFailure]()
        for p in mine:
            key = (p.name, p.members)
            if p.age_s >= self._settings.stall_fail_s > 0:
                actions.append(StallFailure(p, "stall", _stall_text(p)))
            elif p.age_s >= self._warned.get(key, self._settings.stall_warn_s):
                self._warned[key] = self._warned.get(key, self._settings.stall_warn_s) * _WARN_AGAIN
                late.append(p)
        if late:
            missing = tuple(sorted({rank for p in late for rank in p.missing}))
            actions.append(StallWarning(tuple(late), missing, max(p.age_s for p in late)))
        return actions

    def _silences(self, snapshot: Snapshot, now: float) -> list[SilentRank | StallGiveUp]:
        silent = {state.rank: state for state in snapshot.ranks if state.silent}
        self._silent = {rank: self._silent.get(rank, now) for rank in silent}
        self._told = {rank: when for rank, when in self._told.items() if rank in silent}
        speaker = min((r.rank for r in snapshot.ranks if r.waiting_on and not r.silent), default=self._rank)
        actions = list[SilentRank | StallGiveUp]()
        for rank in sorted(silent):
            age_s, due_s = now - self._silent[rank], self._told.get(rank, self._settings.stall_warn_s)
            if age_s >= self._settings.stall_fail_s > 0:
                status = f"it has not answered for {age_s:.0f} s: it is stopped, hangs in one call, or its host hangs"
                actions.append(StallGiveUp(rank, status))
            elif age_s >= due_s and self._rank == speaker:
                self._told[rank] = due_s * _WARN_AGAIN
                pending = tuple(p for p in snapshot.pending if rank in p.missing)
                actions.append(SilentRank(silent[rank], age_s, pending))
        return actions


def silence_text(silence: SilentRank, fail_s: float) -> str:
    """What to print about a rank that does not answer.

    >>> print(silence_text(SilentRank(RankState(3, 346, False, (), True), 20.0), 600.0))
    rank 3 (pid 346) has not answered for 20 s, and others wait for it.
    It is stopped (kill -CONT 346 lets it go on), hangs in one call, or its host hangs. It counts as dead after 600 s.
    """
    rank, pid = silence.state.rank, silence.state.pid
    lines = [
        f"rank {rank} (pid {pid}) has not answered for {silence.age_s:.0f} s, and others wait for it"
        + (":" if silence.pending else "."),
        *_operations(silence.pending),
        f"It is stopped (kill -CONT {pid} lets it go on), hangs in one call, or its host hangs. "
        f"It counts as dead after {fail_s:g} s.",
    ]
    return "\n".join(lines)


def warning_text(warn: StallWarning, stacks: dict[int, str], fail_s: float) -> str:
    """What to print about a stall."""
    lines = [
        f"{compact_ranks(warn.missing)} did not submit what others have waited {warn.age_s:.0f} s for:",
        *_operations(warn.pending),
        f"This is fine if it is saving or validating meanwhile; the operations fail after {fail_s:g} s.",
    ]
    return "\n".join([*lines, *standing(stacks)])


def standing(stacks: Mapping[int, str]) -> list[str]:
    """Where ranks stand; a stack that several of them have is shown once.

    >>> print("\\n".join(standing({1: "MainThread:\\n  a.py, line 7", 2: "MainThread:\\n  a.py, line 7"})))
    What ranks 1, 2 are doing:
      MainThread:
        a.py, line 7
    """
    alike: dict[str, list[int]] = {}
    for rank, stack in stacks.items():
        alike.setdefault(stack.rstrip(), []).append(rank)
    lines = list[str]()
    for stack, ranks in alike.items():
        doing = f"What {compact_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} doing:"
        lines += [doing, *("  " + line for line in stack.splitlines())]
    return lines


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


def _deadlock_text(pending: Sequence[Pending]) -> str:
    return "\n".join(
        [
            "deadlock: these ranks wait for each other, so none can go on:",
            *_operations(pending, most=32),
            "Every member must submit the same operation under the same name and kind. Nothing was computed; these",
            "operations fail on every rank that submitted them.",
            *_if_uneven(pending),
        ]
    )


def _if_uneven(pending: Iterable[Pending]) -> list[str]:
    """What to try if it is the gradients of a step that not everybody takes."""
    if any(is_gradient(p.name) for p in pending):
        return ["If some ranks have fewer batches, let every rank call hvd.join() after its last one."]
    return []


def _stall_text(p: Pending) -> str:
    return "\n".join(
        [
            f"{compact_ranks(p.missing)} did not submit '{p.name}' within {p.age_s:.0f} s:",
            *_operations([p]),
            "Nothing was computed and only this operation failed.",
            "If that rank needs longer, raise HORA_STALL_SHUTDOWN_TIME_SECONDS.",
            *_if_uneven([p]),
        ]
    )
