"""NCCL, played: a process group with the calls of torch's ``ProcessGroupNCCL``, which a torch for CPUs does not have.

As torch's, it makes its communicator with the first operation (the first rank puts an id into the store, the others
fetch it), works on a stream of its own that waits for the caller's, and returns a ``Work`` whose ``wait`` makes the
caller's stream wait; the host waits for nothing. What NCCL would do is recorded under its names, ``ncclGroupStart`` and
all. The data itself goes over Gloo. It checks what NCCL needs: one device, its own for each rank, contiguous tensors on
it, types that it has, and the same call on every rank, with the same size; NCCL would hang where this raises.

``install`` puts it where ``hora.transport.device`` looks for it, for the stand-in device.
"""

from __future__ import annotations

import enum
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from tests import device as standin

from hora.transport import device

__all__ = ["ProcessGroupNCCL", "groups", "install", "recorded"]

_TYPES = (
    torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
)  # fmt: skip
_TIMEOUT_S = 20.0

groups: list[ProcessGroupNCCL] = []
recorded: list[str] = []  # of all groups of this process


class Error(enum.Enum):
    SUCCESS = 0
    COMM_ERROR = 2


class Work:
    """An operation that was queued; ``end`` is the event after which it is done."""

    def __init__(self, end: torch.Event, where: torch.device) -> None:
        self._end, self._where = end, where

    def wait(self) -> bool:
        torch.accelerator.current_stream(self._where).wait_event(self._end)
        return True


