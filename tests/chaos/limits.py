"""A machine that refuses: limits, full disks, crowds. Each row is one job that must end, in time, with the right words.

``python -m tests.chaos limits`` runs all of them. Disks are full because they are small: a tmpfs in a namespace.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.chaos.rounds import Round, stops
from tests.launch.jobs import clean_environment, hora

from hora.engine.hub import Hub
from hora.wire.listen import listen_tcp
from hora.wire.reach import reach

# What no sentence may look like.
ACCIDENT = re.compile(r"internal error in the|Segmentation fault|core dumped|Fatal Python error")

PRELUDE = """
import sys, threading, time
from pathlib import Path
import numpy as np
from hora.engine import session
from hora.engine.request import OperationSpec, forms
from hora.types import Buffer, DType, Kind
def total(value, name):
    array = np.full(1, value, "float32")
    here = [Buffer(array.ctypes.data, DType.FLOAT32, array.shape, array)]
    engine = session.engine()
    engine.prepare(OperationSpec(Kind.ALLREDUCE, name, forms(here))).start(here, here).wait()
    return array[0]
"""
SUMS = """
session.init()
rank, size = session.rank(), session.size()
assert all(total(rank + i, f"t{i % 7}") == sum(range(size)) + size * i for i in range(300))
print("rank", rank, "is right over", session.engine().transport, flush=True)
session.shutdown()
"""
WAITER = """
session.init()
total(1, "all")
def wait():
    try:
        total(1, "never")
    except Exception as error:
        print("the thread:", type(error).__name__, error, flush=True)
if session.rank() == 0:
    thread = threading.Thread(target=wait)
    thread.start()
    while not session.engine().backend.waiting():
        time.sleep(0.001)
    session.shutdown()
    thread.join()
    Path("shut").touch()
deadline = time.monotonic() + 20
while not Path("shut").exists() and time.monotonic() < deadline:
    time.sleep(0.01)
sys.exit(5)
"""
TALK = (
    SUMS
    + """
for _ in range(100):
    print("." * 1000, flush=True)
"""
)
CHECKPOINT = """
from hora.checkpoint import CheckpointStore
store = CheckpointStore("small")
store.save("model-1", lambda file: file.write(b"1" * 20_000), position=1)
try:
    store.save("model-2", lambda file: file.write(b"2" * 200_000), position=2)
except OSError as error:
    print("the second:", error, flush=True)
newest = store.latest()
newest.verify()
print("the newest is whole:", newest.path.name, newest.nbytes, flush=True)
"""
RECORDS = """
from hora.workloads.run_record import RunRecord
with RunRecord(Path("small")) as record:
    for step in range(1, 10_000):
        record.epoch({"step": step, "epoch": step})
