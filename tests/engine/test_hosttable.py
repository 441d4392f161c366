"""The memory of one host among several: what its workers hear if there is none."""

from __future__ import annotations

import pytest

from hora.config.settings import Settings
from hora.engine.hosttable import HostTable, open_segment
from hora.errors import EnvironmentUnfit, HorovodInternalError
from hora.transport import shm
from hora.wire.messages import Peer

PEERS = [Peer(2, 2, 1, "h2"), Peer(3, 3, 1, "h2")]


class Store:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str, timeout_s: float) -> bytes | None:
        return self.values.get(key)


def test_memory_that_cannot_be_made_is_no_riddle_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise EnvironmentUnfit("cannot make shared memory: File too large.")

    monkeypatch.setattr(shm, "create_segment", refuse)
    store = Store()
    with pytest.raises(EnvironmentUnfit, match="File too large"):
        HostTable(1, 2, PEERS, store, Settings())
    other = HostTable(1, 3, PEERS, store, Settings())
    with pytest.raises(EnvironmentUnfit, match=r"the workers of h2 cannot share memory: .*File too large"):
        other._open()


def test_memory_that_is_not_shown_in_time_is_said() -> None:
    with pytest.raises(HorovodInternalError, match=r"rank 2 .*did not share its memory in time"):
        open_segment(None, PEERS[0])
