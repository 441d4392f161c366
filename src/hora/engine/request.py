"""A request: what one rank says about one operation, and the fingerprint that tells whether two ranks said the same.

A request is all that agreement needs to know; it never holds the data. It travels as msgpack.
"""

from __future__ import annotations

import hashlib

import msgspec

from hora.transport.base import DType, Kind, ReduceOp

__all__ = ["Request", "Segment"]


class Segment(msgspec.Struct, frozen=True, array_like=True):
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

    >>> a = Request(Kind.ALLREDUCE, "allreduce.x", (Segment(DType.FLOAT32, (3,)),), (0, 1), line="a.py:1")
    >>> b = Request(Kind.ALLREDUCE, "allreduce.x", (Segment(DType.FLOAT32, (3,)),), (0, 1), line="b.py:9")
    >>> a.fingerprint() == b.fingerprint()
    True
    >>> c = Request(Kind.ALLREDUCE, "allreduce.x", (Segment(DType.FLOAT32, (4,)),), (0, 1))
    >>> a.fingerprint() == c.fingerprint()
    False
    """

    kind: Kind
    name: str
    segments: tuple[Segment, ...]
    members: tuple[int, ...]
    op: ReduceOp = ReduceOp.SUM
    root: int = -1
    prescale: float = 1.0
    postscale: float = 1.0
    device: str = "cpu"
    splits: tuple[int, ...] | None = None
    grouped: bool = False
    named: bool = True
    line: str = "?"
    wire: DType | None = None  # of an allreduce of FLOAT32: the type that its values are rounded to between hosts
    cut: int = 0  # segments that are left out where it is only described, for want of room

    @property
    def tensors(self) -> int:
        return len(self.segments) + self.cut

    def fingerprint(self) -> int:
        """64 bits over everything that must be equal on all ranks; never 0."""
        free_rows = self.kind in (Kind.ALLGATHER, Kind.ALLTOALL)
        shapes = [(len(s.shape), *s.shape[1:]) if free_rows else s.shape for s in self.segments]
        dtypes = [int(s.dtype) for s in self.segments]
        must_match = (
            int(self.kind), dtypes, shapes, int(self.op), self.root, self.prescale, self.postscale, self.device,
            self.grouped, self.wire,
        )  # fmt: skip
        digest = hashlib.blake2b(msgspec.msgpack.encode(must_match), digest_size=8).digest()
        return int.from_bytes(digest, "little") or 1

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> Request:
        return _decoder.decode(data)


_decoder = msgspec.msgpack.Decoder(Request)