"""


class Row(NamedTuple):
    """``program`` is what the workers of ``hora run`` do; ``setup`` is done by the shell before it starts them.

    The folder "small" is where a disk is full soon; it is small only if ``setup`` mounts it.
    """

    name: str
    program: str
    setup: str = ":"
    says: tuple[str, ...] = ()  # patterns that the output has
    code: int = 0
    within_s: float = 30.0
    workers: int = 2
    environment: str = ""
    flags: str = ""
    as_user: bool = False  # root has no limit on processes
    slow: bool = False  # it imports torch


SMALL = "mount -t tmpfs -o size=64k none small"
NO_MEMORY = "cannot make shared memory for 2 workers: "
GLOO, SHM = "is right over gloo", "is right over shm"
ONLY_SHM = "HORA_TRANSPORT=shm"
ROWS = [
    Row("ulimit -f", SUMS, "ulimit -f 4096", ("running on Gloo.*File too large.*ulimit -f", GLOO), slow=True),
    Row("ulimit -f, only shm", SUMS, "ulimit -f 4096", (NO_MEMORY + "File too large",), 1, environment=ONLY_SHM),
    Row("ulimit -v", SUMS, "ulimit -v 4000000", ("running on Gloo.*mapping failed", GLOO), slow=True),
    Row("ulimit -v, only shm", SUMS, "ulimit -v 4000000", (NO_MEMORY + "mapping failed",), 1, environment=ONLY_SHM),
    Row("ulimit -n 64", SUMS, "ulimit -n 64", (SHM,)),
    Row("ulimit -n 16", SUMS, "ulimit -n 16", ("started: .*Too many open files",), 3),
    Row("ulimit -n 10", SUMS, "ulimit -n 10", ("started: .*Too many open files",), 3),
    Row("ulimit -u 10", SUMS, "ulimit -u 10", (r"rank \d cannot start: no more processes",), 1, as_user=True),
    Row("ulimit -u 3", SUMS, "ulimit -u 3", ("started: .*Resource temporarily unavailable",), 3, as_user=True),
    Row("full disk, timeline", SUMS, SMALL, ("timeline small/t.json is no longer written: .*No space left", SHM),
        environment="HORA_TIMELINE=small/t.json"),
    Row("full disk, checkpoint", CHECKPOINT, SMALL, ("the second: .*No space left", "is whole: model-1 20000"),
        workers=1),
    Row("full disk, records", RECORDS, SMALL, ("metrics.jsonl cannot be written: No space left",), 1, workers=1),
    Row("full disk, output", TALK, SMALL, ("No space left", SHM), flags="--output-filename small/out"),
    Row("513 workers", SUMS, says=("513 workers",), code=2, workers=513),
    Row("shutdown, a thread waits", WAITER, says=("ShutDownError .*another thread of this process shut",), code=5),
]  # fmt: skip


def run(row: Row) -> Round:
    """Run one; its misses are what it should have said and did not, and what it should not have said."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        (Path(folder) / "small").mkdir()
        script = Path(folder) / "script.py"
        script.write_text(PRELUDE + row.program)
        worker = ["bash", "-c", f"exec {sys.executable} {script}"] if row.as_user else [sys.executable, str(script)]
        command = hora("run", "-np", str(row.workers), *row.flags.split(), *worker)
        line = f"set -e; {row.setup}; exec env {row.environment} {shlex.join(command)}"
        shell = [*(_as_user() if row.as_user else _own_mounts() if row.setup is SMALL else []), "bash", "-c", line]
        began = time.monotonic()
        try:
            done = subprocess.run(
                shell, env=clean_environment(), cwd=folder, capture_output=True, text=True,
                stdin=subprocess.DEVNULL, timeout=row.within_s,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            return Round(row.name, row.within_s, misses=(f"it did not end within {row.within_s:g} s: {late.output!r}",))
        seconds, said, misses = time.monotonic() - began, done.stdout + done.stderr, list[str]()
    sentences = [found[0] for pattern in row.says if (found := re.search(f".*{pattern}.*", said))]
    if len(sentences) < len(row.says):
        misses.append(f"it did not say {row.says}: {said}")
    if accident := ACCIDENT.search(said):
        misses.append(f"it said {accident[0]!r}: {said}")
    if done.returncode != row.code:
        misses.append(f"exit code {done.returncode}, not {row.code}: {said}")
    return Round(row.name, seconds, f"exit code {done.returncode}; " + " … ".join(sentences), tuple(misses))


def idle_sockets() -> Round:
    """A crowd at the hub's door that says nothing does not keep a worker out."""
    hub, began = Hub(2), time.monotonic()
    try:
        listener = listen_tcp(["127.0.0.1"])
        where = listener.getsockname()
        hub.open_tcp(listener)
        idle = [socket.create_connection(where, 5) for _ in range(100)]
        try:
            reach([f"127.0.0.1:{where[1]}"], hub.secret, timeout_s=10).close()
            return Round("100 idle sockets", time.monotonic() - began, "a worker comes in")
        except Exception as error:
            return Round("100 idle sockets", time.monotonic() - began, misses=(f"a worker is kept out: {error}",))
        finally:
            for sock in idle:
                sock.close()
    finally:
        hub.close()


def rows(only: str = "") -> Iterator[Round]:
    """All, or those whose name has this text."""
    yield from (run(row) for row in ROWS if only in row.name)
    if only in "100 idle sockets":
        yield idle_sockets()
    if only in "stopped in the lock":
        yield from stops(2, 1, in_lock=True)


def _own_mounts() -> list[str]:
    return ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]


def _as_user() -> list[str]:
    """Somebody who has no other process, and reads all files."""
    if os.geteuid() != 0:
        return []
    caps = "+dac_override,+dac_read_search"
    return [
        "setpriv",
        "--reuid=54321",
        "--regid=54321",
        "--clear-groups",
        f"--inh-caps={caps}",
        f"--ambient-caps={caps}",
    ]
