"""Messages between launcher and agents: what is sent is what is read, and nonsense is a WireError."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.launch.host import orders as o
from hora.launch.host.ending import Ending
from hora.wire.frame import WireError


@pytest.mark.parametrize("message", [o.Heartbeat(), o.StartWorkers(), o.Signal(15), o.OutputTaken(9), o.EndJob()])
def test_the_launchers(message: o.FromLauncher) -> None:
    assert o.read_launcher(o.encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        o.Heartbeat(),
        o.HostReady("h1"),
        o.HostRefused("no"),
        o.Started((1, 2)),
        o.Output(3, "stdout", b"\xff\0"),
        o.WorkerEnded(Ending(1, "h", 2, -9, 0.5, False, 0.1, 9, 2, "")),
        o.HostDone(),
    ],
)
def test_the_agents(message: o.FromAgent) -> None:
    assert o.read_agent(o.encode(message)) == message


@given(st.binary(max_size=60))
def test_nonsense(payload: bytes) -> None:
    for read in (o.read_agent, o.read_launcher):
        try:
            read(payload)
        except WireError as error:
            assert "cannot be read" in str(error)
