"""Gloo as a mover: torch's process groups, built directly, so that the user's default process group is never touched.

There is one process group for each set of ranks, made when the set first needs it. The ranks find each other through
the hub's authenticated store and connect at ``address``, by which the others reach this host, or over ``interface``.
Gloo's own connections are not authenticated.

After a failure a group is never used, waited for or destroyed again: Gloo may still write into its buffers, and tearing
it down in that state can abort the process.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from hora.errors import EnvironmentUnfit, HorovodInternalError
from hora.transport.arithmetic import Array
from hora.transport.base import Finish, KeyValue
from hora.transport.exchange import SMALL_BYTES, ExchangeMover, done
from hora.transport.scratch import Scratch
from hora.transport.torch_store import TorchStore

__all__ = ["GlooMover"]

_abandoned: list[object] = []  # groups that failed, and the memory they may still touch, to the end of the process


class GlooMover(ExchangeMover):
    """Moves bytes through Gloo, over one address or one interface of this host (``interface`` beats ``address``)."""

    def __init__(
        self, rank: int, store: KeyValue, *, address: str = "", interface: str = "", timeout_s: float = 30.0
    ) -> None:
        super().__init__(rank)
        self._store, self._timeout_s = store, timeout_s
        where = {"interface": interface} if interface else {"hostname": address or "127.0.0.1"}
        try:
            self._device = dist.ProcessGroupGloo.create_device(**where)
        except RuntimeError as error:
            raise EnvironmentUnfit(
                f"Gloo cannot listen at {interface or address or '127.0.0.1'} on this host ({_short(error)}). The other"
                " ranks would not reach this one. Name a network interface that exists on every host with"
                " HORA_GLOO_IFACE or hora run --network-interfaces."
            ) from error
        self._groups: dict[tuple[int, ...], Any] = {}
        self._failed = self._closed = False
        self._under_way: list[Any] = []  # inside Gloo right now; it keeps their memory

    def abort(self, reason: str) -> None:
        """Nothing: Gloo notices closed connections by itself, and otherwise its timeout ends what it does."""

    def close(self) -> None:
        if self._failed or self._under_way:
            _abandoned.append((self._groups, self._device, self._scratch, self._under_way))
        self._groups, self._scratch, self._closed = {}, Scratch(), True

    def _exchange(
        self, source: Array, sent: list[int], target: Array, received: list[int], ranks: tuple[int, ...]
    ) -> None:
        if len(ranks) == 1:
            target[:] = source
            return
        options = dist.AllToAllOptions()
        self._begin(self._group(ranks).alltoall_base(_tensor(target), _tensor(source), received, sent, options))()

    def _start_gather(self, source: Array, target: Array, sizes: list[int], ranks: tuple[int, ...]) -> Finish:
        largest, total = max(sizes), sum(sizes)
        if total == 0:
            return done
        if len(ranks) == 1:
            target[:] = source
        elif min(sizes) == largest:
            return self._begin(self._group(ranks)._allgather_base(_tensor(target), _tensor(source)))
        elif largest * len(ranks) <= 2 * total + SMALL_BYTES:  # Gloo wants equal parts: pad them
            padded = self._scratch.take("padded", largest * (len(ranks) + 1)).reshape(len(ranks) + 1, largest)
            padded[-1, : source.size] = source
            self._begin(self._group(ranks)._allgather_base(_tensor(padded[:-1].reshape(-1)), _tensor(padded[-1])))()
            np.concatenate([row[:size] for row, size in zip(padded, sizes, strict=False)], out=target)
        else:  # too uneven for that: one broadcast a rank
            self._gather_by_broadcasts(source, target, sizes, ranks)
        return done

    def _broadcast(self, target: Array, position: int, ranks: tuple[int, ...]) -> None:
        if len(ranks) == 1 or target.size == 0:
            return
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = position, 0
        self._begin(self._group(ranks).broadcast([_tensor(target)], options))()

    def _group(self, ranks: tuple[int, ...]) -> Any:
        if self._closed or self._failed:
            raise HorovodInternalError("Gloo can no longer move data: it was closed, or failed before")
        if ranks not in self._groups:
            options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._devices = [self._device]
            options._timeout = timedelta(seconds=self._timeout_s)
            store = TorchStore(self._store, f"gloo/{'.'.join(map(str, ranks))}/", self._timeout_s)
            try:
                group = dist.ProcessGroupGloo(store, ranks.index(self._rank), len(ranks), options)
            except Exception as error:
                self._failed = True
                raise HorovodInternalError(f"Gloo could not connect {len(ranks)} ranks: {error}") from error
            self._groups[ranks] = group
        return self._groups[ranks]

    def _begin(self, work: Any) -> Finish:
        self._under_way.append(work)
        return partial(self._finish, work)

    def _finish(self, work: Any) -> None:
        try:
            work.wait()
            self._under_way.remove(work)
        except RuntimeError as error:
            self._failed = True
            raise HorovodInternalError(f"Gloo could not move data: {_short(error)}") from error


def _short(error: Exception) -> str:
    """What Gloo said, without where in its source it said so and what it guesses."""
    return str(error).partition("This is typically")[0].rpartition("] ")[2].strip().rstrip(".")


def _tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(array)
