"""The index with many writers, with killed ones, and without itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.lab.records.made_up import write_experiment, write_outcome, write_run
from tests.launch.jobs import clean_environment, wait_until

from hora.lab.records.index import FILE, IndexEntry, add, scan

WRITER = """
import pathlib, sys
from hora.lab.records.index import IndexEntry, add
runs, name, count = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for number in range(count):
    add(runs, IndexEntry(kind="sweep", folder=f"lab/{name}-{number}", title="x" * (number % 50 * 40)))
"""


def writer(runs: Path, name: str, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(runs), name, str(count)], env=clean_environment())


def test_many_writers_at_once_and_one_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"kind":"sweep","folder":"lab/torn')  # killed in the middle of a line
    doomed = writer(tmp_path, "doomed", 10**9)
    writers = [writer(tmp_path, f"w{number}", 300) for number in range(3)]
    try:
        assert [process.wait(120) for process in writers] == [0, 0, 0]
        wait_until(lambda: "doomed" in (tmp_path / FILE).read_text(), 120)
    finally:
        for process in (doomed, *writers):
            process.send_signal(signal.SIGKILL)
            process.wait()
    add(tmp_path, IndexEntry(kind="sweep", folder="lab/last"))
    names = [Path(entry.folder).name for entry in scan(tmp_path)]
    assert {f"w{writer}-{number}" for writer in range(3) for number in range(300)} <= set(names)
    assert "last" in names and "torn" not in names and len(set(names)) == len(names)
    broken = 0
    for line in (tmp_path / FILE).read_text().splitlines():
        try:
            json.loads(line)
        except ValueError:
            broken += 1
    assert broken in (1, 2)  # the torn one, glued to nothing; and one if the doomed was killed in the middle of it


def test_every_byte_at_which_a_writer_may_be_killed(tmp_path: Path) -> None:
    add(tmp_path, IndexEntry(kind="sweep", folder="lab/first"))
    one = (tmp_path / FILE).read_bytes()
    for size in range(len(one) + 1):
        (tmp_path / FILE).write_bytes(one + one[:size])
        add(tmp_path, IndexEntry(kind="sweep", folder="lab/second"))
        assert [Path(entry.folder).name for entry in scan(tmp_path)] == ["first", "second"]


def test_folders_are_found_with_the_index_and_without(tmp_path: Path) -> None:
    runs, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    write_run(runs / "mnist")
    write_experiment(runs / "lab" / "scaling-1")
    write_outcome(write_run(runs / "lab" / "scaling-1" / "trials" / "w1"))  # part of the experiment
    write_experiment(elsewhere, started="2026-01-01T00:00:00.000Z")
    (runs / "empty").mkdir()
    (runs / "corrupt").mkdir()
    (runs / "corrupt" / "run.json").write_text("{")
    for folder, kind in ((elsewhere, "scaling"), (runs / "lab" / "scaling-1", "scaling"), (runs / "gone", "sweep")):
        add(runs, IndexEntry(kind=kind, folder=str(folder), started="2026-02-01T00:00:00.000Z"))
    found = {os.path.relpath(entry.folder, tmp_path): entry.kind for entry in scan(runs)}
    assert found == {
        "runs/corrupt": "", "elsewhere": "scaling", "runs/gone": "sweep", "runs/lab/scaling-1": "scaling",
        "runs/mnist": "run",
    }  # fmt: skip
    moved = tmp_path / "moved"
    shutil.move(runs, moved)
    assert str(moved / "lab" / "scaling-1") in {entry.folder for entry in scan(moved)}  # once, and where it is now
    assert len(scan(moved)) == len(found)
