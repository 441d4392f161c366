"""The contenders of the collective benchmarks, as they live in one worker process.

A contender turns a list of tensor shapes into a ``TimedTask``: buffers, and a call that sums them over all ranks in
place, the way a user of that library would write it. One shape is a single blocking call. Several shapes are a training
step's gradients: submitted asynchronously, then waited for, and by Hora in a different order on every rank, which the
others do not allow.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Mapping
from datetime import timedelta
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy
import torch

import hora.torch as hvd
from hora.engine import session
from hora.errors import EnvironmentUnfit
from hora.transport import device

__all__ = ["Contender", "TimedTask", "make"]

Shapes = Mapping[str, tuple[int, ...]]
ORDERS = 8  # how many different orders of submission a rank goes through


class TimedTask(NamedTuple):
    """Something to time. ``sums`` is False where the call only moves bytes, so there is no sum to check."""

    buffers: list[torch.Tensor]
    call: Callable[[], object]
    sums: bool = True


class Contender(Protocol):
    """One library."""

    version: str

    def task(self, shapes: Shapes, seed: int) -> TimedTask:
        """Buffers for these shapes and the call that sums them."""

    def close(self) -> None:
        """Leave the library as tidily as it allows."""


class HoraContender:
    """This library, on tensors that torch allocated."""

    def __init__(self) -> None:
        from hora import __version__

        self.version = __version__

    def allocate(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32)

    def task(self, shapes: Shapes, seed: int) -> TimedTask:
        tensors = {f"{type(self).__name__}.{name}": self.allocate(shape) for name, shape in shapes.items()}
        buffers = list(tensors.values())
        if len(tensors) == 1:
            [(name, tensor)] = tensors.items()
            return TimedTask(buffers, lambda: hvd.allreduce_(tensor, name=name, op=hvd.Sum))

        orders = itertools.cycle(_orders(list(tensors.items()), seed * 1000 + hvd.rank()))

        def step() -> None:
            handles = [hvd.allreduce_async_(tensor, name=name, op=hvd.Sum) for name, tensor in next(orders)]
            for handle in handles:
                hvd.synchronize(handle)

        return TimedTask(buffers, step)

    def close(self) -> None:
        """The worker shuts Hora down itself, last: the other contenders are started and stopped under it."""


class HoraSharedContender(HoraContender):
    """This library, on tensors that it allocated in shared memory: nothing is copied."""

    def __init__(self) -> None:
        super().__init__()
        if not session.engine().backend.shares_memory:
            raise EnvironmentUnfit("the workers do not share memory, so it would be the same as Hora")

    def allocate(self, shape: tuple[int, ...]) -> torch.Tensor:
        return hvd.shared_empty(*shape, dtype=torch.float32)


class HoraBf16Contender(HoraContender):
    """This library with its half-size compression: a gain where a network is the limit."""

    def task(self, shapes: Shapes, seed: int) -> TimedTask:
        tensors = {f"bf16.{name}": self.allocate(shape) for name, shape in shapes.items()}

        def step() -> None:
            for name, tensor in tensors.items():
                tensor.data = hvd.allreduce(tensor, name=name, op=hvd.Sum, compression=hvd.Compression.bf16)

        return TimedTask(list(tensors.values()), step)


def _orders(items: list[tuple[str, torch.Tensor]], seed: int) -> list[list[tuple[str, torch.Tensor]]]:
    generator = torch.Generator().manual_seed(seed)
    return [[items[i] for i in torch.randperm(len(items), generator=generator).tolist()] for _ in range(ORDERS)]


def _at_once(shapes: Shapes, begin: Callable[[torch.Tensor], Any]) -> TimedTask:
    """All tensors begun one after the other, then all waited for: as torch.distributed's groups have it."""
    buffers = [torch.empty(shape, dtype=torch.float32) for shape in shapes.values()]

    def step() -> None:
        works = [begin(tensor) for tensor in buffers]
        for work in works:
            work.wait()

    return TimedTask(buffers, step)


