"""What `hora doctor --gpus` runs on every worker: ``python -m hora.doctor.gpu_paths KIND``, one worker for each GPU.

Every path that data takes on GPUs is tried once, and its values are compared with what plain arithmetic says. Rank 0
prints a line for each: MARK and, as JSON, the path's name, what was tried, and what was wrong on which rank (or
nothing). A path that hangs is the one after the last line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import hora.torch as hvd
from hora.transport import device as devices

__all__ = ["MARK", "PATHS", "main"]

MARK = "hora-gpus:"
_ELEMENTS = 70_001


class Here:
    """Where a worker is: its device, its rank, and how many there are."""

    def __init__(self, kind: str) -> None:
        self.rank, self.size = hvd.rank(), hvd.size()
        self.device = devices.current(hvd.local_rank(), kind)

    def tensor(self, rank: int, count: int = _ELEMENTS, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """What a rank brings: small whole numbers, so that sums are exact in every type."""
        return ((torch.arange(count, device="cpu") + rank) % 7).to(dtype)

    def own(self, count: int = _ELEMENTS, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self.tensor(self.rank, count, dtype).to(self.device)

    def sum(self, count: int = _ELEMENTS, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        parts = [self.tensor(rank, count, torch.float64) for rank in range(self.size)]
        return torch.stack(parts).sum(0).to(dtype)


def _same(found: torch.Tensor, expected: torch.Tensor) -> None:
    there = found.cpu()
    if there.shape != expected.shape:
        raise AssertionError(f"the shape is {tuple(there.shape)}, not {tuple(expected.shape)}")
    wrong = (there != expected).reshape(-1).nonzero()
    if len(wrong):
        at = int(wrong[0])
        is_, should = there.reshape(-1)[at].item(), expected.reshape(-1)[at].item()
        raise AssertionError(f"element {at} is {is_}, not {should} ({len(wrong)} are wrong)")


def _close(found: torch.Tensor, expected: torch.Tensor, share: float) -> None:
    apart = (found.cpu().double() - expected.double()).norm() / expected.double().norm()
    if not apart <= share:
        raise AssertionError(f"it is {float(apart):.2%} away from what the CPU computes")


def placement(here: Here) -> None:
    if why := devices.why_not(here.device.type):
        raise AssertionError(why)
    names: list[str] = hvd.allgather_object(devices.identity(here.device), name="gpus.placement")
    if len(set(names)) < here.size:
        raise AssertionError(f"{here.size} workers have {len(set(names))} GPUs: {', '.join(names)}")


def sums(here: Here) -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        found = hvd.allreduce(here.own(dtype=dtype), name=f"gpus.sum.{dtype}", op=hvd.Sum)
        _same(found, here.sum(dtype=dtype))


def averages(here: Here) -> None:
    found = hvd.allreduce(here.own(), name="gpus.average", op=hvd.Average, prescale_factor=float(here.size))
    _same(found, here.sum())


def groups(here: Here) -> None:
    counts = [1, 1000, 0, _ELEMENTS]
    tensors = [here.own(count) for count in counts]
    for found, count in zip(hvd.grouped_allreduce(tensors, name="gpus.group", op=hvd.Sum), counts, strict=True):
        _same(found, here.sum(count))


def rows(here: Here) -> None:
    gathered = hvd.allgather(here.own(here.rank + 1), name="gpus.gather")
    _same(gathered, torch.cat([here.tensor(rank, rank + 1) for rank in range(here.size)]))
    _same(hvd.broadcast(here.own(), root_rank=here.size - 1, name="gpus.broadcast"), here.tensor(here.size - 1))
    exchanged: Any = hvd.alltoall(here.own(3 * here.size), name="gpus.alltoall")
    parts = [here.tensor(rank, 3 * here.size)[3 * here.rank : 3 * here.rank + 3] for rank in range(here.size)]
    _same(exchanged, torch.cat(parts))
    scattered = hvd.reducescatter(here.own(2 * here.size), name="gpus.scatter", op=hvd.Sum)
    _same(scattered, here.sum(2 * here.size)[2 * here.rank : 2 * here.rank + 2])


def through_the_host(here: Here) -> None:
    found = hvd.allreduce(here.own(dtype=torch.int16), name="gpus.int16", op=hvd.Sum)
    _same(found, here.sum(dtype=torch.int16))
    if here.size & (here.size - 1) == 0:
        same = torch.ones(1000, device=here.device)  # Adasum of equal vectors is that vector
        _close(hvd.allreduce(same, name="gpus.adasum", op=hvd.Adasum), torch.ones(1000), 1e-5)


def streams(here: Here) -> None:
    """The data is still being computed, on another stream, when it is submitted; so is the result when it is used."""
    stream = devices.stream(here.device)
    devices_ready = devices.mark(here.device)
    with devices.on(stream):
        devices.follow(devices_ready, here.device)
        busy = torch.ones(512, 512, device=here.device)
        for _ in range(20):
            busy = busy @ busy / 512
        mine = here.own() * busy[0, 0]
        handles = [hvd.allreduce_async(mine + i, name=f"gpus.stream.{i}", op=hvd.Sum) for i in range(8)]
        results = [hvd.synchronize(handle) * 2 for handle in handles]
        done = devices.mark(here.device)
    devices.follow(done, here.device)
    for i, found in enumerate(results):
        _same(found, (here.sum() + i * here.size) * 2)


def pinned(here: Here) -> None:
    source = here.tensor(here.rank).pin_memory()
    there = source.to(here.device, non_blocking=True)
    back = devices.host_memory(4 * _ELEMENTS).view(torch.float32)
    back.copy_(there * 2, non_blocking=True)
    devices.settle(devices.module_of(here.device.type).current_stream(here.device))
    _same(back, here.tensor(here.rank) * 2)


def both(here: Here) -> None:
    on_host = hvd.allreduce_async(here.tensor(here.rank), name="gpus.host", op=hvd.Sum)
    on_gpu = hvd.allreduce_async(here.own(), name="gpus.gpu", op=hvd.Sum)
    _same(hvd.synchronize(on_gpu), here.sum())
    _same(hvd.synchronize(on_host), here.sum())


def mismatch(here: Here) -> None:
    if here.size == 1:
        return
    tensor = here.own() if here.rank else here.tensor(0)
    try:
        hvd.allreduce(tensor, name="gpus.mismatch", op=hvd.Sum)
    except hvd.MismatchError:
        return
    raise AssertionError("a tensor on the host here and on a GPU there was added up")


def training(here: Here) -> None:
    """Two steps of SGD on every worker's data, against one process with all of it, on the CPU."""
    exclusive = _network()
    together = _network().to(here.device)
    plain = torch.optim.SGD(exclusive.parameters(), lr=0.1, momentum=0.9)
    shared = hvd.DistributedOptimizer(
        torch.optim.SGD(together.parameters(), lr=0.1, momentum=0.9), together.named_parameters()
    )
    hvd.broadcast_parameters(together.state_dict(), root_rank=0)
    for step in range(3):
        numbers = torch.arange(160.0, device="cpu")
        batches = [torch.sin(numbers * (rank + 1) + step).view(8, 20) for rank in range(here.size)]
        plain.zero_grad()
        exclusive(torch.cat(batches)).square().mean().backward()
        plain.step()
        shared.zero_grad()
        together(batches[here.rank].to(here.device)).square().mean().backward()
        shared.step()
    for found, expected in zip(together.parameters(), exclusive.parameters(), strict=True):
        _close(found.detach(), expected.detach(), 1e-3)


