"""Python objects as bytes, and the collectives that every front-end has for them.

These bytes go only between the ranks of one job, through the job's own collectives. But a collective's network is not
authenticated (anybody may connect to a port of Gloo's), and whoever chooses what is unpickled chooses what is run. So
they carry a code made with a key that only the ranks have, and nothing is unpickled before the code is checked; on one
host too, where it would not be needed and costs little. What cannot be turned into bytes must not leave the other ranks
waiting, so a failure is itself packed and sent: every rank raises.
"""

from __future__ import annotations

import hmac
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from hora.engine import session
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import HorovodInternalError
from hora.ops import host
from hora.ops.call import Call
from hora.types import Kind

__all__ = ["allgather_object", "broadcast_bytes", "broadcast_object", "pack", "unpack"]

_FINE, _FAILED = b"\0", b"\1"
_CODE_BYTES = 32


def pack(
    value: object, key: bytes, sender: int, persistent_id: Callable[[object], Any] | None = None
) -> tuple[bytes, Exception | None]:
    """The bytes to send for ``value``, and the exception to raise after sending if it could not be turned into bytes.

    ``key`` is the engine's, ``sender`` this rank. ``persistent_id`` may return something to send in place of an object
    (see ``pickle.Pickler.persistent_id``).

    >>> data, failure = pack({"epoch": 3}, b"a secret", sender=0)
    >>> unpack(data, b"a secret", sender=0), failure
    ({'epoch': 3}, None)
    """
    failed = None
    try:
        body = _FINE + _dump(value, persistent_id)
    except Exception as failure:
        body, failed = _FAILED + f"{type(failure).__name__}: {failure}".encode(), failure
    return _code(key, sender, body) + body, failed


def _code(key: bytes, sender: int, body: bytes | memoryview) -> bytes:
    code = hmac.new(key, b"an object of rank %d\n" % sender, "sha256")
    code.update(body)
    return code.digest()


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


def unpack(data: bytes, key: bytes, sender: int, persistent_load: Callable[[Any], object] | None = None) -> Any:
    """The object that ``pack`` made bytes of on rank ``sender``; raises if it could not, or if they are others."""
    code, body = data[:_CODE_BYTES], memoryview(data)[_CODE_BYTES:]
    if not hmac.compare_digest(_code(key, sender, body), code):
        raise HorovodInternalError(
            f"the {len(data)} bytes that came as the object of rank {sender} are not what it sent: they were altered "
            "on the way, or are somebody else's. They were not unpickled, because whoever made them could have had "
            "this process run anything. Find out who else is on the network between the hosts, or take another one "
            "with --network-interfaces."
        )
    if body[:1] == _FAILED:
        raise HorovodInternalError(
            f"rank {sender} could not turn its object into bytes: {bytes(body[1:]).decode()}. Nobody got it. Send "
            "something that pickle or cloudpickle can take."
        )
    unpickler = pickle.Unpickler(io.BytesIO(body[1:]))
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
    engine = session.engine()
    is_root = engine.rank == root_rank
    data, failure = pack(obj, engine.key, root_rank) if is_root else (b"", None)
    data = broadcast_bytes(data, root_rank, name, process_set)
    if failure is not None:
        raise failure
    return obj if is_root else unpack(data, engine.key, root_rank)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Serialise every rank's object and return all of them, in rank order.

    Args:
        obj: Any object.
        name: What the operation is called; every rank must use the same.
        process_set: The ranks that take part; all of them unless given.
    """
    engine = session.engine()
    data, failure = pack(obj, engine.key, engine.rank)
    call = Call(Kind.ALLGATHER, name and f"{name}.object", process_set)
    gathered = host.start(call, [np.frombuffer(data, np.uint8)]).wait()
    if failure is not None:
        raise failure
    received = gathered.tensors[0].data
    objects, start = [], 0
    for rank, nbytes in zip(process_set.ranks, gathered.rows[0], strict=True):
        objects.append(unpack(bytes(received[start : start + nbytes]), engine.key, rank))
        start += nbytes
    return objects


def broadcast_bytes(data: bytes, root_rank: int, name: str | None, process_set: ProcessSet) -> bytes:
    """The root's bytes; first their number, then themselves. Others give none."""

    def sent(what: str, array: host.Array) -> host.Array:
        call = Call(Kind.BROADCAST, name and f"{name}.{what}", process_set, root=root_rank)
        return host.start(call, [array]).wait().tensors[0]

    length = sent("length", np.array([len(data)]))
    block = np.frombuffer(data, np.uint8) if data else np.empty(int(length[0]), np.uint8)
    received = sent("object", block)
    return data or received.tobytes()
