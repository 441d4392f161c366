"""The timeline is Horovod's format, valid at every moment, and nested."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.launch.jobs import run_hora
from tests.light import LIGHT_TORCH

from hora.engine.backend import EventKind, OperationEvent
from hora.engine.request import Request, TensorSpec
from hora.engine.timeline import Timeline
from hora.errors import EnvironmentUnfit, UsageError
from hora.types import DType, Kind, ReduceOp, Reduction


def request(name: str, op: ReduceOp = ReduceOp.SUM) -> Request:
    return Request(Kind.ALLREDUCE, name, (TensorSpec(DType.FLOAT32, (3, 4)),), (0, 1), how=Reduction(op))


def life(r: Request, start_ns: int, moves: bool) -> list[OperationEvent]:
    events = [
        OperationEvent(start_ns + 5_000, r, EventKind.SUBMITTED, 0, 0),
        OperationEvent(start_ns + 1_000, r, EventKind.ARRIVED, 1, 0),
        OperationEvent(start_ns + 5_000, r, EventKind.ARRIVED, 0, 0),
        OperationEvent(start_ns + 5_000, r, EventKind.AGREED, 0, 0),
        OperationEvent(start_ns + 90_000, r, EventKind.END, 0, 0),
    ]
    return [*events[:4], OperationEvent(start_ns + 9_000, r, EventKind.BEGIN, 0, 2), events[4]] if moves else events


def make(path: Path, **more: Any) -> Timeline:
    options = {"activity": "SHM", "mark_cycles": False, "max_bytes": 1 << 20} | more
    return Timeline(str(path), 0, **options)


def check_nesting(rows: list[dict[str, Any]]) -> dict[int, list[str]]:
    open_: dict[int, list[str]] = defaultdict(list)
    last: dict[int, int] = defaultdict(int)
    for row in rows:
        if "ts" in row:
            assert row["ts"] >= last[row["pid"]], row
            last[row["pid"]] = row["ts"]
        if row["ph"] == "B":
            open_[row["pid"]].append(row["name"])
        elif row["ph"] == "E":
            assert open_[row["pid"]].pop() == row["name"]
    return {pid: names for pid, names in open_.items() if names}


class Disk(io.FileIO):
    """A file on a disk with little room."""

    room = 0

    def write(self, data: Any) -> int:
        left = self.room - self.tell()
        if left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(bytes(data)[:left])


@pytest.mark.parametrize("room", range(400, 420))
def test_a_full_disk_leaves_what_was_written_before(tmp_path: Path, room: int) -> None:
    path = tmp_path / "t.json"
    timeline = make(path)
    timeline._file.close()
    timeline._file = Disk(path, "r+b")
    timeline._file.room = room
    with pytest.raises(OSError, match="No space left"):
        for i in range(100):
            timeline.write(life(request(f"allreduce.{i}"), 0, moves=True))
    timeline.drop()
    timeline.drop()
    timeline.close()  # nothing more is written
    assert path.stat().st_size <= room
    assert json.loads(path.read_text())


def test_a_disk_that_is_full_from_the_start_is_said() -> None:
    with pytest.raises(EnvironmentUnfit, match="cannot write the timeline /dev/full: No space left on device"):
        make(Path("/dev/full"))


def test_events_have_horovods_names_and_nest(tmp_path: Path) -> None:
    import time

    path = tmp_path / "t.json"
    timeline, start = make(path), time.monotonic_ns()
    big, small, ada = request("allreduce.big"), request('quote " and \\ and é'), request("allreduce.a", ReduceOp.ADASUM)
    timeline.write([*life(big, start, True), *life(small, start + 1000, False), *life(ada, start, True)])
    timeline.write(life(big, start + 86_000, True))  # the peer came before we had ended the first round
    timeline.close()
    rows = json.loads(path.read_text())
    assert check_nesting(rows) == {}
    names = {row["args"]["name"] for row in rows if row["name"] == "process_name"}
    assert names == {"rank 0", "allreduce.big", 'quote " and \\ and é', "allreduce.a"}
    pid = next(row["pid"] for row in rows if row.get("args", {}).get("name") == "allreduce.big")
    labels = [(row["ph"], row["name"]) for row in rows if row["pid"] == pid and "ts" in row]
    assert labels[:9] == [
        ("B", "NEGOTIATE_ALLREDUCE"), ("X", "1"), ("X", "0"), ("E", "NEGOTIATE_ALLREDUCE"), ("B", "ALLREDUCE"),
        ("B", "QUEUE"), ("E", "QUEUE"), ("B", "SHM_ALLREDUCE"), ("E", "SHM_ALLREDUCE"),
    ]  # fmt: skip
    end = next(row for row in rows if row["ph"] == "E" and row["name"] == "ALLREDUCE")
    assert end["args"] == {"dtype": "float32", "shape": "[3, 4]"}
    assert any(row["name"] == "NEGOTIATE_ADASUM" for row in rows)
    assert "start_time_since_epoch_in_micros" in rows[0]["args"]


def test_the_file_is_valid_after_every_write_and_shows_what_never_finished(tmp_path: Path) -> None:
    import time

    path = tmp_path / "t.json"
    timeline, start = make(path), time.monotonic_ns()
    json.loads(path.read_text())
    for i in range(20):
        timeline.write(life(request(f"allreduce.{i}"), start + i, i % 2 == 0)[:4])
        json.loads(path.read_text())
    waiting = request("allreduce.waiting")
    timeline.write([OperationEvent(start, waiting, EventKind.SUBMITTED, 0, 0)])
    timeline.close()
    timeline.close()
    assert ["NEGOTIATE_ALLREDUCE"] in check_nesting(json.loads(path.read_text())).values()


def test_it_stops_growing_at_its_limit(tmp_path: Path) -> None:
    import time

    path = tmp_path / "t.json"
    timeline, start = make(path, max_bytes=20_000), time.monotonic_ns()
    for i in range(1000):
        timeline.write(life(request("allreduce.x"), start + i * 100_000, True))
    timeline.close()
    assert path.stat().st_size < 21_000
    assert json.loads(path.read_text())[-1]["name"] == "TIMELINE_FULL"


def test_cycle_marks(tmp_path: Path) -> None:
    import time

    path = tmp_path / "t.json"
    timeline = make(path, mark_cycles=True)
    timeline.write(life(request("allreduce.x"), time.monotonic_ns(), True))
    timeline.write(life(request("allreduce.small"), time.monotonic_ns(), False))  # its data came with the arrivals
    timeline.close()
    rows = json.loads(path.read_text())
    assert check_nesting(rows) == {}
    assert [(row["ph"], row["pid"], row["s"]) for row in rows if row["name"] == "CYCLE_START"] == [
        ("i", 1, "g"), ("i", 2, "g"),
    ]  # fmt: skip


def test_bad_paths_are_refused_clearly(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        make(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentUnfit, match="cannot write the timeline"):
        make(tmp_path / "file" / "t.json")


TRAINING = """
import torch, hora.torch as hvd
hvd.init()
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
for _ in range(6):
    optimizer.zero_grad()
    model(torch.ones(4, 256)).sum().backward()
    optimizer.step()
hvd.shutdown()
"""


def test_gradients_that_are_summed_in_place_are_in_it_once(tmp_path: Path) -> None:
    script, path = tmp_path / "train.py", tmp_path / "t.json"
    script.write_text(LIGHT_TORCH + TRAINING)
    done = run_hora("run", "-np", "2", "--timeline-filename", path, sys.executable, script, timeout_s=100)
    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text())
    # All ended, also what was forgotten before anybody read of it: the roll call of the first step.
    assert not any(check_nesting(rows).values())
    assert len([row for row in rows if row.get("args", {}).get("name", "").endswith(".roll.0")]) == 1
    times: dict[tuple[int, str], list[float]] = {}
    for row in rows:
        if row["ph"] in "BE":
            times.setdefault((row["pid"], row["name"]), []).append(row["ts"])
    assert any(name == "ALLREDUCE" for _, name in times)
    assert all(seen == sorted(seen) for seen in times.values())
