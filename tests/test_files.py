"""Files are whole or not there: whatever fails or is killed while one is written, it is the old or the new one."""

from __future__ import annotations

import math
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.launch.jobs import clean_environment

from hora.errors import UsageError
from hora.files import from_json, json_text, replacing, replacing_path, write_json

OLD, NEW = b"old " * 1000, b"new " * 2000


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_new_content_is_there_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    with replacing(path) as file:
        for at in range(0, len(NEW), 100):
            file.write(NEW[at : at + 100])
            assert path.read_bytes() == OLD
        file.flush()
        assert path.read_bytes() == OLD and len(names(tmp_path)) == 2
    assert path.read_bytes() == NEW and names(tmp_path) == ["file"]


@pytest.mark.parametrize("there_before", [True, False])
@pytest.mark.parametrize("trouble", ["block", "interrupt", "write", "fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str, there_before: bool
) -> None:
    path = tmp_path / "file"
    if there_before:
        path.write_bytes(OLD)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if trouble == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    if trouble == "replace":
        monkeypatch.setattr(Path, "replace", full)
    kind = {"block": ZeroDivisionError, "interrupt": KeyboardInterrupt}.get(trouble, OSError)
    with pytest.raises(kind), replacing(path) as file:
        file.write(NEW)
        if trouble == "write":
            full()
        if trouble in ("block", "interrupt"):
            raise kind
    monkeypatch.undo()
    assert names(tmp_path) == (["file"] if there_before else [])
    assert not there_before or path.read_bytes() == OLD


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut a name without its content would be an empty file in the place of the old one."""
    path, order = tmp_path / "file", []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        order.append(("fsync", os.fstat(descriptor).st_size))
        fsync(descriptor)

    def renamed(part: Path, to: Path) -> Path:
        order.append(("replace", part.stat().st_size))
        return replace(part, to)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    with replacing(path) as file:
        file.write(NEW)
    assert order == [("fsync", len(NEW)), ("replace", len(NEW))]
    order.clear()
    with replacing(path, durable=False) as file:
        file.write(NEW)
    assert order == [("replace", len(NEW))]


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "file") as file:
            assert file.write(NEW) == len(NEW)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "file")
    for content in (OLD, NEW):  # at first it leads to nothing
        with replacing(tmp_path / "link") as file:
            file.write(content)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "elsewhere" / "file").read_bytes() == content
    assert names(tmp_path) == ["elsewhere", "link"] and names(tmp_path / "elsewhere") == ["file"]


def test_what_is_no_file_is_written_itself(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    with replacing(pipe) as file:
        file.write(NEW)
    reader.join(20)
    assert received == [NEW] and stat.S_ISFIFO(pipe.stat().st_mode) and names(tmp_path) == ["pipe"]


def test_several_may_write_at_once_and_one_is_last(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([65 + writer]) * 50_000 for writer in range(4)]

    def write(content: bytes) -> None:
        for _ in range(20):
            with replacing(path, durable=False) as file:
                file.write(content)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert not path.exists() or path.read_bytes() in contents
    for thread in threads:
        thread.join(20)
    assert path.read_bytes() in contents and names(tmp_path) == ["file"]


def test_a_name_for_whoever_opens_files_themselves(tmp_path: Path) -> None:
    with replacing_path(tmp_path / "a.h5") as part:
        assert part.parent == tmp_path and part.name.startswith(".a.h5.") and not part.exists()
        part.write_bytes(NEW)
    with pytest.raises(ZeroDivisionError), replacing_path(tmp_path / "a.h5") as part:
        part.write_bytes(OLD)
        raise ZeroDivisionError
    with pytest.raises(FileNotFoundError), replacing_path(tmp_path / "a.h5"):
        pass  # nothing was written
    assert names(tmp_path) == ["a.h5"] and (tmp_path / "a.h5").read_bytes() == NEW


WRITER = """
import os, signal, sys
from pathlib import Path
from hora import files

left = int(sys.argv[2])

def kill_around(owner, name):
    real = getattr(owner, name)
    def around(*arguments, **more):
        mark()
        result = real(*arguments, **more)
        mark()
        return result
    setattr(owner, name, around)

def mark():
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1

kill_around(os, "fsync")
kill_around(Path, "replace")
with files.replacing(Path(sys.argv[1])) as file:
    for at in range(4):
        mark()
        file.write(b"new " * 500)
        file.flush()
    mark()
"""


def test_killed_at_any_moment_the_file_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    path, seen = tmp_path / "file", []
    for moment in range(20):
        path.write_bytes(OLD)
        done = subprocess.run(
            [sys.executable, "-c", WRITER, str(path), str(moment)], env=clean_environment(), timeout=60
        )
        seen.append(path.read_bytes())
        assert seen[-1] in (OLD, NEW)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
    assert seen == [OLD] * 8 + [NEW] * 2  # 5 marks while it is written, 2 around fsync, 2 around the renaming


def test_json_is_for_people_and_programs(tmp_path: Path) -> None:
    assert json_text({"a": [1, None], "ä": float("nan")}) == '{\n "a": [\n  1,\n  null\n ],\n "ä": null\n}\n'.encode()
    write_json(tmp_path / "new" / "folder" / "x.json", {"a": 1}, "--json")
    assert (tmp_path / "new" / "folder" / "x.json").read_bytes() == b'{\n "a": 1\n}\n'
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--json .*file/x.json cannot be written: File exists. Give another"):
        write_json(tmp_path / "file" / "x.json", {}, "--json")


class Inner(msgspec.Struct):
    rate: float = 1.0
    maybe: float | None = 2.0
    text: str = "default"


class Outer(msgspec.Struct):
    inner: Inner
    many: list[float] = []
    by_rank: dict[int, float] = {}
    inners: list[Inner] = []
    facts: dict[str, Any] = {}


def test_numbers_that_json_does_not_have_come_back_as_nan() -> None:
    bad = Inner(rate=math.inf, maybe=None)
    outer = Outer(bad, [0.5, math.nan], {3: -math.inf, 4: 1.5}, [bad, Inner()], {"loss": math.nan, "lr": None})
    back = from_json(json_text(outer), Outer)
    assert math.isnan(back.inner.rate) and back.inner.maybe is None and math.isnan(back.inners[0].rate)
    assert back.many[0] == 0.5 and math.isnan(back.many[1]) and back.inners[1] == Inner()
    assert math.isnan(back.by_rank[3]) and back.by_rank[4] == 1.5
    assert back.facts == {"loss": None, "lr": None}  # nobody said that these are numbers
    assert from_json(b'{"inner": {"text": null}}', Outer).inner.text == "default"
    for wrong in (b'{"inner": 3}', b'{"many": [1.0]}', b"[", b'{"inner": {}, "many": ["1"]}'):
        with pytest.raises(msgspec.DecodeError):
            from_json(wrong, Outer)
