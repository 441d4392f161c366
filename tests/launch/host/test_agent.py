"""The agent, spoken to as the launcher does: what it says, what it refuses, and how it ends."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TypeVar

import msgspec
import pytest
from tests.launch.jobs import clean_environment, processes_of, wait_until

from hora.launch.host import orders as o
from hora.launch.host.agent import BEAT_S, feed
from hora.launch.host.orders import AGENT_SAYS
from hora.launch.starters.starter import agent_command
from hora.wire.frame import Channel

T = TypeVar("T")
SECRET = secrets.token_bytes(32)
NEW = secrets.token_hex(8)


def bootstrap(port: int, *command: str, **more: object) -> o.Bootstrap:
    task = o.WorkerTask(0, 0, 1, {"HORA_RANK": "0"})
    base = o.Bootstrap(
        addresses=(f"127.0.0.1:{port}",),
        hub_addresses=("127.0.0.1:9",),
        secret=SECRET,
        shares=(o.Share("h1", f"{NEW}.0", (task,)),),
        command=command or (sys.executable, "-c", "import os; os.write(1, b'hello\\n')"),
        environment={},
        directory="/",
        call=None,
        threads_per_worker=None,
        bind=True,
        connect_s=5.0,
        silence_s=3.0,
    )
    return msgspec.structs.replace(base, **more)


class Launcher:
    """The other end."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def start(self, order: o.Bootstrap, **environment: str) -> None:
        if hasattr(self, "agent"):
            self.agent.communicate(timeout=20)
        self.agent = subprocess.Popen(
            agent_command(),
            env=clean_environment(**environment),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.agent.stdin is not None
        self.agent.stdin.write(feed(order))
        self.agent.stdin.flush()  # and no end of input: the order says how long it is

    def accept(self) -> str:
        self.listener.settimeout(20)
        sock, _ = self.listener.accept()
        if hasattr(self, "channel"):
            self.channel.close()
        self.channel = Channel(sock, SECRET, "hub")
        return self.expect(o.HostReady).host

    def say(self, message: o.FromLauncher) -> None:
        self.channel.send(o.encode(message), timeout_s=5)

    def expect(self, kind: type[T]) -> T:
        """The next message of this kind; the others before it are dropped, and answered with a sign of life."""
        deadline = time.monotonic() + 20
        while True:
            message = o.read_agent(self.channel.receive(timeout_s=deadline - time.monotonic()))
            if isinstance(message, kind):
                return message
            self.say(o.Heartbeat())

    def end(self) -> str:
        _, errors = self.agent.communicate(timeout=20)
        return errors.decode()


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.listener.close()
    if hasattr(launcher, "channel"):
        launcher.channel.close()
    if hasattr(launcher, "agent"):
        launcher.agent.kill()
        launcher.agent.communicate()
    wait_until(lambda: not processes_of(f"{NEW}.0"), what="the end of the workers")


def test_a_life(launcher: Launcher) -> None:
    launcher.start(bootstrap(launcher.port))
    assert launcher.accept() == "h1"
    launcher.say(o.StartWorkers())
    assert len(launcher.expect(o.Started).pids) == 1
    said = launcher.expect(o.Output)
    assert (said.rank, said.stream, said.data) == (0, "stdout", b"hello\n")
    launcher.say(o.OutputTaken(len(said.data)))
    ending = launcher.expect(o.WorkerEnded).ending
    assert (ending.rank, ending.host, ending.returncode) == (0, "h1", 0) and ending.peak_bytes > 0
    launcher.say(o.EndJob())
    launcher.expect(o.HostDone)
    assert launcher.end() == "" and launcher.agent.returncode == 0


def test_nothing_starts_before_all_hosts_are_there(launcher: Launcher) -> None:
    launcher.start(bootstrap(launcher.port))
    launcher.accept()
    for _ in range(2):
        launcher.expect(o.Heartbeat)
    assert not processes_of(f"{NEW}.0")
    launcher.say(o.EndJob())
    launcher.expect(o.HostDone)


def test_signs_of_life_come_every_second(launcher: Launcher) -> None:
    launcher.start(bootstrap(launcher.port, silence_s=30.0))
    launcher.accept()
    launcher.expect(o.Heartbeat)
    began = time.monotonic()
    for _ in range(3):
        launcher.expect(o.Heartbeat)
    assert time.monotonic() - began == pytest.approx(3 * BEAT_S, abs=1.5)
    launcher.say(o.EndJob())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"directory": "/nowhere"}, "the directory '/nowhere'"),
        ({"command": ("/nowhere/python",)}, "'/nowhere/python' could not be started"),
    ],
)
def test_what_it_cannot_do_is_refused(launcher: Launcher, more: dict[str, object], said: str) -> None:
    launcher.start(bootstrap(launcher.port, **more))
    launcher.accept()
    launcher.say(o.StartWorkers())
    assert said in launcher.expect(o.HostRefused).text
    launcher.say(o.EndJob())
    launcher.expect(o.HostDone)