class ProcessGroupNCCL:
    class Options:
        _timeout = timedelta(minutes=10)

    def __init__(self, store: Any, rank: int, size: int, options: Options) -> None:
        assert isinstance(options, ProcessGroupNCCL.Options) and options._timeout.total_seconds() > 0
        assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "2"  # else torch ends the process on an error
        assert store.check(["never set"]) is False  # torch's monitor asks
        self._store, self._rank, self._size = store, rank, size
        self._where: torch.device | None = None
        self.interface = os.environ.get("NCCL_SOCKET_IFNAME", "")
        self.failure = ""  # to be set by a test: what goes wrong in the background
        self.aborted = False
        groups.append(self)

    # ---- the calls ----

    def allreduce(self, tensors: list[torch.Tensor], options: dist.AllreduceOptions) -> Work:
        [tensor] = tensors
        return self._do("ncclAllReduce", [tensor], [tensor], _name(options.reduceOp), lambda host, _: (
            self._gloo.allreduce([host[0]], options).wait(), host)[1])  # fmt: skip

    def broadcast(self, tensors: list[torch.Tensor], options: dist.BroadcastOptions) -> Work:
        [tensor] = tensors
        assert options.rootTensor == 0
        return self._do("ncclBroadcast", [tensor], [tensor], str(options.rootRank), lambda host, _: (
            self._gloo.broadcast([host[0]], options).wait(), host)[1])  # fmt: skip

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor) -> Work:
        assert output.numel() == input.numel() * self._size and output.dtype == input.dtype

        def move(host: list[torch.Tensor], into: list[torch.Tensor]) -> list[torch.Tensor]:
            self._gloo._allgather_base(into[0], host[0]).wait()
            return into

        return self._do("ncclAllGather", [input], [output], "", move)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, options: Any) -> Work:
        assert input.dim() == 1 and input.numel() == output.numel() * self._size
        sum_up = dist.AllreduceOptions()
        sum_up.reduceOp = options.reduceOp

        def move(host: list[torch.Tensor], into: list[torch.Tensor]) -> list[torch.Tensor]:
            self._gloo.allreduce([host[0]], sum_up).wait()  # Gloo has no other for every type
            return [host[0].view(self._size, -1)[self._rank]]

        return self._do("ncclReduceScatter", [input], [output], _name(options.reduceOp), move)

    def alltoall_base(
        self, output: torch.Tensor, input: torch.Tensor, received: list[int], sent: list[int], options: Any
    ) -> Work:
        assert (sum(received), sum(sent)) == (output.numel(), input.numel())
        assert isinstance(options, dist.AllToAllOptions)

        def move(host: list[torch.Tensor], into: list[torch.Tensor]) -> list[torch.Tensor]:
            recorded.append("ncclGroupStart")
            recorded.extend(f"ncclSend to {peer}" for peer, count in enumerate(sent) if count)
            recorded.extend(f"ncclRecv from {peer}" for peer, count in enumerate(received) if count)
            self._gloo.alltoall_base(into[0], host[0], received, sent, options).wait()
            recorded.append("ncclGroupEnd")
            return into

        return self._do("alltoall", [input], [output], "", move, same_size=False)

    def get_error(self) -> Error:
        return Error.COMM_ERROR if self.failure else Error.SUCCESS

    def abort(self) -> None:
        self.aborted = True
        recorded.append("ncclCommAbort")

    # ---- how they are carried out ----

    def _do(
        self,
        what: str,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        detail: str,
        move: Callable[[list[torch.Tensor], list[torch.Tensor]], list[torch.Tensor]],
        same_size: bool = True,
    ) -> Work:
        if self.aborted:
            raise RuntimeError("NCCL communicator was aborted")
        for tensor in (*inputs, *outputs):
            assert tensor.device.type == standin.KIND, f"{what} of a tensor on {tensor.device}"
            assert tensor.is_contiguous(), f"{what} of a tensor that is not contiguous"
            assert tensor.dtype in _TYPES, f"{what} of {tensor.dtype}"
        where = inputs[0].device
        self._connect(where)
        assert where == self._where, f"one communicator with {self._where} and {where}"
        size = inputs[0].numel() if same_size else 0
        self._compare(f"{what} {size} {inputs[0].dtype} {detail}")
        if what.startswith("nccl"):
            recorded.append(what)
        before = torch.Event()
        before.record(torch.accelerator.current_stream(where))
        self._stream.wait_event(before)
        with torch.no_grad(), torch.standin.stream(self._stream):
            host = [tensor.cpu() for tensor in inputs]
            into = [torch.empty_like(tensor, device="cpu") for tensor in outputs]
            for tensor, result in zip(outputs, move(host, into), strict=True):
                tensor.copy_(result.view_as(tensor), non_blocking=True)
            for tensor in (*inputs, *outputs):
                tensor.record_stream(self._stream)
        end = torch.Event()
        end.record(self._stream)
        return Work(end, where)

    def _connect(self, where: torch.device) -> None:
        """The communicator, with the first operation."""
        if self._where is not None:
            return
        if self._rank == 0:
            recorded.append("ncclGetUniqueId")
            self._store.set("0", b"the id")
        assert self._store.get("0") == b"the id"
        recorded.append(f"ncclCommInitRank {self._rank} of {self._size}")
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        over = {"interface": self.interface} if self.interface in _interfaces() else {"hostname": "127.0.0.1"}
        options._devices = [dist.ProcessGroupGloo.create_device(**over)]
        options._timeout = timedelta(seconds=_TIMEOUT_S)
        self._gloo = dist.ProcessGroupGloo(self._store, self._rank, self._size, options)
        self._stream = torch.Stream(where)
        self._where = where
        names = self._everybody_says(device.identity(where))
        assert len(set(names)) == self._size, f"Duplicate GPU detected: {names}"

    def _compare(self, call: str) -> None:
        said = self._everybody_says(call)
        assert len(set(said)) == 1, f"ranks call NCCL differently: {said}"

    def _everybody_says(self, text: str) -> list[str]:
        mine = torch.zeros(128, dtype=torch.uint8, device="cpu")
        letters = text.encode()[:128]
        mine[: len(letters)] = torch.tensor(list(letters), dtype=torch.uint8, device="cpu")
        everything = torch.zeros(128 * self._size, dtype=torch.uint8, device="cpu")
        self._gloo._allgather_base(everything, mine).wait()
        return [bytes(row.tolist()).rstrip(b"\0").decode() for row in everything.view(self._size, -1)]


def _interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def _name(op: Any) -> str:
    return next(name for name in ("SUM", "MIN", "MAX", "PRODUCT") if op == getattr(dist.ReduceOp, name))


def install() -> None:
    """The stand-in device and its NCCL, for this process."""
    standin.load()
    dist.ProcessGroupStandin = ProcessGroupNCCL  # type: ignore[attr-defined]
    device.LIBRARIES[standin.KIND] = "ProcessGroupStandin"
