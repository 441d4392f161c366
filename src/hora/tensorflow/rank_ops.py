"""Who and where a worker is, as operations of TensorFlow: found when they are executed, not when they are traced."""

from __future__ import annotations

from typing import Any

from hora import basics
from hora.engine import session
from hora.errors import UsageError
from hora.tensorflow.graph import now
from hora.tensorflow.surface import plainly

__all__ = ["local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "size_op"]


@plainly
def rank_op(name: str | None = None) -> Any:
    """This process's rank, found when the operation is executed, not when it is traced: an int32 tensor.

    >>> import hora.tensorflow as hvd
    >>> hvd.init()
    >>> int(hvd.rank_op()), int(hvd.size_op())      # alone, unless a launcher started several
    (0, 1)
    >>> hvd.shutdown()
    """
    return now(session.rank)


@plainly
def local_rank_op(name: str | None = None) -> Any:
    """This process's rank among those of its host, found when executed."""
    return now(basics.local_rank)


@plainly
def local_size_op(name: str | None = None) -> Any:
    """How many workers this host has, found when executed."""
    return now(basics.local_size)


@plainly
def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """How many ranks there are, or are in the process set of this number, found when executed."""
    return now(lambda: len(_members(process_set_id)))


@plainly
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this process is in the process set of this number, else 0; found when executed."""
    return now(lambda: int(session.rank() in _members(process_set_id)))


def _members(process_set_id: int) -> list[int]:
    known = session.engine().process_sets.ids()
    if process_set_id not in known:
        raise UsageError(
            f"there is no process set of the number {process_set_id}; known are {sorted(known)}. Give the"
            " process_set_id of one that was added and not removed."
        )
    return known[process_set_id]
