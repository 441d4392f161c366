"""Gloo as a mover: torch's process groups, built directly, so that the user's default process group is never touched.

Gloo only moves bytes here; the arithmetic is ours (``transport.arithmetic``). An allreduce sends every rank its share
of the vector from all others, reduces the share in rank order, and gathers the shares: as many bytes on the wire as
Gloo's own ring, but with every element type, half types summed in float32, and the same bits on every rank whether
fused or not. Small vectors are gathered whole, which takes one exchange instead of two.

There is one process group for each set of ranks, made when the set first needs it. The ranks find each other through
the hub's authenticated store and connect over the loopback interface, or over ``interface``. Gloo's own connections are
not authenticated.

After a failure a group is never used, waited for or destroyed again: Gloo may still write into its buffers, and tearing
it down in that state can abort the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from hora.errors import HorovodInternalError
from hora.transport.arithmetic import Array, adasum, bytes_of, reduce_parts
from hora.transport.base import Buffer, DType, ReduceOp

__all__ = ["GlooMover", "KeyValue"]

_SMALL_BYTES = 16 * 2**10
_abandoned: list[object] = []  # groups that failed, and the memory they may still touch, to the end of the process


class KeyValue(Protocol):
    """A store that all ranks of a generation share."""

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """The value, once it is set; None if it is not in time."""


class _Store(dist.Store):  # type: ignore[name-defined,misc]  # torch's stubs leave it out
    """A :class:`KeyValue` as torch wants it, for the calls that a process group makes."""

    def __init__(self, store: KeyValue, prefix: str, timeout_s: float) -> None:
        super().__init__()
        self._store, self._prefix, self._timeout_s = store, prefix, timeout_s

    def set(self, key: str, value: Any) -> None:
        self._store.set(self._prefix + key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._fetch(key, self._timeout_s)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self._fetch(key, self._timeout_s if timeout is None else timeout.total_seconds())

    def _fetch(self, key: str, timeout_s: float) -> bytes:
        value = self._store.get(self._prefix + key, timeout_s)
        if value is None:
            raise HorovodInternalError(f"a rank did not connect within {timeout_s:g} s (it never set {key!r})")
        return value


class GlooMover:
    """The mover of one rank. Not thread-safe: one thread carries out all work, in the order all ranks keep."""

    def __init__(self, rank: int, store: KeyValue, *, interface: str = "", timeout_s: float = 30.0) -> None:
        self._rank, self._store, self._timeout_s = rank, store, timeout_s
        where = {"interface": interface} if interface else {"hostname": "127.0.0.1"}
        self._device = dist.ProcessGroupGloo.create_device(**where)
        self._groups: dict[tuple[int, ...], Any] = {}
        self._scratch: dict[str, Array] = {}
        self._failed = self._closed = False
        self._moving = False  # inside Gloo right now

    def allreduce(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        *,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        members: tuple[int, ...],
        contributors: tuple[int, ...],
        divisor: int,
    ) -> None:
        if self._rank not in contributors:
            return  # the result is for those who brought data
        for dtype in dict.fromkeys(buffer.dtype for buffer in inputs):
            sources = [buffer for buffer in inputs if buffer.dtype is dtype]
            targets = [buffer for buffer in outputs if buffer.dtype is dtype]
            total = sum(buffer.nbytes for buffer in sources)
            if op is ReduceOp.ADASUM or total <= _SMALL_BYTES or len(contributors) == 1:
                self._reduce_whole(sources, targets, dtype, op, prescale, postscale, contributors, divisor)
            else:
                self._reduce_shares(sources, targets, dtype, op, prescale, postscale, contributors, divisor)

    def allgather(self, input: Buffer, output: Buffer, *, nbytes: Sequence[int], members: tuple[int, ...]) -> None:
        self._gather(bytes_of(input), bytes_of(output), list(nbytes), members)

    def broadcast(self, buffer: Buffer, output: Buffer, *, root: int, members: tuple[int, ...]) -> None:
        target = bytes_of(output)
        if self._rank == root and buffer.address != output.address:
            target[:] = bytes_of(buffer)
        self._broadcast(target, members.index(root), members)

    def alltoall(
        self, input: Buffer, output: Buffer, *, sent: Sequence[int], received: Sequence[int], members: tuple[int, ...]
    ) -> None:
        self._exchange(bytes_of(input)[: sum(sent)], list(sent), bytes_of(output), list(received), members)

    def reducescatter(
        self,
        input: Buffer,
        output: Buffer,
        *,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        counts: Sequence[int],
        members: tuple[int, ...],
        divisor: int,
    ) -> None:
        item, mine = input.dtype.itemsize, counts[members.index(self._rank)]
        sent = [count * item for count in counts]
        received = self._take_scratch("received", mine * item * len(members))
        self._exchange(bytes_of(input), sent, received, [mine * item] * len(members), members)
        parts = list(received.view(input.dtype.numpy).reshape(len(members), mine))
        result = reduce_parts(parts, input.dtype, op, prescale, postscale, divisor)
        bytes_of(output)[:] = result.view("uint8")

    def close(self) -> None:
        if self._failed or self._moving:
            _abandoned.append((self._groups, self._device, self._scratch))
        self._groups, self._scratch, self._closed = {}, {}, True

    # ---- reducing ----

    def _reduce_whole(
        self, sources: Sequence[Buffer], targets: Sequence[Buffer], dtype: DType, op: ReduceOp, prescale: float,
        postscale: float, ranks: tuple[int, ...], divisor: int,
    ) -> None:  # fmt: skip
        """Gather all vectors and reduce them here."""
        packed = self._pack(sources, 0)
        everything = self._take_scratch("received", packed.size * len(ranks))
        self._gather(packed, everything, [packed.size] * len(ranks), ranks)
        rows = everything.reshape(len(ranks), packed.size)
        low = 0
        for target in targets:
            parts = [row[low : low + target.nbytes].view(dtype.numpy) for row in rows]
            low += target.nbytes
            if op is ReduceOp.ADASUM:
                result = adasum(parts, dtype, prescale, postscale)
            else:
                result = reduce_parts(parts, dtype, op, prescale, postscale, divisor)
            bytes_of(target)[:] = result.view("uint8")

    def _reduce_shares(
        self, sources: Sequence[Buffer], targets: Sequence[Buffer], dtype: DType, op: ReduceOp, prescale: float,
        postscale: float, ranks: tuple[int, ...], divisor: int,
    ) -> None:  # fmt: skip
        """Every rank reduces its share of the vector; then the shares are gathered."""
        count = sum(buffer.elements for buffer in sources)
        share = -(-count // len(ranks)) * dtype.itemsize
        alone = len(sources) == 1 and share * len(ranks) == sources[0].nbytes  # then nothing need be packed
        packed = bytes_of(sources[0]) if alone else self._pack(sources, share * len(ranks))
        received = self._take_scratch("received", packed.size)
        shares = [share] * len(ranks)
        self._exchange(packed, shares, received, shares, ranks)
        parts = list(received.view(dtype.numpy).reshape(len(ranks), -1))
        result = reduce_parts(parts, dtype, op, prescale, postscale, divisor).view("uint8")
        if alone:
            self._gather(result, bytes_of(targets[0]), shares, ranks)
            return
        self._gather(result, packed, shares, ranks)
        low = 0
        for target in targets:
            bytes_of(target)[:] = packed[low : low + target.nbytes]
            low += target.nbytes

    def _pack(self, buffers: Sequence[Buffer], padded: int) -> Array:
        """The buffers' bytes in a row, with zeros up to ``padded``."""
        total = sum(buffer.nbytes for buffer in buffers)
        packed = self._take_scratch("packed", max(total, padded))
        low = 0
        for buffer in buffers:
            packed[low : low + buffer.nbytes] = bytes_of(buffer)
            low += buffer.nbytes
        packed[total:] = 0
        return packed

    def _take_scratch(self, name: str, nbytes: int) -> Array:
        if name not in self._scratch or self._scratch[name].size < nbytes:
            self._scratch[name] = np.empty(nbytes, dtype="uint8")
        return self._scratch[name][:nbytes]

    # ---- moving bytes ----

    def _exchange(
        self, source: Array, sent: list[int], target: Array, received: list[int], ranks: tuple[int, ...]
    ) -> None:
        """Send ``sent[i]`` bytes to the i-th rank and receive ``received[i]`` from it."""
        if len(ranks) == 1:
            target[:] = source
            return
        options = dist.AllToAllOptions()
        self._wait(self._group(ranks).alltoall_base(_tensor(target), _tensor(source), received, sent, options))

    def _gather(self, source: Array, target: Array, sizes: list[int], ranks: tuple[int, ...]) -> None:
        """Concatenate what the ranks bring."""
        largest, total = max(sizes), sum(sizes)
        if total == 0:
            return
        if len(ranks) == 1:
            target[:] = source
        elif min(sizes) == largest:
            self._wait(self._group(ranks)._allgather_base(_tensor(target), _tensor(source)))
        elif largest * len(ranks) <= 2 * total + _SMALL_BYTES:  # Gloo wants equal parts: pad them
            padded = self._take_scratch("padded", largest * (len(ranks) + 1)).reshape(len(ranks) + 1, largest)
            padded[-1, : source.size] = source
            self._wait(self._group(ranks)._allgather_base(_tensor(padded[:-1].reshape(-1)), _tensor(padded[-1])))
            np.concatenate([row[:size] for row, size in zip(padded, sizes, strict=False)], out=target)
        else:  # too uneven for that: one broadcast a rank
            low = 0
            for position, size in enumerate(sizes):
                part = target[low : low + size]
                if ranks[position] == self._rank:
                    part[:] = source
                self._broadcast(part, position, ranks)
                low += size

    def _broadcast(self, target: Array, position: int, ranks: tuple[int, ...]) -> None:
        if len(ranks) == 1 or target.size == 0:
            return
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = position, 0
        self._wait(self._group(ranks).broadcast([_tensor(target)], options))

    def _group(self, ranks: tuple[int, ...]) -> Any:
        if self._closed or self._failed:
            raise HorovodInternalError("Gloo can no longer move data: it was closed, or failed before")
        if ranks not in self._groups:
            options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._devices = [self._device]
            options._timeout = timedelta(seconds=self._timeout_s)
            store = _Store(self._store, f"gloo/{'.'.join(map(str, ranks))}/", self._timeout_s)
            try:
                group = dist.ProcessGroupGloo(store, ranks.index(self._rank), len(ranks), options)
            except Exception as error:
                self._failed = True
                raise HorovodInternalError(f"Gloo could not connect {len(ranks)} ranks: {error}") from error
            self._groups[ranks] = group
        return self._groups[ranks]

    def _wait(self, work: Any) -> None:
        self._moving = True
        try:
            work.wait()
            self._moving = False
        except RuntimeError as error:
            self._failed = True
            _abandoned.append(work)
            reason = str(error).partition("This is typically")[0].rpartition("] ")[2].strip().rstrip(".")
            raise HorovodInternalError(f"Gloo could not move data: {reason}") from error


def _tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(array)
