"""The agent: the launcher's process on one host of a job. It gets all it needs to know on its standard input.

It connects back to the launcher, starts this host's workers, passes on their output, their ends and the launcher's
signals, and sends a heartbeat every second. If the launcher is lost, it ends its workers; if it is lost itself, its
guardian does. It imports little, for the job waits for it: no framework, no numpy.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from hora.config import env
from hora.errors import HoraError
from hora.launch.host import orders as o
from hora.launch.host.ending import Ending
from hora.launch.host.host_workers import HostWorkers
from hora.launch.host.pump import Pump
from hora.wire.frame import Channel, WireClosed, WireError, WireTimeout
from hora.wire.reach import Unreachable, reach

__all__ = ["BEAT_S", "WINDOW_BYTES", "feed", "live"]

BEAT_S = 1.0
_LOOK_S = 0.25  # elastic: between two looks for workers that are stopped
WINDOW_BYTES = 1 << 20  # how much output may be under way to the console; then workers wait, as they do on a full pipe

_HEAD_BYTES = 8
_SHRUGGED_OFF = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def feed(bootstrap: o.Bootstrap) -> bytes:
    """An agent's standard input; it says how long it is, for not everything that carries it has an end.

    >>> len(feed(o.Bootstrap(addresses=(), hub_addresses=(), secret=b"", shares=(), command=(), environment={},
    ...     directory="/", call=None, threads_per_worker=None, bind=True, connect_s=1, silence_s=1))) > 8
    True
    """
    data = o.encode(bootstrap)
    return len(data).to_bytes(_HEAD_BYTES, "big") + data


def live() -> None:
    """The agent's life, and the end of its process."""
    code = _live()
    sys.stderr.flush()
    os._exit(code)  # without ceremony: the launcher waits for it


def _live() -> int:
    """Returns the exit code. What keeps it from connecting goes to standard error."""
    for number in _SHRUGGED_OFF:  # not ignored, which workers would inherit; Slurm signals these along with the workers
        signal.signal(number, lambda *_: None)
    bootstrap = _read_bootstrap(0)
    share = _mine(bootstrap.shares)
    if share is None:
        hosts = ", ".join(share.host for share in bootstrap.shares)
        return _complain(f"{os.uname().nodename}: this host is not among those of the job ({hosts}).")
    try:
        channel = reach(bootstrap.addresses, bootstrap.secret, timeout_s=bootstrap.connect_s)
    except Unreachable as error:
        tried = ", ".join(f"{address} ({reason})" for address, reason in error.failures.items())
        return _complain(
            f"{share.host}: the agent could not reach the launcher at {tried}. Open these ports between the hosts, or "
            "choose the interface with --network-interfaces."
        )
    return _Agent(bootstrap, share, channel).run()


def _read_bootstrap(fd: int) -> o.Bootstrap:
    with open(fd, "rb", closefd=False) as file:
        size = int.from_bytes(file.read(_HEAD_BYTES), "big")
        data = file.read(size)
    if len(data) < size or not size:
        raise SystemExit(_complain(f"{os.uname().nodename}: the order on standard input is incomplete."))
    return msgspec.msgpack.decode(data, type=o.Bootstrap)


def _mine(shares: Sequence[o.Share]) -> o.Share | None:
    """This host's share: the only one, or the one of this node."""
    if len(shares) == 1:
        return shares[0]
    here = os.uname().nodename
    names = (env.environ().get("SLURMD_NODENAME", here), here, here.partition(".")[0])
    return next((share for name in names for share in shares if share.host == name), None)


def _complain(text: str) -> int:
    sys.stderr.write(f"{o.AGENT_SAYS}{text}\n")
    return 3


