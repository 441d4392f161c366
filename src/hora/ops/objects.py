"""Python objects as bytes, for ``broadcast_object`` and its like.

These bytes go only between the ranks of one job, through the job's own collectives; nothing from a socket is ever
unpickled. What cannot be turned into bytes must not leave the other ranks waiting, so a failure is itself packed and
sent: every rank raises.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

from hora.errors import HorovodInternalError

__all__ = ["pack", "unpack"]

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
