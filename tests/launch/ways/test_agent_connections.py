"""The launcher's listener for agents: who is let in while strangers connect."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator

import pytest

from hora.launch.host import orders as o
from hora.launch.ways.agent_connections import AgentListener
from hora.wire.frame import Channel, WireClosed
from hora.wire.listen import listen_tcp

SECRET = b"k" * 32
ROOM = 4


@pytest.fixture
def agents() -> Iterator[tuple[AgentListener, tuple[str, int]]]:
    listener = listen_tcp(["127.0.0.1"])
    listener.setblocking(False)
    with selectors.DefaultSelector() as selector:
        agents = AgentListener([listener], SECRET, selector, room=ROOM, silence_s=10.0)
        yield agents, listener.getsockname()
        agents.close()
    listener.close()


def newcomers(agents: AgentListener) -> list[str]:
    """The hosts of the next who come, within a deadline."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if found := agents.newcomers():
            for _, newcomer in found:
                newcomer.close()
            return [host for host, _ in found]
    return []


def test_idle_connections_do_not_keep_an_agent_out(agents: tuple[AgentListener, tuple[str, int]]) -> None:
    idle = [socket.create_connection(agents[1], 5) for _ in range(ROOM + 2)]
    try:
        assert agents[0].newcomers() == []
        agent = Channel(socket.create_connection(agents[1], 5), SECRET, "worker")
        assert agents[0].newcomers() == []  # greets it
        agent.prove(timeout_s=5)
        agent.send(o.encode(o.HostReady("h1")), timeout_s=5)
        assert newcomers(agents[0]) == ["h1"]
        agent.close()
    finally:
        for sock in idle:
            sock.close()


def test_one_who_is_gone_before_it_is_greeted_is_nobody(
    agents: tuple[AgentListener, tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object) -> bool:
        raise WireClosed("the connection broke while writing: Connection reset by peer")

    with monkeypatch.context() as patched:
        patched.setattr("hora.wire.frame.Endpoint.write", broken)
        with socket.create_connection(agents[1], 5):
            assert agents[0].newcomers() == []
    assert not agents[0]._unidentified
