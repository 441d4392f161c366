"""What every public function of ``hora.tensorflow`` has in common.

AutoGraph leaves it alone: it is Python that runs while a graph is traced. Its errors are Hora's and TensorFlow's at
once, so that scripts may catch either:

=============================================  =========================================
Hora's                                         also a
=============================================  =========================================
MismatchError, NotInitializedError             ``tf.errors.FailedPreconditionError``
UsageError and its other kinds                 ``tf.errors.InvalidArgumentError``
PeerLostError, StallError and the other        ``tf.errors.UnknownError``
failures of a collective
=============================================  =========================================

Inside a ``tf.function`` an error passes through TensorFlow, which keeps only its text and makes an
``InvalidArgumentError`` of wrong usage and an ``UnknownError`` of everything else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

from hora.errors import HoraError, HorovodInternalError, MismatchError, NotInitializedError, UsageError

__all__ = ["native", "plainly"]

Function = TypeVar("Function", bound=Callable[..., Any])

_PAIRS = (
    (MismatchError, tf.errors.FailedPreconditionError),
    (NotInitializedError, tf.errors.FailedPreconditionError),
    (UsageError, tf.errors.InvalidArgumentError),
    (HorovodInternalError, tf.errors.UnknownError),
)

_made: dict[tuple[type[Any], type[Any]], type[HoraError]] = {}


def plainly(function: Function) -> Function:
    """Make a function public: not for AutoGraph, with errors of both kinds."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except HoraError as error:
            raise native(error) from error.__cause__

    return cast(Function, tf.autograph.experimental.do_not_convert(call))


def native(error: HoraError) -> HoraError:
    """The error as one that is TensorFlow's as well.

    >>> error = native(MismatchError("rank 1 has another shape"))
    >>> isinstance(error, MismatchError), isinstance(error, tf.errors.FailedPreconditionError), str(error)
    (True, True, 'rank 1 has another shape')
    """
    for ours, theirs in _PAIRS:
        if isinstance(error, ours) and not isinstance(error, theirs):
            both = _both(type(error), theirs)
            made = both.__new__(both)
            made.args = error.args
            made.__dict__.update(error.__dict__, **theirs(None, None, str(error)).__dict__)
            made.__traceback__ = error.__traceback__
            return made
    return error


def _both(ours: type[HoraError], theirs: type[Any]) -> type[HoraError]:
    if (known := _made.get((ours, theirs))) is not None:
        return known
    about = {"__module__": ours.__module__, "__doc__": ours.__doc__, "__reduce__": ours.__reduce__}
    made = _made[ours, theirs] = type(ours.__name__, (ours, theirs), about)
    return made