class GlooContender:
    """torch.distributed's Gloo, in a process group of its own, over the interface by which the workers met."""

    def __init__(self, folder: Path, timeout_s: float) -> None:
        import torch.distributed

        self.version = f"of torch {torch.__version__}"
        dist: Any = torch.distributed
        gloo = dist.ProcessGroupGloo
        options = gloo._Options()
        address = session.engine().peers[hvd.rank()].address
        options._devices = [gloo.create_device(hostname=address or "127.0.0.1")]
        options._timeout = timedelta(seconds=timeout_s)
        store = dist.FileStore(str(folder / "gloo-store"), hvd.size())
        self.group = gloo(store, hvd.rank(), hvd.size(), options)

    def task(self, shapes: Shapes, seed: int) -> TimedTask:
        return _at_once(shapes, self.group.allreduce)

    def close(self) -> None:
        """The group ends with the process."""


class Nccl:
    """torch.distributed's NCCL, in a process group of its own, on the device that is the default."""

    def __init__(self, folder: Path, timeout_s: float) -> None:
        import torch.distributed

        dist: Any = torch.distributed
        kind = torch.get_default_device().type
        if reason := device.why_not(kind):
            raise EnvironmentUnfit(reason)
        self.version, self._options = f"of torch {torch.__version__}", dist.AllreduceOptions
        store = dist.FileStore(str(folder / "nccl-store"), hvd.size())
        self.group = device.group(kind, store, hvd.rank(), hvd.size(), timeout_s, "")

    def task(self, shapes: Shapes, seed: int) -> TimedTask:
        return _at_once(shapes, lambda tensor: self.group.allreduce([tensor], self._options()))

    def close(self) -> None:
        device.abort(self.group)


class MpiContender:
    """mpi4py over the MPI that started this process. A list of gradients is one flat buffer: MPI cannot fuse."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.MPI = MPI
        name, numbers = MPI.get_vendor()
        self.version = f"{name} {'.'.join(map(str, numbers))}"
        world = (MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())
        assert world == (hvd.rank(), hvd.size()), f"MPI's world is {world}, Hora's is {(hvd.rank(), hvd.size())}"

    def task(self, shapes: Shapes, seed: int) -> TimedTask:
        flat = torch.empty(sum(prod(shape) for shape in shapes.values()), dtype=torch.float32)
        array = [flat.numpy(), self.MPI.FLOAT]
        reduce_, in_place = self.MPI.COMM_WORLD.Allreduce, self.MPI.IN_PLACE
        return TimedTask([flat], lambda: reduce_(in_place, array))

    def close(self) -> None:
        """MPI is finalised when the process ends."""


class MemcpyContender:
    """One copy of the same bytes by every process at once: what the memory of this machine allows."""

    version = "libc"

    def task(self, shapes: Shapes, seed: int) -> TimedTask:
        count = sum(prod(shape) for shape in shapes.values())
        source, target = (torch.from_numpy(numpy.ones(count, dtype=numpy.float32)) for _ in range(2))
        copy = ctypes.memmove
        to, where, size = target.data_ptr(), source.data_ptr(), 4 * count
        return TimedTask([source, target], lambda: copy(to, where, size), sums=False)

    def close(self) -> None:
        """Nothing to close."""


def make(key: str, folder: Path, timeout_s: float) -> Contender:
    """The contender of that name, started; all ranks must make theirs in the same order."""
    match key:
        case "hora" | "hora_ucx":  # the same calls: what differs is HORA_TRANSPORT
            return HoraContender()
        case "hora_shared":
            return HoraSharedContender()
        case "hora_bf16":
            return HoraBf16Contender()
        case "gloo":
            return GlooContender(folder, timeout_s)
        case "nccl":
            return Nccl(folder, timeout_s)
        case "mpi":
            return MpiContender()
        case "memcpy":
            return MemcpyContender()
        case _:
            raise ValueError(f"no contender is called {key!r}")
