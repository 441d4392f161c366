"""Where other hosts reach the launcher: the sockets that its agents and its hub are connected to, and the order that
tells an agent where they are."""

from __future__ import annotations

import secrets
import selectors
import socket
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from hora.config import env
from hora.errors import EnvironmentUnfit
from hora.launch.host import orders as o
from hora.launch.host.agent import feed
from hora.launch.job import Job
from hora.launch.starters.starter import Starter
from hora.launch.ways.agent_connections import AgentListener
from hora.wire import addresses
from hora.wire.frame import SECRET_BYTES
from hora.wire.listen import ip_of, listen_on

__all__ = ["Reception", "named"]


class Reception:
    """The listening sockets of one job, closed with ``stack``; ``room`` connections may wait to be identified."""

    def __init__(
        self,
        job: Job,
        starter: Starter,
        interfaces: Sequence[str],
        selector: selectors.BaseSelector,
        stack: ExitStack,
        *,
        room: int,
    ) -> None:
        self._job, self._starter, self._stack = job, starter, stack
        self._silence_s = env.settings(job.environment).host_timeout_s
        found = addresses.candidates(interfaces)[: 1 if len(interfaces) == 1 else None]
        # This machine's own agent, and a machine without a network, come by loopback.
        self._addresses = found if len(found) == 1 else (*found, "127.0.0.1")
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self._listeners, self.hub_listeners = self._listen(room), self._listen(room)
        self.agent_listener = AgentListener(
            self._listeners, self.secret, selector, room=room, silence_s=self._silence_s
        )
        stack.callback(self.agent_listener.close)

    def _listen(self, room: int) -> list[socket.socket]:
        try:
            listeners = listen_on(self._addresses, room + 128)
        except OSError as error:
            raise EnvironmentUnfit(
                f"the launcher cannot listen on {', '.join(self._addresses)}: {error.strerror}. Other hosts could not "
                "reach it. Choose the interface with --network-interfaces."
            ) from error
        for listener in listeners:
            listener.setblocking(False)
            self._stack.enter_context(listener)
        return listeners

    def order(self, shares: Iterable[o.Share], start_s: float) -> bytes:
        """What the agents of these shares are told; all of the start may take ``start_s``."""
        return feed(
            o.Bootstrap(
                addresses=named(self._listeners),
                hub_addresses=named(self.hub_listeners),
                secret=self.secret,
                shares=tuple(shares),
                command=self._job.command,
                environment=self._starter.environment(self._job.environment),
                directory=str(Path.cwd()),
                call=self._job.call,
                threads_per_worker=self._job.threads_per_worker,
                bind=self._job.bind,
                connect_s=max(1.0, min(10.0, start_s / 2)),
                silence_s=self._silence_s,
            )
        )


def named(listeners: Sequence[socket.socket]) -> tuple[str, ...]:
    """Where these listen, as others are told."""
    names = [listener.getsockname() for listener in listeners]
    return tuple(addresses.join(ip_of(name), name[1]) for name in names)
