"""Who averages the gradients of all workers: Hora, or PyTorch's own ``DistributedDataParallel``, to compare the two.

A loop calls ``distributed`` once for each network and its optimizer, and uses what it returns; all else (data,
seeds, schedules, validation, records, checkpoints) is the same, so that two runs differ in nothing but this, and a
checkpoint of one continues as the other.

DDP runs over NCCL on GPUs and over Gloo elsewhere, with its faster options: gradients are views of its buckets, and
buffers are not broadcast, which would also give all workers the first one's statistics of batch normalisation. Its
ranks find each other through a store of torch's on the first one, which, like Gloo and NCCL, asks nobody for a secret.
"""

from __future__ import annotations

import contextlib
import socket
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import hora.torch as hvd
from hora.config import env
from hora.engine import session
from hora.errors import EnvironmentUnfit
from hora.ops.objects import allgather_object, broadcast_object
from hora.wire import addresses
from hora.workloads.options import WorkloadOptions

__all__ = ["Distributed", "distributed", "leave"]

_LONGEST_WAIT_S = 300.0  # for a worker that compiles, loads or saves while others wait in DDP


class Distributed(NamedTuple):
    """A network whose gradients are averaged. ``forward`` is for training; the model itself is for everything else."""

    forward: Callable[..., Any]
    optimizer: Any
    rest: Callable[[bool], None]  # train on this worker's own gradients, or keep averaging


def distributed(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    options: WorkloadOptions,
    *,
    passes: int = 1,
    compression: Any = hvd.Compression.none,
    prefix: str = "",
) -> Distributed:
    """Make a network one of all workers', as ``options.strategy`` says. All ranks call it together.

    Args:
        passes: Backward passes of this process in a step.
        compression: What ``DistributedOptimizer`` takes; DDP has none.
        prefix: Of the parameters' names, where there are several networks.
    """
    if options.strategy == "ddp":
        return _by_ddp(model, optimizer, passes)
    if options.logical_workers:  # their gradients are summed in their order: ``workloads.workers``
        hvd.broadcast_parameters(model.state_dict(prefix=f"{prefix}." if prefix else ""), root_rank=0)
        return Distributed(model, optimizer, lambda resting: None)
    averaging = hvd.DistributedOptimizer(  # Hora 2: gradients are averaged over the workers
        optimizer, model.named_parameters(prefix=prefix), compression, backward_passes_per_step=passes
    )
    hvd.broadcast_parameters(model.state_dict(prefix=f"{prefix}." if prefix else ""), root_rank=0)  # Hora 3
    hvd.broadcast_optimizer_state(averaging, root_rank=0)  # Hora 4
    return Distributed(model, averaging, averaging.rest)


def leave() -> None:
    """Close what DDP has opened; nothing if it has not."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


# ---- DDP ----


def _by_ddp(model: nn.Module, optimizer: torch.optim.Optimizer, passes: int) -> Distributed:
    device = next(model.parameters()).device
    _join(device)
    with warnings.catch_warnings():  # newer releases rename the option
        warnings.simplefilter("ignore", FutureWarning)
        wrapped = nn.parallel.DistributedDataParallel(  # which also broadcasts the first rank's weights
            model,
            device_ids=None if device.type == "cpu" else [device],
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )
    averaged = _Averaged(wrapped, passes)
    return Distributed(averaged, optimizer, averaged.rest)


class _Averaged:
    """DDP's module, told at each forward pass whether its gradients are to be averaged: at the last one of a step."""

    def __init__(self, wrapped: nn.parallel.DistributedDataParallel, passes: int) -> None:
        self._wrapped, self._passes = wrapped, passes
        self._done, self._resting = 0, False

    def rest(self, resting: bool) -> None:
        self._resting, self._done = resting, 0

    def __call__(self, *arguments: Any) -> Any:
        if torch.is_grad_enabled():
            self._done += 1
            last, self._done = self._done == self._passes, self._done % self._passes
            self._wrapped.require_backward_grad_sync = last and not self._resting
        return self._wrapped(*arguments)


def _join(device: torch.device) -> None:
    """Make torch's process group of all ranks, unless there is one: over the addresses by which they reach rank 0."""
    if dist.is_initialized():
        return
    rank, size, longest_wait = session.rank(), session.size(), timedelta(seconds=_LONGEST_WAIT_S)
    store: Any = None
    own: Mapping[str, Any] = {}
    if rank == 0:
        store = dist.TCPStore("0.0.0.0", 0, None, True, longest_wait, False)  # type: ignore[attr-defined]
        own = {"host": socket.gethostname(), "port": store.port, "addresses": addresses.candidates()}
    first: Mapping[str, Any] = broadcast_object(own, root_rank=0, name="hora.ddp")
    here = session.engine().world.cross_rank == 0
    address, mine = ("127.0.0.1", "127.0.0.1") if here else _reach(first["addresses"], first["port"])
    ways: list[tuple[str, str]] = allgather_object((address, mine), name="hora.ddp.ways")
    if (
        session.engine().world.cross_size > 1 and here
    ):  # others reach this host by the address that the first of them has found
        mine = next(there for there, _ in ways if there != "127.0.0.1")
    if any(not there for there, _ in ways):
        lost = [number for number, (there, _) in enumerate(ways) if not there]
        raise EnvironmentUnfit(
            f"--strategy ddp: rank{'s'[: len(lost) > 1]} {', '.join(map(str, lost))} cannot reach rank 0 on "
            f"{first['host']} at any of {', '.join(first['addresses'])}, port {first['port']}. DDP's ranks connect to "
            "each other at ports that the system chooses. Open them between the hosts, or train with --strategy hora."
        )
    if store is None:
        store = dist.TCPStore(address, first["port"], None, False, longest_wait, False)  # type: ignore[attr-defined]
    if interface := addresses.interface_of(mine):
        env.default("GLOO_SOCKET_IFNAME", interface)
        env.default("NCCL_SOCKET_IFNAME", interface)  # which NCCL reads when the first data is moved
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=size, timeout=longest_wait
    )


def _reach(candidates: tuple[str, ...], port: int) -> tuple[str, str]:
    """The first of these addresses that answers, and this host's own on the way there; two empty ones if none does."""
    for address in candidates:
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=5.0) as connection:
            return address, str(connection.getsockname()[0])
    return "", ""
