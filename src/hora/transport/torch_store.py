"""The hub's store as a ``torch.distributed.Store``, so that process groups find each other through it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hora.errors import HorovodInternalError
from hora.transport.base import KeyValue

__all__ = ["TorchStore"]


class TorchStore(dist.Store):  # type: ignore[name-defined,misc]  # torch's stubs leave it out
    """A :class:`KeyValue` under a prefix, for the calls that a process group makes.

    A group that calls it later than from its constructor (NCCL's does) needs it kept alive.
    """

    def __init__(self, store: KeyValue, prefix: str, timeout_s: float) -> None:
        super().__init__()
        self._store, self._prefix, self._timeout_s = store, prefix, timeout_s
        self._known: set[str] = set()

    def clone(self) -> TorchStore:
        return self

    def check(self, keys: list[str]) -> bool:
        """Whether these are set, as far as known here.

        NCCL's monitor asks every second whether some rank is in trouble. That the hub tells, so nobody is asked.
        """
        return self._known.issuperset(keys)

    def set(self, key: str, value: Any) -> None:
        self._known.add(key)
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
        self._known.add(key)
        return value
