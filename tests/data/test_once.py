"""One process makes a folder, others wait for it; it is whole or not there."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from hora.data.once import folder_lock, whole
from hora.errors import EnvironmentUnfit


class Told:
    """Remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.seen: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, what: str, done: int, total: int, unit: str = "B") -> None:
        self.seen.append(what)


def test_turns_are_taken_and_nothing_is_left(tmp_path: Path) -> None:
    target, inside, most, lock = tmp_path / "deep" / "set", 0, 0, threading.Lock()

    def one() -> None:
        nonlocal inside, most
        for _ in range(20):
            with folder_lock(target, wait_s=60):
                with lock:
                    inside += 1
                    most = max(most, inside)
                with lock:
                    inside -= 1

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == 1 and list((tmp_path / "deep").iterdir()) == []


def test_whoever_waits_is_shown_how_far_it_is(tmp_path: Path) -> None:
    told = Told()
    with folder_lock(tmp_path / "set") as mine:
        mine.progress("copying", 3_000_000, 9_000_000)
        with (
            pytest.raises(EnvironmentUnfit, match=r"copying, 2\.86 MB of 8\.58 MB"),
            folder_lock(tmp_path / "set", wait_s=0.1, reporter=told),
        ):
            pass
    assert any("2.86 MB of 8.58 MB" in text for text in told.seen)
    assert told.notes == [f"{tmp_path / 'set'} is being made by another process; waiting for it."]


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", cannot)
    told = Told()
    with folder_lock(tmp_path / "set", reporter=told):
        pass
    assert "without locks" in told.notes[0]


def test_a_folder_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    for content in ("old", "new"):
        with whole(tmp_path / "set") as folder:
            (folder / content).write_text(content)
    assert [path.name for path in tmp_path.rglob("*")] == ["set", "new"]


def test_what_an_interrupted_one_left_is_gone(tmp_path: Path) -> None:
    (tmp_path / ".set.part").mkdir()
    (tmp_path / ".set.part" / "half").write_text("half")
    with whole(tmp_path / "set") as folder:
        (folder / "all").write_text("all")
    assert [path.name for path in tmp_path.rglob("*")] == ["set", "all"]


def test_if_it_fails_the_older_one_stays(tmp_path: Path) -> None:
    with whole(tmp_path / "set") as folder:
        (folder / "old").write_text("old")
    with pytest.raises(RuntimeError), whole(tmp_path / "set") as folder:
        (folder / "new").write_text("new")
        raise RuntimeError
    assert [path.name for path in tmp_path.rglob("*")] == ["set", "old"]


def test_a_lock_that_leads_elsewhere_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("years of work")
    (tmp_path / ".set.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(EnvironmentUnfit, match=r"\.set\.lock is a link"), folder_lock(tmp_path / "set"):
        pass
    assert (tmp_path / "precious").read_text() == "years of work"


def test_a_lock_of_somebody_else_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / ".pipe.lock")
    with pytest.raises(EnvironmentUnfit, match="is not a file of yours"), folder_lock(tmp_path / "pipe"):
        pass
    (tmp_path / ".set.lock").write_text("theirs")
    real, other = os.fstat, os.geteuid() + 1

    def foreign(descriptor: int) -> os.stat_result:
        values = list(real(descriptor))
        values[4] = other  # st_uid
        return os.stat_result(values)

    monkeypatch.setattr(os, "fstat", foreign)
    with pytest.raises(EnvironmentUnfit, match=f"of user {other}"), folder_lock(tmp_path / "set"):
        pass
    assert (tmp_path / ".set.lock").read_text() == "theirs"
