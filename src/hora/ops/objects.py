"""Python objects as bytes, and the collectives that every front-end has for them.

These bytes go only between the ranks of one job, through the job's own collectives; nothing from a socket is ever
unpickled. What cannot be turned into bytes must not leave the other ranks waiting, so a failure is itself packed and
sent: every rank raises.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from hora.engine import session
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import HorovodInternalError
from hora.ops import host

__all__ = ["allgather_object", "broadcast_bytes", "broadcast_object", "pack", "unpack"]

_FINE, _FAILED = b"\0", b"\1"


def pack(value: object, persistent_id: Callable[[object], Any] | None = None) -> tuple[bytes, Exception | None]:
    """The bytes to send for ``value``, and the exception to raise after sending if it could not be turned into bytes.

    ``persistent_id`` may return something to send in place of an object (see ``pickle.Pickler.persistent_id``).

    >>> data, failure = pack({"epoch": 3})
    >>> unpack(data, sender=0), failure
    ({'epoch': 3}, None)
    """
    try:
        return _FINE + _dump(value, persistent_id), None
    except Exception as failure:
        return _FAILED + f"{type(failure).__name__}: {failure}".encode(), failure


def _dump(value: object, persistent_id: Callable[[object], Any] | None) -> bytes:
    try:
        return _dump_with(pickle.Pickler, value, persistent_id)
    except Exception:
        # Lambdas and classes defined in functions: cloudpickle sends their code. Imported only when it comes to that.
        try:
            import cloudpickle  # type: ignore[import-untyped, unused-ignore]
        except ImportError:
            pass
        else:
            return _dump_with(cloudpickle.Pickler, value, persistent_id)
        raise


def _dump_with(pickler: Any, value: object, persistent_id: Callable[[object], Any] | None) -> bytes:
    stream = io.BytesIO()
    if persistent_id is not None:
        replace = persistent_id  # a local, so that the class below closes over something that is not None
        pickler = type("Pickler", (pickler,), {"persistent_id": lambda self, obj: replace(obj)})
    pickler(stream, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return stream.getvalue()


def unpack(data: bytes, sender: int, persistent_load: Callable[[Any], object] | None = None) -> Any:
    """The object that ``pack`` made bytes of on rank ``sender``; raises if it could not."""
    if data[:1] == _FAILED:
        raise HorovodInternalError(
            f"rank {sender} could not turn its object into bytes: {data[1:].decode()}. Nobody got it. Send something"
            " that pickle or cloudpickle can take."
        )
    unpickler = pickle.Unpickler(io.BytesIO(data[1:]))
    if persistent_load is not None:
        unpickler.persistent_load = persistent_load  # type: ignore[method-assign]
    return unpickler.load()


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Serialise the root's object and return it on every rank; the root gets back its own.

    Args:
        obj: Any object; only the root's matters.
        root_rank: The rank to copy from: its rank among all, also within a process set.
        name: What the operation is called; every rank must use the same.
        process_set: The ranks that take part; all of them unless given.
    """
    is_root = session.engine().rank == root_rank
    data, failure = pack(obj) if is_root else (b"", None)
    data = broadcast_bytes(data, root_rank, name, process_set)
    if failure is not None:
        raise failure
    return obj if is_root else unpack(data, root_rank)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Serialise every rank's object and return all of them, in rank order.

    Args:
        obj: Any object.
        name: What the operation is called; every rank must use the same.
        process_set: The ranks that take part; all of them unless given.
    """
    data, failure = pack(obj)
    (gathered,) = host.allgather([np.frombuffer(data, np.uint8)], name and f"{name}.object", process_set).result()
    if failure is not None:
        raise failure
    received = gathered.array.data
    objects, start = [], 0
    for rank, nbytes in zip(process_set.ranks, gathered.rows, strict=True):
        objects.append(unpack(bytes(received[start : start + nbytes]), rank))
        start += nbytes
    return objects


def broadcast_bytes(data: bytes, root_rank: int, name: str | None, process_set: ProcessSet) -> bytes:
    """The root's bytes; first their number, then themselves. Others give none."""
    (length,) = host.broadcast([np.array([len(data)])], root_rank, name and f"{name}.length", process_set).result()
    block = np.frombuffer(data, np.uint8) if data else np.empty(int(length[0]), np.uint8)
    (received,) = host.broadcast([block], root_rank, name and f"{name}.object", process_set).result()
    return data or received.tobytes()
