"""``elastic.run``: calls the user's function again whenever workers are lost or others have come.

What is a fault and what is a bug is decided here, once. Another worker that died, or left, is a fault: the state goes
back to the last commit, the survivors meet in a new generation, and the function is called again. What the program did
wrong (workers that disagree, that wait for each other, that do not show up, any exception of the user's) is raised: it
would happen again.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from hora.engine import session
from hora.errors import (
    DeadlockError,
    HoraError,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    MismatchError,
    PeerLostError,
    ShutDownError,
    StallError,
    UsageError,
)

__all__ = ["is_fault", "reset", "run", "run_fn", "unwrapping"]

_log = logging.getLogger("hora")

P = ParamSpec("P")
R = TypeVar("R")


class _State(Protocol):
    def sync(self) -> None: ...

    def restore(self) -> None: ...

    def on_reset(self) -> None: ...

    def leave(self) -> None: ...


S = TypeVar("S", bound=_State)


def is_fault(error: HorovodInternalError) -> bool:
    """Whether the training can continue with those who are left.

    >>> is_fault(MismatchError("the ranks disagree"))
    False
    """
    if isinstance(error, (MismatchError, DeadlockError, StallError, UsageError)) or session.launcher_lost():
        return False
    return session.is_elastic() or not isinstance(error, (PeerLostError, ShutDownError))


def reset() -> None:
    """Leave the generation that is over and meet the others in the next one."""
    session.shutdown()
    session.init(ready=True)


def run_fn(func: Callable[Concatenate[S, P], R], reset: Callable[[], None] = reset) -> Callable[Concatenate[S, P], R]:
    """``func``, to be called with a state as its first argument, so that it survives lost workers and lets in new ones.

    ``reset`` is what leaves a generation and enters the next.
    """

    @functools.wraps(func)
    def elastic(state: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        session.can_meet_others()
        changed = session.is_on_standby()  # the job runs already, and this worker is ready for it
        while True:
            if changed:
                state.leave()
                reset()
            try:
                if changed:
                    state.on_reset()  # whose callbacks may use collectives, so that a death may be seen in there too
                state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError as error:
                if not is_fault(error):
                    raise
                _log.info("restoring the last commit: %s", error)
                state.restore()
            except HostsUpdatedInterrupt:
                _log.info("workers joined or left: starting a new generation")
            changed = True

    return elastic


def unwrapping(func: Callable[P, R]) -> Callable[P, R]:
    """``func``, for frameworks that wrap what a collective raised in an error of theirs: a fault in it is raised again
    as what it was."""

    @functools.wraps(func)
    def unwrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return func(*args, **kwargs)
        except HoraError:
            raise
        except Exception as error:
            text = str(error)
            if any(f"{kind.__name__}: " in text for kind in (PeerLostError, ShutDownError, HorovodInternalError)):
                raise HorovodInternalError(text) from error
            raise

    return unwrapped


def run(func: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Decorate a function that trains, so that it continues when workers are lost or added.

    >>> from hora.elastic.state import ObjectState
    >>> @run
    ... def train(state):
    ...     while state.step < 3:
    ...         state.step += 1
    ...         state.commit()
    ...     return state.step
    >>> session.init()
    >>> train(ObjectState(step=0))
    3
    >>> session.shutdown()
    """
    return run_fn(func)
