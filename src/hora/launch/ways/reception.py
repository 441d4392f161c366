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
from hora.wire.listen import listen_tcp

__all__ = ["Reception"]


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
        self._addresses = addresses.candidates(interfaces)[: 1 if len(interfaces) == 1 else None]
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self._listener, self.hub_listener = self._listen(room), self._listen(room)
        self.agent_listener = AgentListener(self._listener, self.secret, selector, room=room, silence_s=self._silence_s)
        stack.callback(self.agent_listener.close)

    def _listen(self, room: int) -> socket.socket:
        try:
            listener = listen_tcp(self._addresses if len(self._addresses) == 1 else (), room + 128)
        except OSError as error:
            raise EnvironmentUnfit(
                f"the launcher cannot listen on {', '.join(self._addresses)}: {error.strerror}. Other hosts could not "
                "reach it. Choose the interface with --network-interfaces."
            ) from error
        listener.setblocking(False)
        return self._stack.enter_context(listener)

    def order(self, shares: Iterable[o.Share], start_s: float) -> bytes:
        """What the agents of these shares are told; all of the start may take ``start_s``."""
        return feed(
            o.Bootstrap(
                addresses=self._named(self._listener),
                hub_addresses=self._named(self.hub_listener),
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

    def _named(self, listener: socket.socket) -> tuple[str, ...]:
        port = listener.getsockname()[1]
        # This machine's own agent, and a machine without a network, come by loopback.
        found = self._addresses if len(self._addresses) == 1 else (*self._addresses, "127.0.0.1")
        return tuple(addresses.join(address, port) for address in found)