@pytest.mark.parametrize("hang_up", [True, False])
def test_a_launcher_that_is_gone_or_silent_ends_the_workers(launcher: Launcher, hang_up: bool) -> None:
    launcher.start(bootstrap(launcher.port, "sleep", "60"))
    launcher.accept()
    launcher.say(o.StartWorkers())
    launcher.expect(o.Started)
    if hang_up:
        launcher.channel.close()
    wait_until(lambda: not processes_of(f"{NEW}.0"), what="the end of the workers")
    said = launcher.end()
    assert launcher.agent.returncode == 3
    assert ("the launcher is gone" if hang_up else "the launcher has not answered for 3 s") in said


def test_output_waits_for_room(launcher: Launcher) -> None:
    """A window's worth comes by itself; the rest only as it is taken."""
    launcher.start(bootstrap(launcher.port, sys.executable, "-c", "print('x' * 4_000_000)", silence_s=30.0))
    launcher.accept()
    launcher.say(o.StartWorkers())
    size = 0
    while size < 1 << 20:
        size += len(launcher.expect(o.Output).data)
    for _ in range(2):  # beats go on, and no output comes between
        message = o.read_agent(launcher.channel.receive(timeout_s=10))
        assert isinstance(message, o.Heartbeat), message
    launcher.say(o.OutputTaken(size))
    while size < 4_000_001:
        piece = launcher.expect(o.Output).data
        launcher.say(o.OutputTaken(len(piece)))
        size += len(piece)
    assert size == 4_000_001
    launcher.say(o.EndJob())


def test_no_launcher(launcher: Launcher) -> None:
    launcher.listener.close()
    launcher.start(bootstrap(launcher.port))
    said = launcher.end()
    assert launcher.agent.returncode == 3
    assert said.startswith(f"{AGENT_SAYS}h1: the agent could not reach the launcher at 127.0.0.1:{launcher.port} (")
    assert "connection refused" in said and "--network-interfaces" in said


def test_someone_else_listens_there(launcher: Launcher) -> None:
    launcher.start(bootstrap(launcher.port, connect_s=2.0, secret=bytes(32)))
    sock, _ = launcher.listener.accept()
    channel = Channel(sock, SECRET, "hub")
    said = launcher.end()
    assert "could not reach the launcher" in said and launcher.agent.returncode == 3
    channel.close()


def test_its_share_is_that_of_its_node(launcher: Launcher) -> None:
    shares = tuple(o.Share(f"n{index}", f"{NEW}.{index}", ()) for index in range(3))
    launcher.start(bootstrap(launcher.port, shares=shares), SLURMD_NODENAME="n1")
    assert launcher.accept() == "n1"
    launcher.say(o.EndJob())
    launcher.expect(o.HostDone)
    launcher.end()
    launcher.start(bootstrap(launcher.port, shares=shares), SLURMD_NODENAME="other")
    assert "not among those of the job (n0, n1, n2)" in launcher.end()


def test_it_imports_little() -> None:
    program = "import sys, hora.launch.host.agent; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], env=clean_environment(), capture_output=True, text=True)
    assert not {"torch", "numpy", "psutil", "rich", "click", "hora.engine.core"} & set(done.stdout.split())
    assert os.path.exists(sys.executable)