def sixteen_bits(here: Here) -> None:
    """A step under autocast leads about where one in float32 does."""
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        model = _network().to(here.device)
        batch = torch.cos(torch.arange(160.0, device="cpu")).view(8, 20).to(here.device)
        with torch.autocast(here.device.type, torch.bfloat16, enabled=dtype is torch.bfloat16):
            output = model(batch)
        output.float().square().mean().backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        found.append(torch.cat([gradient.flatten() for gradient in gradients]))
    _close(found[1], found[0].cpu(), 0.1)


def joining(here: Here) -> None:
    for step in range(here.rank + 1):
        hvd.allreduce(here.own(), name=f"gpus.join.{step}", op=hvd.Sum)
    last = hvd.join()
    if last != here.size - 1:
        raise AssertionError(f"rank {last} joined last, not {here.size - 1}")


def _network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(20, 64, device="cpu"), nn.Tanh(), nn.Linear(64, 5, device="cpu"))


Path = Callable[[Here], None]
PATHS: tuple[tuple[str, str, Path], ...] = (
    ("placement", "each worker has a GPU of its own, by its local rank", placement),
    ("sums", "allreduce of seven types, by NCCL", sums),
    ("averages", "averaged and scaled, by NCCL", averages),
    ("groups", "four tensors as one, by NCCL", groups),
    ("rows", "allgather, broadcast, alltoall, reducescatter, by NCCL", rows),
    ("host memory", "what NCCL cannot do (int16, Adasum), through pinned memory", through_the_host),
    ("streams", "data that another stream is still computing; results used at once", streams),
    ("pinned copies", "to the GPU and back without waiting", pinned),
    ("both", "a tensor of the host and one of the GPU in one job", both),
    ("mismatch", "on the host here and on a GPU there: the same error on all", mismatch),
    ("training", "three steps of DistributedOptimizer, against one process on the CPU", training),
    ("16 bits", "forward and backward in bfloat16", sixteen_bits),
    ("joining", "ranks with less data than others", joining),
)


def main(kind: str) -> None:
    hvd.init()
    here = Here(kind)
    for name, tried, path in PATHS:
        wrong, broken = "", False
        try:
            path(here)
        except Exception as error:
            wrong, broken = f"rank {here.rank}: {error}", isinstance(error, hvd.HorovodInternalError)
        if broken:  # nobody can continue: each says what it knows
            print(MARK + json.dumps({"name": name, "tried": tried, "wrong": [wrong]}), flush=True)
            sys.exit(3)
        everybody: list[str] = hvd.allgather_object(wrong, name="gpus.said")
        if here.rank == 0:
            line = {"name": name, "tried": tried, "wrong": [text for text in everybody if text]}
            print(MARK + json.dumps(line), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
