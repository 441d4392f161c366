"""The launcher's end of the connections to its agents: who connects, who is accepted, and what is sent."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Callable, Sequence

from hora.launch.host import orders as o
from hora.launch.host.agent import WINDOW_BYTES
from hora.launch.job_output import JobOutput
from hora.wire.frame import Endpoint, WireClosed, WireError
from hora.wire.listen import ip_of, tune_tcp

__all__ = ["AgentConnection", "AgentListener", "UnidentifiedAgent", "Wake"]

_HANDSHAKE_S = 10.0


class UnidentifiedAgent:
    """A connection whose host is not known yet."""

    def __init__(self, sock: socket.socket, secret: bytes) -> None:
        self.address = ip_of(sock.getpeername())
        self.endpoint = Endpoint(sock, secret, "hub")
        self.since = time.monotonic()
        self.rest: list[bytes] = []
        self.endpoint.write()  # the greeting

    def fileno(self) -> int:
        return self.endpoint.fileno()

    def host(self) -> str | None:
        """The host, once it is known; raises WireError if it is not one of the job's."""
        payloads = self.endpoint.read()
        self.endpoint.write()
        if self.endpoint.ended:
            raise WireClosed("it hung up")
        if not payloads:
            return None
        message, self.rest = o.read_agent(payloads[0]), payloads[1:]
        if not isinstance(message, o.HostReady):
            raise WireError(f"it began with {type(message).__name__}")
        return message.host

    def close(self) -> None:
        self.endpoint.close()


class AgentListener:
    """Accepts agents: a connection stays here until it has authenticated and named its host."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        secret: bytes,
        selector: selectors.BaseSelector,
        *,
        room: int,
        silence_s: float,
    ) -> None:
        self._listeners, self._secret, self._selector = listeners, secret, selector
        self._room, self._silence_s = room, silence_s
        self._unidentified: set[UnidentifiedAgent] = set()
        for listener in listeners:
            selector.register(listener, selectors.EVENT_READ)

    def newcomers(self) -> list[tuple[str, UnidentifiedAgent]]:
        """New connections that have named their host, with the host."""
        for listener in self._listeners:
            self._accept(listener)
        found = []
        for newcomer in list(self._unidentified):
            try:
                host = newcomer.host()
            except WireError:  # not one of our agents
                self.turn_away(newcomer)
                continue
            if host is not None:
                self._unidentified.discard(newcomer)
                found.append((host, newcomer))
            elif time.monotonic() - newcomer.since > _HANDSHAKE_S:
                self.turn_away(newcomer)
        return found

    def turn_away(self, newcomer: UnidentifiedAgent) -> None:
        self._unidentified.discard(newcomer)
        self._selector.unregister(newcomer)
        newcomer.close()

    def close(self) -> None:
        for newcomer in self._unidentified:
            newcomer.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                unproven = [newcomer for newcomer in self._unidentified if not newcomer.endpoint.proven]
                if len(self._unidentified) >= self._room:
                    if not unproven:
                        sock.close()
                        continue
                    self.turn_away(min(unproven, key=lambda newcomer: newcomer.since))  # an agent takes moments
                try:
                    tune_tcp(sock, self._silence_s)
                    newcomer = UnidentifiedAgent(sock, self._secret)
                except (OSError, WireError):  # it is gone already
                    sock.close()
                    continue
                self._unidentified.add(newcomer)
                self._selector.register(newcomer, selectors.EVENT_READ)


class Wake:
    """Lets another thread wake the one that waits on the selector."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._read, self._write = os.pipe()
        for fd in (self._read, self._write):
            os.set_blocking(fd, False)
        selector.register(self._read, selectors.EVENT_READ)

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake; closed: nobody cares
            os.write(self._write, b"x")

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self._read, 4096)

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


class AgentConnection:
    """One host of the job: first without an agent, then with one, then with its workers; at last done, or lost."""

    endpoint: Endpoint

    def __init__(self, share: o.Share, wake: Callable[[], None]) -> None:
        self.share, self._wake = share, wake
        self.address = ""
        self.connected = self.has_started = self.done = False
        self.heard = 0.0
        # Bytes of output that came, that are written (counted by the pump's thread), and that the agent was told of.
        self._came = self._written = self._told = 0
        self._first: list[bytes] = []
        self._pids: dict[int, int] = {}
        self.running = {task.rank: f"rank {task.rank} on {share.host}" for task in share.tasks}

    def take(self, newcomer: UnidentifiedAgent) -> bool:
        """Make this the connection to the host; False if it has one."""
        if self.connected or self.heard:
            return False
        self.endpoint, self.address, self._first = newcomer.endpoint, newcomer.address, newcomer.rest
        self.connected, self.heard = True, time.monotonic()
        return True

    def started(self, pids: Sequence[int]) -> None:
        self.has_started = True
        for task, pid in zip(self.share.tasks, pids, strict=False):
            self._pids[task.rank] = pid
            if task.rank in self.running:
                self.running[task.rank] = f"pid {pid} on {self.share.host}"

    def launched(self, rank: int, pid: int) -> None:
        """One worker of an elastic job runs."""
        self._pids[rank] = pid
        if rank in self.running:
            self.running[rank] = f"pid {pid} on {self.share.host}"

    def pid_of(self, rank: int) -> int:
        return self._pids.get(rank, 0)

    def send(self, message: o.FromLauncher) -> None:
        """Queue, and write what can be written; if it cannot, reading will show why."""
        if self.connected:
            self.endpoint.queue(o.encode(message))
            with contextlib.suppress(WireError):
                self.endpoint.write()

    def receive(self) -> list[o.FromAgent]:
        """New messages of the agent; raises WireError if it is gone."""
        payloads, self._first = [*self._first, *self.endpoint.read()], []
        self.endpoint.write()
        if payloads:
            self.heard = time.monotonic()
        if self.endpoint.ended and not payloads:
            raise WireClosed("the connection was closed")
        return [o.read_agent(payload) for payload in payloads]

    def output(self, record: JobOutput, message: o.Output) -> None:
        """A piece of output, on its way to the console."""
        size = len(message.data)
        self._came += size
        record.put(message.rank, message.stream, message.data, lambda: self._wrote(size))

    def _wrote(self, size: int) -> None:
        self._written += size
        if self._written - self._told > WINDOW_BYTES // 4:
            self._wake()

    def give_credit(self) -> None:
        """Tell the agent how much has been written, so that it sends more."""
        size = self._written - self._told
        if size:
            self._told += size
            self.send(o.OutputTaken(size))

    @property
    def unwritten(self) -> int:
        """Bytes of output that the console has not taken yet."""
        return self._came - self._written

    def hang_up(self) -> None:
        if self.connected:
            self.connected = False
            self.endpoint.close()
