"""``horovod.common.elastic``: importable, but not available yet, and it says so when it is used."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from hora.errors import EnvironmentUnfit

__all__ = ["ObjectState", "State", "Unavailable", "run_fn"]


def _refuse(what: str) -> NoReturn:
    raise EnvironmentUnfit(
        f"{what}: elastic is not available yet. Hora cannot continue a job with other workers than it began with, so"
        " a script that counts on it would lose its work. Run it without its elastic option, with a fixed number of"
        " workers, and save checkpoints."
    )


class Unavailable:
    """Refuses to be made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse(type(self).__name__)


class State(Unavailable):
    """Refused when it is made."""


class ObjectState(State):
    """Refused when it is made."""


def run_fn(func: Callable[..., Any], reset: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Decorate a function, which is refused when it is called: defining one does no harm."""

    @functools.wraps(func)
    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        _refuse(f"elastic.run of {getattr(func, '__name__', func)}")

    return refused
