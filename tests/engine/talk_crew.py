"""Real worker processes for the tests of the message backend: a hub here, a subprocess a rank, bodies next door."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hora.engine.hub import Hub

ROOT = Path(__file__).parents[2]


def run_crew(
    body: str,
    size: int,
    *,
    job: str = "",
    absent: tuple[int, ...] = (),
    timeout_s: float = 60.0,
    place: Callable[[int], dict[str, Any]] = lambda rank: {},
    **settings: Any,
) -> list[dict[str, Any]]:
    """Run a body on every rank; returns, by rank, its exit code ("code") and what it reported.

    With ``job`` the workers have no hub of ours and must find each other, as under another launcher. ``place`` says how
    a rank's world differs from one on a single host.
    """
    hub = Hub(size, host="localhost")
    workers: list[subprocess.Popen[str]] = []
    try:
        for rank in set(range(size)) - set(absent):
            ours, theirs = socket.socketpair()
            hub.add_worker(rank, ours)
            arguments = [
                body,
                str(rank),
                str(size),
                job or str(theirs.fileno()),
                json.dumps({"transport": "gloo", **settings}),
                json.dumps(place(rank)),
            ]
            workers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.engine.talk_bodies", *arguments],
                    pass_fds=[theirs.fileno()],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"},
                )
            )
            theirs.close()
        deadline = time.monotonic() + timeout_s
        waiting = dict(enumerate(workers))
        while waiting and time.monotonic() < deadline:
            for rank, worker in list(waiting.items()):
                try:
                    code = worker.wait(timeout=0.02)
                except subprocess.TimeoutExpired:
                    continue
                del waiting[rank]
                if not job:
                    hub.worker_exited(rank, f"signal {-code}" if code < 0 else f"exit code {code}")
        assert not waiting, f"ranks {list(waiting)} of {body} were still running after {timeout_s} s"
        return [_report(worker) for worker in workers]
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
            worker.communicate()
        hub.close()


def _report(worker: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = worker.communicate()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    report: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return {**report, "code": worker.returncode, "err": err}
