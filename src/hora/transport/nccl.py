"""NCCL as a mover: tensors stay on their GPUs. Everything else goes to the host's mover that it is put in front of.

Work is put on a stream of the mover's own, in the order of streams that ``transport.device`` describes, so every method
returns as soon as it is queued; ``mark`` gives the event after which it is done. There is one process group for each
set of ranks, built directly, as Gloo's are: the user's default group is never touched. Fused operations go through one
flat tensor on the GPU.

What NCCL cannot do the way Hora means it (Adasum, bool and int16, averaged or scaled integers) goes through host
memory. So does everything between ranks of which one has no NCCL or two share a GPU: each puts into the store what it
has, so all of them decide alike, and one of them says so.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from hora.errors import HorovodInternalError
from hora.transport import device
from hora.transport.base import KeyValue, Mover
from hora.transport.torch_store import TorchStore
from hora.types import Buffer, DType, ReduceOp

__all__ = ["NcclMover"]

_log = logging.getLogger("hora")

_OPS: dict[ReduceOp, Any] = {
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.AVERAGE: dist.ReduceOp.SUM,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
    ReduceOp.PRODUCT: dist.ReduceOp.PRODUCT,
}
_INTEGERS = (DType.INT8, DType.UINT8, DType.INT32, DType.INT64)
_YES = "gpu "

Ranks = tuple[int, ...]


class NcclMover(Mover):
    """Carries tensors on GPUs by NCCL, and what is on the host by ``host``. Not thread-safe, but for ``abort``.

    All tensors are worked on where the first was; those of another GPU of this process are copied there and back.
    """

    def __init__(
        self,
        rank: int,
        host: Mover,
        store: KeyValue,
        *,
        timeout_s: float = 600.0,
        meet_s: float = 30.0,
        interface: str = "",
    ) -> None:
        self.carries = (device.kind(),)
        self._rank, self._host, self._store = rank, host, store
        self._timeout_s, self._meet_s, self._interface = timeout_s, meet_s, interface
        self._where: torch.device | None = None
        self._stream: Any = None
        self._groups: dict[Ranks, tuple[Any, TorchStore]] = {}  # torch does not keep a store of Python's alive
        self._fit: dict[Ranks, bool] = {}
        self._warned = False
        self._stopped = ""

    # ---- Mover ----

    def allreduce(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        *,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        members: Ranks,
        contributors: Ranks,
        divisor: int,
    ) -> None:
        how = {"op": op, "prescale": prescale, "postscale": postscale, "divisor": divisor}
        among = {"members": members, "contributors": contributors}
        if not _on_device(inputs):
            self._host.allreduce(inputs, outputs, **how, **among)  # type: ignore[arg-type]
            return
        with self._working(*inputs, *outputs):
            for dtype in dict.fromkeys(buffer.dtype for buffer in inputs):
                sources = [buffer for buffer in inputs if buffer.dtype is dtype]
                targets = [buffer for buffer in outputs if buffer.dtype is dtype]
                if self._can_reduce(dtype, op, (prescale, postscale), contributors):
                    self._reduce(sources, targets, op, prescale, _last_factor(op, postscale, divisor), contributors)
                else:
                    with self._staged(sources, targets) as (host_sources, host_targets):
                        self._host.allreduce(host_sources, host_targets, **how, **among)  # type: ignore[arg-type]

    def allgather(self, input: Buffer, output: Buffer, *, nbytes: Sequence[int], members: Ranks) -> None:
        if not _on_device([input]):
            self._host.allgather(input, output, nbytes=nbytes, members=members)
            return
        with self._working(input, output):
            if not self._can(members):
                with self._staged([input], [output]) as ((source,), (target,)):
                    self._host.allgather(source, target, nbytes=nbytes, members=members)
                return
            mine, everything = self._bytes(input), self._bytes(output)
            if len(set(nbytes)) == 1:
                if nbytes[0]:
                    self._do(members, lambda group: group._allgather_base(everything, mine))
                return
            for position, part in enumerate(everything.split(list(nbytes))):  # NCCL gathers equal parts only
                if members[position] == self._rank:
                    part.copy_(mine)
                self._broadcast(part, position, members)

    def broadcast(self, buffer: Buffer, output: Buffer, *, root: int, members: Ranks) -> None:
        if not _on_device([buffer]):
            self._host.broadcast(buffer, output, root=root, members=members)
            return
        with self._working(buffer, output):
            if not self._can(members):
                with self._staged([buffer], [output]) as ((source,), (target,)):
                    self._host.broadcast(source, target, root=root, members=members)
                return
            whole = self._bytes(output)
            if self._rank == root and buffer.address != output.address:
                whole.copy_(_bytes(_flat(buffer)))
            self._broadcast(whole, members.index(root), members)
            self._give_back(whole, output)

    def alltoall(
        self, input: Buffer, output: Buffer, *, sent: Sequence[int], received: Sequence[int], members: Ranks
    ) -> None:
        if not _on_device([input]):
            self._host.alltoall(input, output, sent=sent, received=received, members=members)
            return
        with self._working(input, output):
            if not self._can(members):
                with self._staged([input], [output]) as ((source,), (target,)):
                    self._host.alltoall(source, target, sent=sent, received=received, members=members)
                return
            out, into, splits = self._bytes(input)[: sum(sent)], self._bytes(output), (list(received), list(sent))
            self._do(members, lambda group: group.alltoall_base(into, out, *splits, dist.AllToAllOptions()))

    def reducescatter(
        self,
        input: Buffer,
        output: Buffer,
        *,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        counts: Sequence[int],
        members: Ranks,
        divisor: int,
    ) -> None:
        how = {"op": op, "prescale": prescale, "postscale": postscale, "divisor": divisor}
        if not _on_device([input]):
            self._host.reducescatter(input, output, **how, counts=counts, members=members)  # type: ignore[arg-type]
            return
        with self._working(input, output):
            if not self._can_reduce(input.dtype, op, (prescale, postscale), members):
                with self._staged([input], [output]) as ((source,), (target,)):
                    self._host.reducescatter(source, target, **how, counts=counts, members=members)  # type: ignore[arg-type]
                return
            whole, largest = self._flat(input), max(counts)
            padded = whole.new_zeros(len(counts), largest)  # NCCL scatters equal parts only
            for row, part in zip(padded, whole.split(list(counts)), strict=True):
                row[: part.numel()] = part
            if prescale != 1.0:
                padded.mul_(prescale)
            mine = whole.new_empty(largest)
            if largest:
                options = dist.ReduceScatterOptions()
                options.reduceOp = _OPS[op]
                self._do(members, lambda group: group._reduce_scatter_base(mine, padded.view(-1), options))
            if (factor := _last_factor(op, postscale, divisor)) != 1.0:
                mine.mul_(factor)
            _flat(output).copy_(mine[: output.elements])

    def abort(self, reason: str) -> None:
        self._stopped = self._stopped or reason
        for group, _ in list(self._groups.values()):
            with contextlib.suppress(RuntimeError):
                device.abort(group)
        self._host.abort(reason)

    def close(self) -> None:
        if self._groups and not self._stopped:
            device.settle(self._stream)  # what was agreed on is finished, for the others need it
            self.abort("it was closed")
        self._stopped = self._stopped or "it was closed"
        self._groups.clear()
        self._host.close()

    # ---- what callers need besides ----

    def mark(self) -> Any:
        """The event after which everything so far is done."""
        assert self._where is not None
        with device.on(self._stream):
            return device.mark(self._where)

    def allocate(self, nbytes: int, like: Buffer) -> torch.Tensor:
        """Bytes on the GPU, for a result."""
        self._settle_down(like)
        with device.on(self._stream):
            return torch.empty(nbytes, dtype=torch.uint8, device=self._where)

    # ---- on the GPU ----

    def _reduce(
        self, sources: list[Buffer], targets: list[Buffer], op: ReduceOp, prescale: float, factor: float, ranks: Ranks
    ) -> None:
        alone = len(sources) == 1
        if alone:
            flat = self._flat(targets[0])
            if sources[0].address != targets[0].address:
                flat.copy_(_flat(sources[0]))
        else:
            flat = torch.cat([self._flat(source) for source in sources])
        if prescale != 1.0:
            flat.mul_(prescale)
        if flat.numel():
            options = dist.AllreduceOptions()
            options.reduceOp = _OPS[op]
            self._do(ranks, lambda group: group.allreduce([flat], options))
        if factor != 1.0:
            flat.mul_(factor)
        if alone:
            self._give_back(flat, targets[0])
        else:
            into = [_flat(target) for target in targets]
            torch._foreach_copy_(into, list(flat.split([part.numel() for part in into])))

    def _broadcast(self, part: torch.Tensor, position: int, ranks: Ranks) -> None:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = position, 0
        if part.numel():
            self._do(ranks, lambda group: group.broadcast([part], options))

    def _do(self, ranks: Ranks, start: Callable[[Any], Any]) -> None:
        """Queue an operation among these ranks, and what comes later on this stream behind it."""
        group = self._group(ranks)
        try:
            start(group).wait()
        except RuntimeError as error:
            self._stopped = self._stopped or "it failed before"
            reason = str(error).strip().partition("\n")[0]
            raise HorovodInternalError(f"NCCL could not move data: {reason}") from error

    def _group(self, ranks: Ranks) -> Any:
        if self._stopped:
            raise HorovodInternalError(f"NCCL can no longer move data: {self._stopped}")
        if ranks not in self._groups:
            store = TorchStore(self._store, f"nccl/{'.'.join(map(str, ranks))}/", self._meet_s)
            place, kind = ranks.index(self._rank), self.carries[0]
            group = device.group(kind, store, place, len(ranks), self._timeout_s, self._interface)
            self._groups[ranks] = group, store
        group = self._groups[ranks][0]
        if reason := device.error(group):  # torch says it to nobody else, and what came of it is not right
            self._stopped = f"a communicator failed meanwhile ({reason})"
            raise HorovodInternalError(f"NCCL can no longer move data: {self._stopped}")
        return group

    @contextlib.contextmanager
    def _working(self, *buffers: Buffer) -> Iterator[None]:
        """On the mover's stream, after what made the data."""
        self._settle_down(buffers[0])
        assert self._where is not None
        with torch.no_grad(), device.on(self._stream):
            for event in {id(buffer.ready): buffer.ready for buffer in buffers if buffer.ready is not None}.values():
                device.follow(event, self._where)
            for buffer in buffers:
                device.keep(_tensor(buffer))
            yield

    def _settle_down(self, first: Buffer) -> None:
        """The first tensor says which GPU this worker uses; then all are told."""
        if self._where is not None:
            return
        self._where = _tensor(first).device
        self._stream = device.stream(self._where)
        told = device.why_not(self._where.type) or _YES + device.identity(self._where)
        self._store.set(f"nccl/{self._rank}", told.encode())

    # ---- whether NCCL can ----

    def _can_reduce(self, dtype: DType, op: ReduceOp, factors: tuple[float, float], ranks: Ranks) -> bool:
        plain = factors == (1.0, 1.0) and op is not ReduceOp.AVERAGE
        known = dtype.is_float or (dtype in _INTEGERS and plain)
        return known and op in _OPS and self._can(ranks)

    def _can(self, ranks: Ranks) -> bool:
        """Whether each of these ranks has NCCL and a GPU of its own; all of them come to the same answer."""
        if ranks not in self._fit:
            told = {rank: self._told(rank) for rank in ranks}
            without = {rank: text for rank, text in told.items() if not text.startswith(_YES)}
            sharing = [rank for rank, text in told.items() if list(told.values()).count(text) > 1]
            self._fit[ranks] = not without and not sharing
            if not self._fit[ranks] and self._rank == ranks[0] and not self._warned:
                self._warned = True
                reason = (
                    f"rank {min(without)} has no NCCL ({without[min(without)]}). Install a torch that has it"
                    if without
                    else f"ranks {sharing} use the same GPU, which NCCL does not allow. Give each worker its own with"
                    " torch.cuda.set_device(hvd.local_rank())"
                )
                _log.warning("tensors on GPUs go through host memory, which is several times slower: %s.", reason)
        return self._fit[ranks]

    def _told(self, rank: int) -> str:
        value = self._store.get(f"nccl/{rank}", self._meet_s)
        if value is None:
            raise HorovodInternalError(f"rank {rank} did not say within {self._meet_s:g} s which GPU it uses")
        return value.decode()

    # ---- through the host ----

    @contextlib.contextmanager
    def _staged(
        self, sources: Sequence[Buffer], targets: Sequence[Buffer]
    ) -> Iterator[tuple[list[Buffer], list[Buffer]]]:
        """Copies in host memory, to be worked on; the results are then copied to where they belong."""
        from_, to = [_host_copy(source) for source in sources], [_host_copy(target) for target in targets]
        for source, copy in zip(sources, from_, strict=True):
            _bytes(_flat(copy)).copy_(_bytes(_flat(source)), non_blocking=True)
        device.settle(self._stream)
        yield from_, to
        for target, copy in zip(targets, to, strict=True):
            _bytes(_flat(target)).copy_(_bytes(_flat(copy)), non_blocking=True)

    # ---- tensors of another GPU than the one this worker uses ----

    def _flat(self, buffer: Buffer) -> torch.Tensor:
        """The elements in a row: the memory itself, or a copy on the GPU that is used."""
        return _flat(buffer).to(self._where, non_blocking=True)

    def _bytes(self, buffer: Buffer) -> torch.Tensor:
        return _bytes(self._flat(buffer))

    def _give_back(self, result: torch.Tensor, buffer: Buffer) -> None:
        if _tensor(buffer).device != self._where:
            _flat(buffer).view(result.dtype).copy_(result)


def _on_device(buffers: Sequence[Buffer]) -> bool:
    return bool(buffers) and buffers[0].device != "cpu"


def _last_factor(op: ReduceOp, postscale: float, divisor: int) -> float:
    return postscale / divisor if op is ReduceOp.AVERAGE else postscale


def _tensor(buffer: Buffer) -> torch.Tensor:
    assert isinstance(buffer.owner, torch.Tensor)
    return buffer.owner


def _flat(buffer: Buffer) -> torch.Tensor:
    tensor = _tensor(buffer).detach()
    return tensor.as_strided((tensor.numel(),), (1,))  # it is contiguous, but a single element may have any stride


def _bytes(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(torch.uint8)


def _host_copy(buffer: Buffer) -> Buffer:
    memory = device.host_memory(buffer.nbytes)
    return Buffer(memory.data_ptr(), buffer.dtype, buffer.shape, memory)
