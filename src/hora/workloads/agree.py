"""What all ranks must have alike before they train together: compared at the start, and reported on all of them.

A rank that fails alone leaves the others waiting, and the reason is in one log of many. So whatever may fail on some
ranks only (a folder that is missing on one host) is done here, and fails on all of them with the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hora.engine import session
from hora.errors import BadData, DamagedCheckpoint, EnvironmentUnfit, HoraError, UsageError
from hora.ops.objects import allgather_object, broadcast_object

__all__ = ["everywhere", "on_first", "same", "say"]

T = TypeVar("T")
_KINDS = {kind.__name__: kind for kind in (UsageError, BadData, DamagedCheckpoint, EnvironmentUnfit)}
_Report = tuple[str, str] | None  # an error's kind and words


def everywhere(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function on every rank. If it fails on any, every rank raises an error of that kind that says where.

    >>> session.init()
    >>> everywhere(len, "abc")
    3
    >>> session.shutdown()
    """
    result, failure = _attempt(function, arguments)
    reports: list[_Report] = allgather_object(failure, name="hora.everywhere")
    failed = {rank: report for rank, report in enumerate(reports) if report is not None}
    if failed:
        kind, text = next(iter(failed.values()))
        alike = len(failed) == len(reports) and len({words for _, words in failed.values()}) == 1
        raise _KINDS[kind](text if alike else _table("it failed on some ranks", {r: w for r, (_, w) in failed.items()}))
    return result  # type: ignore[return-value]  # there was no failure, so there is a result


def on_first(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function on rank 0 only; all ranks get what it returns, or raise what it raised.

    >>> session.init()
    >>> on_first(len, "abc")
    3
    >>> session.shutdown()
    """
    own = _attempt(function, arguments) if session.rank() == 0 else None
    result, failure = broadcast_object(own, root_rank=0, name="hora.on_first")
    if failure is not None:
        kind, text = failure
        raise _KINDS[kind](text)
    answer: T = result
    return answer


def say(*lines: str) -> None:
    """Print lines, on rank 0 only."""
    if session.rank() == 0:
        for line in lines:
            print(line, flush=True)


def same(facts: Mapping[str, Any]) -> None:
    """Refuse to continue, on every rank, unless all of them have the same facts.

    >>> session.init()
    >>> same({"samples": 60000})
    >>> session.shutdown()
    """
    gathered: list[Mapping[str, Any]] = allgather_object(dict(facts), name="hora.same")
    for name in facts:
        values = {rank: repr(theirs.get(name)) for rank, theirs in enumerate(gathered)}
        if len(set(values.values())) > 1:
            raise UsageError(
                _table(f"{name} is not the same on all ranks", values)
                + "\nThey would train differently. Give all of them the same data and options."
            )


def _attempt(function: Callable[..., T], arguments: tuple[Any, ...]) -> tuple[T | None, _Report]:
    try:
        return function(*arguments), None
    except HoraError as error:
        kind = next((base.__name__ for base in type(error).__mro__ if base.__name__ in _KINDS), "")
        if not kind:
            raise
        return None, (kind, str(error))


def _table(title: str, values: Mapping[int, str]) -> str:
    return "\n".join([f"{title}:", *(f"  rank {rank}: {value}" for rank, value in values.items())])
