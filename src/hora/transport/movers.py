"""Which mover a job uses between processes, by its name."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hora.config.settings import Settings
from hora.errors import EnvironmentUnfit
from hora.transport.base import KeyValue, Mover, StartingMover
from hora.wire import addresses
from hora.wire.messages import Peer

__all__ = ["device_kind", "finish", "make_mover", "with_gpus"]


def make_mover(kind: str, rank: int, peers: Sequence[Peer], store: KeyValue, settings: Settings) -> StartingMover:
    """The mover of this rank, one of ``peers`` (all ranks of the generation, in rank order).

    ``kind`` is "gloo" or "mpi". Cheap: ranks connect when they first move data, each set of ranks for itself, so that
    any part of the peers (the leaders of the hosts, say) can use it without the others taking notice. ``store`` is one
    that all peers share; Gloo finds its ranks through it. Raises EnvironmentUnfit where this process cannot use it.

    >>> make_mover("pigeon", 0, (), None, Settings())
    Traceback (most recent call last):
    ValueError: there is no mover called 'pigeon'
    """
    match kind:
        case "gloo":
            try:
                from hora.transport.gloo import GlooMover  # imports torch, which those who use another need not have
            except ImportError as reason:
                raise EnvironmentUnfit(
                    f"Gloo is to carry data between these workers, and it comes with PyTorch, which cannot be imported"
                    f" ({reason}). Only workers of one host, with Hora's C core, do without. Install torch on every"
                    " host, or start the job with mpirun: hora run --on mpi."
                ) from reason

            address, interface = peers[rank].address, settings.gloo_iface
            return GlooMover(rank, store, address=address, interface=interface, timeout_s=settings.gloo_timeout_s)
        case "mpi":
            from hora.transport.mpi import MpiMover

            return MpiMover(rank, [peer.launched_rank for peer in peers], timeout_s=settings.gloo_timeout_s)
    raise ValueError(f"there is no mover called {kind!r}")


def device_kind() -> str:
    """The kind of device, such as "cuda", whose tensors can be moved as they are; empty if this process has none, or
    has not loaded torch."""
    if sys.modules.get("torch") is None:
        return ""
    from hora.transport import device

    return device.kind()


def with_gpus(host: Mover, rank: int, peers: Sequence[Peer], store: KeyValue, settings: Settings) -> Mover:
    """The mover, and in front of it NCCL for what lies on GPUs; the mover itself where there are none."""
    if not device_kind():
        return host
    from hora.transport.nccl import NcclMover

    longest_wait_s = (
        settings.stall_fail_s or 86400.0
    )  # that long an operation may wait on the GPU for what makes its data
    interface = settings.gloo_iface
    if not interface and len({peer.host for peer in peers}) > 1:  # the one by which the others reach this host
        interface = addresses.interface_of(peers[rank].address)
    return NcclMover(rank, host, store, timeout_s=longest_wait_s, meet_s=settings.gloo_timeout_s, interface=interface)


def finish() -> None:
    """Let go of what outlives a generation (MPI): at the very end of the process, after Hora was shut down."""
    if (mpi := sys.modules.get("hora.transport.mpi")) is not None:
        mpi.finish()
