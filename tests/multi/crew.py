"""A crew: the workers of one job, started once by ``hora run`` and kept to run one body after another.

Starting processes and importing torch costs seconds, a body costs milliseconds; so one job serves all bodies of a size
and transport. A crew that lost a worker or hung is not used again.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.multi.hosts import Hosts

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 60.0
BODY_TIMEOUT_S = 40.0
STOP_TIMEOUT_S = 10.0


# Which host each rank is on, by the name of the transport: several names for this machine are as good as several.
# With one rank a host there would be nothing but Gloo; ``tests/engine/test_hierarchical.py`` has that and many more.
LAYOUTS = {
    "shm+tcp": {2: ("ea", "eb"), 3: ("ea", "eb", "ea"), 4: ("ea", "eb", "eb", "ec")},
    "shm+ucx": {3: ("ea", "eb", "ea")},
    "shm+gloo": {3: ("ea", "ea", "eb"), 4: ("ea", "ea", "eb", "eb")},
}


class CrewLost(Exception):
    """A worker of the crew died or did not answer in time."""


class Member:
    """The test process's end of the line to one worker: a JSON object a line, both ways."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._heard = connection, b""

    def tell(self, **message: object) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def hear(self, deadline: float) -> dict[str, Any] | None:
        """The next message; None if the worker is gone. Raises TimeoutError after the deadline (monotonic time)."""
        while b"\n" not in self._heard:
            self._connection.settimeout(max(0.001, deadline - time.monotonic()))
            more = self._connection.recv(1 << 16)
            if not more:
                return None
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def dismiss(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class Crew:
    """``size`` workers on one transport. Use as a context manager; ``run`` raises AssertionError if a body failed.

    ``worker`` is the module that they run: one for each front-end; ``python`` the interpreter they run it with.
    """

    def __init__(
        self,
        size: int,
        transport: str,
        worker: str = "tests.multi.worker",
        start_timeout_s: float = START_TIMEOUT_S,
        python: str = sys.executable,
    ) -> None:
        self.size, self.transport = size, transport
        self._worker, self._start_timeout_s = [python, "-m", worker], start_timeout_s
        self.fit = True
        self._members: list[Member] = []
        self._job: subprocess.Popen[bytes] | Hosts

    def __enter__(self) -> Crew:
        self._files = contextlib.ExitStack()
        folder = Path(self._files.enter_context(tempfile.TemporaryDirectory(prefix="crew-")))
        self._log = self._files.enter_context((folder / "log").open("w+"))
        listener = self._files.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(folder / "socket"))
        listener.listen(self.size)
        self._start(str(folder / "socket"))
        try:
            self._accept(listener)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, path: str) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "HORA_TRANSPORT": {"shm+tcp": "auto", "shm+ucx": "ucx"}.get(self.transport, self.transport),
            "UCX_TLS": "tcp",  # what every machine has
            "OMP_NUM_THREADS": "1",
        }
        worker = [*self._worker, path]
        if self.transport in LAYOUTS:
            self._job = Hosts(LAYOUTS[self.transport][self.size], worker, environment, self._log)
            return
        command = [sys.executable, "-m", "hora.cli.main", "run", "-np", str(self.size), *worker]
        self._job = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

    def _accept(self, listener: socket.socket) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        arrived: dict[int, Member] = {}
        while len(arrived) < self.size:
            ready, _, _ = select.select([listener], [], [], 0.1)
            if ready:
                connection = self._files.enter_context(listener.accept()[0])
                member = Member(connection)
                self._members.append(member)
                hello = member.hear(deadline)
                assert hello is not None
                arrived[hello["rank"]] = member
            elif self._job.poll() is not None or time.monotonic() > deadline:
                raise CrewLost(f"only ranks {sorted(arrived)} of {self.size} came up.\n{self.log()}")
        self._members = [arrived[rank] for rank in range(self.size)]

    def run(self, body: str) -> None:
        """Run one body on all ranks."""
        for member in self._members:
            member.tell(body=body, timeout_s=BODY_TIMEOUT_S - 5)
        deadline = time.monotonic() + BODY_TIMEOUT_S
        failures = [self._answer(rank, member, deadline) for rank, member in enumerate(self._members)]
        told = [f"--- rank {rank} ---\n{failure}" for rank, failure in enumerate(failures) if failure]
        assert not told, "\n".join([f"{body} failed on {len(told)} of {self.size} ranks", *told])

    def _answer(self, rank: int, member: Member, deadline: float) -> str:
        try:
            answer = member.hear(deadline)
        except TimeoutError:
            answer = {"lost": "did not answer in time"}
        except ConnectionError:
            answer = None
        if answer is None or "lost" in answer:
            self.fit = False
            raise CrewLost(f"rank {rank} {(answer or {}).get('lost', 'died')}.\n{self.log()}")
        return str(answer["failure"])

    def log(self) -> str:
        """The end of what the job printed."""
        self._log.flush()
        self._log.seek(0)
        return self._log.read()[-8000:]

    def __exit__(self, *exc_info: object) -> None:
        try:
            for member in self._members:  # the end of the line is a worker's sign to leave
                member.dismiss()
            if self.fit:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._job.wait(STOP_TIMEOUT_S)
        finally:
            if isinstance(self._job, Hosts):
                self._job.close()
            elif self._job.poll() is None:
                os.killpg(self._job.pid, signal.SIGKILL)
                self._job.wait()
            self._files.close()
