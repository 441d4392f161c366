"""A worker that is stopped in the middle of a collective: named, then given up, on one host, over either transport."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch.jobs import clean_environment, hora

WORKER = """
import json, os, torch
import hora.torch as hvd
hvd.init()
tensor, ready = torch.zeros(100_000), False
while True:
    try:
        hvd.allreduce_(tensor, name="loop")
    except hvd.PeerLostError as error:
        print(json.dumps({"raised": str(error)}), flush=True)
        raise SystemExit(7)
    if not ready:
        ready = True
        print(json.dumps({"ready": hvd.rank(), "pid": os.getpid()}), flush=True)
"""
DEADLINE_S = 60.0


@pytest.mark.parametrize("transport", [[], ["--gloo"]], ids=["shm", "gloo"])
def test_a_stopped_worker_is_named_and_given_up(tmp_path: Path, transport: list[str]) -> None:
    script = tmp_path / "loop.py"
    script.write_text(WORKER)
    bounds = {"HORA_STALL_CHECK_TIME_SECONDS": "1", "HORA_STALL_SHUTDOWN_TIME_SECONDS": "4"}
    job = subprocess.Popen(
        hora("run", "-np", "2", *transport, sys.executable, script), env=clean_environment(**bounds),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert job.stdout is not None
        pids: dict[int, int] = {}
        while len(pids) < 2:
            line = job.stdout.readline()
            assert line, "the job ended before its workers were ready"
            if found := re.search(r"\{.*\}", line):
                word = json.loads(found[0])
                pids[word["ready"]] = word["pid"]
        os.kill(pids[1], signal.SIGSTOP)
        said, _ = job.communicate(timeout=DEADLINE_S)
    finally:
        job.kill()
        job.wait()
    assert f"rank 1 (pid {pids[1]}) has not answered for" in said
    assert re.search(rf'"raised": "rank 1 \(host \w+, pid {pids[1]}\) died: it has not answered for \d+ s', said)
    assert job.returncode == 7
    assert not Path(f"/proc/{pids[1]}").exists()
