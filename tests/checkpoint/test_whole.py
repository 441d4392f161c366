"""Files are whole or not there, whatever happens while they are written; what is no ordinary file is written itself."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hora.checkpoint.whole import replacing, replacing_path, write_json
from hora.errors import UsageError


@pytest.mark.parametrize("durable", [True, False])
def test_until_it_ends_well_the_old_one_stays(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "labels"
    path.write_bytes(b"old")
    with replacing(path, durable=durable) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 2
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_of_one_that_fails_nothing_is_left(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "labels"
    path.write_bytes(b"old")
    with pytest.raises(error), replacing(path) as file:
        file.write(b"half of")
        raise error
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(error), replacing_path(path):  # which has not even been made
        raise error
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "labels", tmp_path / "labels"
    real.write_bytes(b"old")
    link.symlink_to(real)
    with replacing(link) as file:
        file.write(b"new")
    assert link.is_symlink() and real.read_bytes() == b"new"


def test_a_pipe_is_written_itself(tmp_path: Path) -> None:
    path, got = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()), daemon=True)
    reader.start()
    with replacing(path) as file:
        file.write(b"through it")
    reader.join(60)
    assert got == [b"through it"] and path.is_fifo()


def test_writers_at_once_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    with replacing(path) as one, replacing(path) as other:
        one.write(b"one" * 1000)
        other.write(b"other" * 1000)
    assert path.read_bytes() == b"one" * 1000 and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_told_with_the_flag(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--json .*/file/result.json cannot be written: File exists"):
        write_json(tmp_path / "file" / "result.json", {}, "--json")
