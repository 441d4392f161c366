"""Steps of training, counted by the gradients that are reduced in them: for errors of ranks with uneven data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from weakref import WeakKeyDictionary

from hora.engine import session
from hora.engine.backend import UnderWay
from hora.engine.core import Engine
from hora.engine.explain import tell_uneven
from hora.errors import DeadlockError, ShutDownError, StallError

__all__ = ["begin_step", "step_of"]

T = TypeVar("T")

_steps: WeakKeyDictionary[Engine, Counter[str]] = WeakKeyDictionary()  # done, in each generation


@contextmanager
def step_of(gradients: str, done: bool = False) -> Iterator[None]:
    """Inside, the gradients of that name are submitted or, with ``done``, waited for: an error that ranks with
    different numbers of batches get says how many steps were done. Nothing if there is no name."""
    steps = _steps.setdefault(session.engine(), Counter())
    try:
        yield
    except (ShutDownError, DeadlockError, StallError) as error:
        if gradients:
            tell_uneven(error, steps[gradients])
        raise
    if done and gradients:
        steps[gradients] += 1


def begin_step(gradients: str | None, start: Callable[[], UnderWay[T]]) -> UnderWay[T]:
    """What ``start`` begins, if it is a step of the gradients of that name."""
    if not gradients:
        return start()
    with step_of(gradients):
        return _Step(gradients, start())


class _Step(UnderWay[T]):
    __slots__ = ("_gradients", "_under_way", "request")

    def __init__(self, gradients: str, under_way: UnderWay[T]) -> None:
        self.request, self._gradients, self._under_way = under_way.request, gradients, under_way

    def done(self) -> bool:
        return self._under_way.done()

    def wait(self) -> T:
        with step_of(self._gradients, done=True):
            return self._under_way.wait()