class _Agent:
    """One connected agent. Its own thread watches; the pump's thread reads and sends output."""

    def __init__(self, bootstrap: o.Bootstrap, share: o.Share, channel: Channel) -> None:
        self._bootstrap, self._share, self._channel = bootstrap, share, channel
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)
        self._pump = Pump(lambda: None)
        self._window = threading.Condition()
        self._under_way = 0
        self._lost = ""
        self._ending = False
        self._heard = time.monotonic()
        self._next_beat = self._next_look = 0.0
        self._elastic = False  # workers are started one by one
        self._halted: tuple[int, ...] = ()  # those whose process is stopped, as the launcher was told
        self._paused = False  # the launcher is stopped (Ctrl-Z), or about to be
        self._host_workers = HostWorkers(
            share,
            self._selector,
            self._take_pipe,
            base={**env.environ(), **bootstrap.environment},
            threads=bootstrap.threads_per_worker,
            bind=bootstrap.bind,
        )

    def run(self) -> int:
        self._pump.start()
        self._send(o.HostReady(self._share.host))
        self._host_workers.prepare()  # while the launcher waits for the other hosts
        try:
            while not self._ending and not self._lost:
                self._selector.select((_LOOK_S if self._elastic else BEAT_S) if self._host_workers.woken else 0.1)
                self._step()
        finally:
            self._send_ends(self._host_workers.end(gently=bool(self._lost)))
            self._pump.finish(self._step_soon)
            self._host_workers.close()
            self._send(o.HostDone())
        # The connection is left open: that it closes tells the launcher that this process has ended.
        return _complain(f"{self._share.host}: {self._lost}") if self._lost else 0

    def _step(self) -> None:
        """Listen, look after the workers, and show that we live."""
        self._receive()
        self._send_ends(self._host_workers.reap())
        now = time.monotonic()
        if now >= self._next_beat:
            self._send(o.Heartbeat())
            self._next_beat = now + BEAT_S
        if self._elastic and now >= self._next_look:
            self._tell_who_is_stopped()
            self._next_look = now + _LOOK_S
        if now - self._heard > self._bootstrap.silence_s and not self._paused:
            self._lose(f"the launcher has not answered for {now - self._heard:.0f} s")

    def _step_soon(self) -> None:
        self._selector.select(0.02)
        self._step()

    def _send_ends(self, endings: Sequence[Ending]) -> None:
        for ending in endings:
            self._send(o.WorkerEnded(ending))

    # ---- the launcher ----

    def _receive(self) -> None:
        try:
            while True:
                self._obey(o.read_launcher(self._channel.receive(timeout_s=0.0)))
                self._heard = time.monotonic()
        except WireTimeout:
            return
        except WireClosed as error:
            self._lose(f"the launcher is gone: {error}")
        except WireError as error:
            self._lose(f"a message of the launcher cannot be read: {error}")

    def _obey(self, message: o.FromLauncher) -> None:
        self._paused = isinstance(message, o.Signal) and message.number == signal.SIGSTOP
        if isinstance(message, o.StartWorkers):
            self._start()
        elif isinstance(message, o.Launch):
            self._start_one(message.task)
        elif isinstance(message, o.SignalOne):
            self._host_workers.send_to(message.rank, message.number)
        elif isinstance(message, o.Signal):
            self._host_workers.send(message.number)
        elif isinstance(message, o.OutputTaken):
            with self._window:
                self._under_way -= message.size
                self._window.notify_all()
        elif isinstance(message, o.EndJob):
            self._ending = True

    def _send(self, message: o.FromAgent) -> None:
        if self._lost:
            return
        try:
            self._channel.send(o.encode(message), timeout_s=self._bootstrap.silence_s)
        except WireError as error:
            self._lose(f"the launcher is gone: {error}")

    def _lose(self, why: str) -> None:
        with self._window:
            self._lost = self._lost or why
            self._window.notify_all()

    # ---- the workers ----

    def _start(self) -> None:
        try:
            self._enter_directory()
            self._host_workers.start(self._bootstrap.command, self._connect, call=self._bootstrap.call)
        except HoraError as error:
            self._send(o.HostRefused(str(error)))
            return
        self._send(o.Started(tuple(process.pid for process in self._host_workers.processes.values())))

    def _start_one(self, task: o.WorkerTask) -> None:
        """Elastic: one more worker."""
        self._elastic = True
        try:
            self._enter_directory()
            self._host_workers.start_more([task], self._bootstrap.command, self._connect, call=self._bootstrap.call)
        except HoraError as error:
            self._send(o.HostRefused(str(error)))
            return
        self._send(o.Launched(task.rank, self._host_workers.processes[task.rank].pid))

    def _tell_who_is_stopped(self) -> None:
        halted = tuple(self._host_workers.stopped())
        if halted != self._halted:
            self._halted = halted
            self._send(o.Halted(halted))

    def _enter_directory(self) -> None:
        directory = self._bootstrap.directory
        try:
            os.chdir(directory)
        except OSError as error:
            raise HoraError(
                f"the directory {directory!r}, in which hora run was started, cannot be entered there: "
                f"{error.strerror}. Start the job from a directory that all hosts share."
            ) from None

    def _connect(self, rank: int, theirs: contextlib.ExitStack) -> tuple[Sequence[int], Mapping[str, str]]:
        reader, writer = os.pipe()
        theirs.callback(os.close, reader)
        os.write(writer, self._bootstrap.secret)
        os.close(writer)
        addresses = ",".join(self._bootstrap.hub_addresses)
        return [reader], {"HORA_HUB_ADDRESSES": addresses, "HORA_SECRET_FD": str(reader)}

    def _take_pipe(self, rank: int, name: str, fd: int) -> None:
        self._pump.add(fd, partial(self._pass_on, rank, name), partial(self._pass_on, rank, name, b""))

    def _pass_on(self, rank: int, name: str, data: bytes) -> None:
        with self._window:
            self._window.wait_for(lambda: self._under_way < WINDOW_BYTES or self._lost)
            self._under_way += len(data)
        self._send(o.Output(rank, name, data))
