"""One operation as its caller describes it (``OperationSpec``), and as one rank tells the others (``Request``).

A request is all that agreement needs to know; it never holds the data. It is sent as msgpack, and its fingerprint tells
whether two ranks asked for the same.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from hora.engine.process_set import ProcessSet
from hora.types import Buffer, DType, Kind, ReduceOp, Reduction

__all__ = ["OperationSpec", "Request", "TensorSpec", "forms"]

_SUM = Reduction(ReduceOp.SUM)


def forms(buffers: Sequence[Buffer]) -> tuple[tuple[DType, tuple[int, ...]], ...]:
    """The element types and shapes of some memory."""
    return tuple([(buffer.dtype, buffer.shape) for buffer in buffers])


class OperationSpec(NamedTuple):
    """What a caller wants done to tensors of these forms; ``engine.prepare`` makes an operation of it.

    Without a name it gets a number, counted per kind and set, so all ranks must make their unnamed calls in the same
    order. ``process_set`` is all ranks unless given. ``root`` is a global rank.
    """

    kind: Kind
    name: str | None
    tensors: tuple[tuple[DType, tuple[int, ...]], ...] = ()
    process_set: ProcessSet | None = None
    how: Reduction = _SUM
    root: int = -1
    splits: tuple[int, ...] | None = None
    device: str = "cpu"
    grouped: bool = False


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of a request: its element type and shape."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One rank's wish. A grouped operation is one request with several segments, so a group is a unit by construction.

    ``name`` is the full name, with its kind's prefix (``allreduce.loss``): kinds have their own name spaces.
    ``members`` are the process set's global ranks; the same name on two sets is two operations. ``root`` is a global
    rank. ``line`` is the user's source line; ``named`` is False where the name was made from a counter, and then two
    different lines under one name are suspicious.

    >>> a = Request(Kind.ALLREDUCE, "allreduce.x", (TensorSpec(DType.FLOAT32, (3,)),), (0, 1), line="a.py:1")
    >>> b = Request(Kind.ALLREDUCE, "allreduce.x", (TensorSpec(DType.FLOAT32, (3,)),), (0, 1), line="b.py:9")
    >>> a.fingerprint() == b.fingerprint()
    True
    >>> c = Request(Kind.ALLREDUCE, "allreduce.x", (TensorSpec(DType.FLOAT32, (4,)),), (0, 1))
    >>> a.fingerprint() == c.fingerprint()
    False
    """

    kind: Kind
    name: str
    segments: tuple[TensorSpec, ...]
    members: tuple[int, ...]
    how: Reduction = _SUM
    root: int = -1
    device: str = "cpu"
    splits: tuple[int, ...] | None = None
    grouped: bool = False
    named: bool = True
    line: str = "?"
    cut: int = 0  # segments that are left out where it is only described, for want of room

    @property
    def tensors(self) -> int:
        return len(self.segments) + self.cut

    def fingerprint(self) -> int:
        """64 bits over everything that must be equal on all ranks; never 0."""
        return _fingerprint(self.kind, self.segments, self.how, self.root, self.device, self.grouped)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> Request:
        return _decoder.decode(data)


@functools.lru_cache(maxsize=256)  # calls without a name differ in that, which does not have to match
def _fingerprint(
    kind: Kind, segments: tuple[TensorSpec, ...], how: Reduction, root: int, device: str, grouped: bool
) -> int:
    free_rows = kind in (Kind.ALLGATHER, Kind.ALLTOALL)
    shapes = [(len(s.shape), *s.shape[1:]) if free_rows else s.shape for s in segments]
    must_match = (int(kind), [int(s.dtype) for s in segments], shapes, how, root, device, grouped)
    digest = hashlib.blake2b(msgspec.msgpack.encode(must_match), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


_decoder = msgspec.msgpack.Decoder(Request)
