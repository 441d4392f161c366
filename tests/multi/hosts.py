"""Workers on several hosts without several machines: each host is a name, and the hub is reached by TCP.

What ``hora run`` does on real hosts, as far as workers can tell: addresses and secret are handed to them, and their
ends are reported to the hub. Processes on "different" hosts share no memory because they do not know that they could.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO

from hora.config.world import places
from hora.engine.hub import Hub
from hora.wire.listen import listen_tcp


class Hosts:
    """A job of one worker for each of ``hosts``, running ``command``; close it whatever happens."""

    def __init__(
        self, hosts: Sequence[str], command: Sequence[str], environment: Mapping[str, str], log: IO[str]
    ) -> None:
        self._hub = Hub(len(hosts), host="launcher")
        listener = listen_tcp(["127.0.0.1"])
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        self._hub.open_tcp(listener)
        self.workers: list[subprocess.Popen[bytes]] = []
        for rank, (host, place) in enumerate(zip(hosts, places(hosts), strict=True)):
            read, write = os.pipe()
            os.write(write, self._hub.secret)
            os.close(write)
            where = {
                "HORA_RANK": rank,
                "HORA_SIZE": len(hosts),
                "HORA_HOSTNAME": host,
                "HORA_HUB_ADDRESSES": self.address,
                "HORA_SECRET_FD": read,
                **{f"HORA_{name.upper()}": value for name, value in place._asdict().items()},
            }
            self.workers.append(
                subprocess.Popen(
                    command,
                    env={**environment, **{name: str(value) for name, value in where.items()}},
                    pass_fds=[read],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
            os.close(read)
        for rank, worker in enumerate(self.workers):
            threading.Thread(target=self._report, args=(rank, worker), daemon=True).start()

    def _report(self, rank: int, worker: subprocess.Popen[bytes]) -> None:
        code = worker.wait()
        self._hub.worker_exited(rank, f"signal {-code}" if code < 0 else f"exit code {code}")

    def poll(self) -> int | None:
        """The worst exit code, once all have ended."""
        codes = [worker.poll() for worker in self.workers]
        return None if None in codes else max(codes, key=abs)  # type: ignore[type-var,arg-type]

    def wait(self, timeout_s: float) -> int:
        deadline = time.monotonic() + timeout_s
        for worker in self.workers:
            worker.wait(max(0.001, deadline - time.monotonic()))
        code = self.poll()
        assert code is not None
        return code

    def close(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
        self._hub.close()
