"""Jobs on a test cluster, watched while they run: what they print is read from a file, so nothing blocks on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.hosts import Host
from tests.launch.jobs import wait_until

__all__ = ["WORKER", "Watched", "assert_right", "hora_run", "words_in"]

WORKER = Path(__file__).with_name("worker.py")
START_S = 90.0  # four workers import torch at once, on two cores


def hora_run(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "hora", "run", *map(str, arguments)]


def words_in(output: str) -> list[dict[str, Any]]:
    """The words that workers printed, whatever a launcher put before them."""
    found = []
    for line in output.splitlines():
        start = line.find('{"')
        if start >= 0 and line.endswith("}") and "|" not in line[:start]:  # after a bar they are quoted in a report
            found.append(json.loads(line[start:]))
    return found


def assert_right(output: str, hosts: Sequence[str] = ("h1", "h1", "h2", "h2")) -> None:
    """Every rank of a job ``worker.py right`` was where it belongs, and computed what it should."""
    words = sorted((word for word in words_in(output) if "right" in word), key=lambda word: word["rank"])
    assert [word["rank"] for word in words] == list(range(len(hosts))), output
    assert [word["host"] for word in words] == list(hosts), output
    for rank, word in enumerate(words):
        local_rank = hosts[:rank].count(hosts[rank])
        across = [host for host in dict.fromkeys(hosts) if hosts.count(host) > local_rank]
        place = {
            "size": len(hosts),
            "local_rank": local_rank,
            "local_size": hosts.count(hosts[rank]),
            "cross_rank": across.index(hosts[rank]),
            "cross_size": len(across),
        }
        assert {name: word[name] for name in place} == place, output
        assert word["right"], output
        assert word["apart"] < 1e-9, output


class Watched:
    """A command that runs on a host. Use it with ``with``: at the end it does not run any more."""

    def __init__(self, host: Host, command: Sequence[str], place: Path, **environment: str) -> None:
        self._path = place / f"output-{len(list(place.glob('output-*')))}"
        self._path.touch()
        with self._path.open("a") as file:
            self.process = host.popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=place)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *unused: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def pid(self) -> int:
        """The command's own, as this machine sees it: ``process`` is what entered the host."""
        [child] = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(child)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    @property
    def output(self) -> str:
        return self._path.read_text(errors="replace")

    @property
    def words(self) -> list[dict[str, Any]]:
        return words_in(self.output)

    def wait(self, deadline_s: float) -> int:
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {deadline_s:g} s:\n{self.output}") from None

    def wait_for(self, condition: Callable[[], bool], what: str, deadline_s: float = START_S) -> None:
        def met() -> bool:
            if condition():
                return True
            assert self.process.poll() is None, f"ended with {self.process.returncode} before {what}:\n{self.output}"
            return False

        try:
            wait_until(met, deadline_s, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output}") from None

    def ready(self, size: int = 4) -> dict[int, dict[str, Any]]:
        """Wait until all workers of a job ``worker.py loop`` are under way; their words by rank."""

        def found() -> dict[int, dict[str, Any]]:
            return {word["ready"]: word for word in self.words if "ready" in word}

        self.wait_for(lambda: len(found()) == size, f"{size} workers to be ready")
        return found()

    def raised(self) -> dict[int, dict[str, Any]]:
        """How the workers that could say so have failed, by rank."""
        return {word["rank"]: word for word in self.words if "raised" in word}
