"""Checkpoints under fire: killed writers, damaged files, full disks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

import pytest

from hora.checkpoint import CheckpointStore
from hora.errors import DamagedCheckpoint, UsageError


def save(store: CheckpointStore, position: int, data: bytes = b"x" * 1000, **facts: float) -> None:
    store.save(f"step-{position}.pt", lambda file: file.write(data), position=position, facts=facts)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_last_ones_and_the_best_stay(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2, best="accuracy")
    for position, accuracy in enumerate([0.1, 0.9, 0.5, 0.6, 0.7]):
        save(store, position, accuracy=accuracy)
    assert [checkpoint.position for checkpoint in store.all()] == [1, 3, 4]
    best, latest = store.best(), store.latest()
    assert best and best.facts == {"accuracy": 0.9} and latest and latest.position == 4
    assert len(names(tmp_path)) == 6


def test_the_lowest_can_be_the_best_and_all_can_stay(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=0, best="loss", highest=False)
    for position, loss in enumerate([3.0, 1.0, 2.0, 1.0]):
        save(store, position, loss=loss)
    best = store.best()
    assert best and best.position == 3 and len(store.all()) == 4


def test_an_empty_or_missing_folder_has_none(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "none" / "yet")
    assert store.latest() is None and store.best() is None and store.all() == []


def test_folders_that_are_not_there_are_made(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "runs" / "first" / "checkpoints")
    saved = store.save("a.bin", lambda file: file.write(b"weights"), position=1)
    assert saved.path == tmp_path / "runs" / "first" / "checkpoints" / "a.bin"
    assert saved.path.read_bytes() == b"weights" and store.latest() == saved


def test_a_damaged_one_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    save(store, 2)
    newest = store.all()[-1]
    with open(newest.path, "r+b") as file:  # the same size, another content
        file.seek(500)
        file.write(b"y")
    with pytest.raises(DamagedCheckpoint, match=r"step-2\.pt is damaged"):
        newest.verify()
    latest = store.latest()
    assert latest and latest.position == 1
    assert "step-2.pt is damaged" in caplog.text
    os.truncate(newest.path, 10)
    assert [checkpoint.position for checkpoint in store.all()] == [1]


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1, b"good")

    def fails(file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        store.save("step-1.pt", fails, position=1)
    latest = store.latest()
    assert latest and latest.path.read_bytes() == b"good"
    assert names(tmp_path) == ["step-1.pt", "step-1.pt.json"]


def test_one_of_the_same_name_is_replaced(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1, b"old")
    save(store, 1, b"new!")
    latest = store.latest()
    assert latest and latest.path.read_bytes() == b"new!" and latest.nbytes == 4


def test_only_a_killed_writer_makes_readers_look_at_the_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing checkpoints of gigabytes must not read them, even if one has taken the place of another of its size."""
    store = CheckpointStore(tmp_path)
    save(store, 1, b"old")
    save(store, 1, b"new")
    monkeypatch.setattr("hora.checkpoint.store._checksum", lambda path: pytest.fail(f"{path} was read"))
    assert [checkpoint.nbytes for checkpoint in store.all()] == [3]


@pytest.mark.parametrize("name", ["../out.pt", "a/b.pt", "x.json", "x.part", ""])
def test_a_name_that_would_lead_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        CheckpointStore(tmp_path).save(name, lambda file: None, position=0)


WRITER = """
import sys
from hora.checkpoint import CheckpointStore
store, names = CheckpointStore(sys.argv[1], keep=2), int(sys.argv[2])
latest = store.latest()
position = int(latest.position) if latest else 0
print(position, flush=True)
while True:
    position += 1
    data = position.to_bytes(8, "big") * 100_000
    store.save(f"step-{position % names}.bin", lambda file: file.write(data), position=position)
    print(position, flush=True)
"""


@pytest.mark.parametrize("different_names", [1, 3])
def test_killed_at_any_moment_there_is_always_a_whole_one(tmp_path: Path, different_names: int) -> None:
    """Thirty kill -9 at random moments: what counts is whole, never older than before, and the next run goes on."""
    generator = random.Random(7)
    before = 0
    for _ in range(30):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(different_names)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        try:
            began = int(process.stdout.readline())
            if not before:
                assert process.stdout.readline()  # one is there
            deadline = time.monotonic() + generator.uniform(0.0, 0.05)
            while time.monotonic() < deadline:
                pass
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(30)
            process.stdout.close()
        assert began >= before
        latest = CheckpointStore(tmp_path).latest()
        assert latest is not None or not before
        if latest is not None:
            latest.verify()
            assert latest.path.read_bytes() == int(latest.position).to_bytes(8, "big") * 100_000
            assert latest.position >= began
            before = int(latest.position)
    assert before > 0
