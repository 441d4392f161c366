"""Staging: once a node, whole or not there, again if the source changes; many processes at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from tests.launch.jobs import clean_environment, wait_until

from hora.data import stage as stage_module
from hora.data.once import folder_lock
from hora.data.stage import NOTE, stage
from hora.errors import BadData, EnvironmentUnfit, UsageError

FILES = {"train/a/1.JPEG": b"one" * 1000, "train/b/2.JPEG": b"two", "val/a/3.JPEG": b"", "GENERATED.json": b"{}"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "shared" / "images"
    for name, data in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != NOTE
    }


def test_a_folder_is_copied_once(tmp_path: Path, source: Path) -> None:
    first = stage(source, tmp_path / "local")
    assert first.folder == tmp_path / "local" / "images" and first.how == "copied"
    assert contents(first.folder) == FILES
    assert (first.files, first.nbytes) == (4, 3003 + 2)
    before = (first.folder / NOTE).stat().st_mtime_ns
    again = stage(source, tmp_path / "local")
    assert again.how == "there" and not again.by_other and again.nbytes == first.nbytes
    assert (first.folder / NOTE).stat().st_mtime_ns == before
    assert [path.name for path in (tmp_path / "local").iterdir()] == ["images"]


def test_links_are_followed(tmp_path: Path, source: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "4.JPEG").write_bytes(b"four")
    (source / "train" / "c").symlink_to(elsewhere)
    staged = stage(source, tmp_path / "local")
    assert contents(staged.folder) == {**FILES, "train/c/4.JPEG": b"four"}
    assert not (staged.folder / "train" / "c").is_symlink()
    (source / "train" / "loop").symlink_to(source)
    with pytest.raises(UsageError, match="it has no end"):
        stage(source, tmp_path / "local")
    (source / "train" / "loop").unlink()
    (source / "train" / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="is a broken link"):
        stage(source, tmp_path / "local")


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tgz", "tar.xz"])
def test_a_tar_file_is_unpacked(tmp_path: Path, source: Path, ending: str) -> None:
    archive = tmp_path / f"set-1.0.{ending}"
    kinds = {"tar": "w:", "tar.gz": "w:gz", "tgz": "w:gz", "tar.xz": "w:xz"}
    with tarfile.open(archive, kinds[ending]) as file:  # type: ignore[call-overload]
        file.add(source, ".")
    staged = stage(archive, tmp_path / "local")
    assert staged.folder == tmp_path / "local" / "set-1.0" and staged.how == "unpacked"
    assert contents(staged.folder) == FILES
    assert stage(archive, tmp_path / "local").how == "there"


def test_a_source_that_changed_is_brought_again(tmp_path: Path, source: Path) -> None:
    stage(source, tmp_path / "local")
    (source / "train/b/2.JPEG").write_bytes(b"owt")  # as long as before
    os.utime(source / "train/b/2.JPEG", ns=(1, 1))
    (source / "val/a/3.JPEG").unlink()
    staged = stage(source, tmp_path / "local")
    assert staged.how == "copied"
    assert contents(staged.folder) == contents(source)
    assert [path.name for path in (tmp_path / "local").iterdir()] == ["images"]


def test_what_a_cleaner_took_is_brought_again(tmp_path: Path, source: Path) -> None:
    staged = stage(source, tmp_path / "local")
    (staged.folder / "train/a/1.JPEG").unlink()
    assert stage(source, tmp_path / "local").how == "copied"
    assert contents(staged.folder) == FILES


def test_what_hora_did_not_stage_is_left_alone(tmp_path: Path, source: Path) -> None:
    mine = tmp_path / "local" / "images"
    mine.mkdir(parents=True)
    (mine / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="was not staged by Hora"):
        stage(source, tmp_path / "local")
    assert (mine / "thesis.tex").read_text() == "years of work"


def test_poisoned_data_does_not_pass_as_intact(tmp_path: Path, source: Path) -> None:
    copy = stage(source, tmp_path / "local").folder / "train/b/2.JPEG"
    before = copy.stat()
    copy.write_bytes(b"bad")  # as long, and as old
    os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert stage(source, tmp_path / "local").how == "copied"
    assert copy.read_bytes() == b"two"
    copy.unlink()
    copy.symlink_to(tmp_path / "nowhere")
    assert stage(source, tmp_path / "local").how == "copied"
    assert copy.read_bytes() == b"two" and not copy.is_symlink()


def test_only_this_user_can_open_what_was_staged(tmp_path: Path, source: Path) -> None:
    before = os.umask(0)
    try:
        staged = stage(source, tmp_path / "local")
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "local", staged.folder)] == [0o700, 0o700]


def test_what_somebody_else_put_in_its_place_is_refused(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data, its note and everything are right; but they are another user's, who may change them when they like."""
    staged = stage(source, tmp_path / "local")
    staged.folder.rename(tmp_path / "poisoned")
    staged.folder.symlink_to(tmp_path / "poisoned")
    with pytest.raises(EnvironmentUnfit, match="local/images is a link"):
        stage(source, tmp_path / "local")
    staged.folder.unlink()
    (tmp_path / "poisoned").rename(staged.folder)
    owner, other = os.geteuid(), os.geteuid() + 1
    monkeypatch.setattr(stage_module, "check_place", lambda folder: None)  # sticky, and root's
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(EnvironmentUnfit, match=f"local/images belongs to user {owner}, so what is in it cannot"):
        stage(source, tmp_path / "local")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("nothing", f"does not exist on {socket.gethostname()}"),
        ("shared/images/train/b/2.JPEG", "neither a folder nor a tar"),
        ("empty", "no files to stage"),
    ],
)
def test_wrong_sources_are_refused(tmp_path: Path, source: Path, what: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=said):
        stage(tmp_path / what, tmp_path / "local")
    assert not (tmp_path / "local").exists() or not any((tmp_path / "local").iterdir())


def test_into_itself_is_refused(tmp_path: Path, source: Path) -> None:
    for place in (source, source / "train", source.parent):
        with pytest.raises(UsageError, match="elsewhere"):
            stage(source, place)


def test_a_damaged_tar_leaves_nothing(tmp_path: Path, source: Path) -> None:
    archive = tmp_path / "set.tar"
    with tarfile.open(archive, "w") as file:
        file.add(source, ".")
    archive.write_bytes(archive.read_bytes()[:5000])
    with pytest.raises(BadData, match=r"set\.tar cannot be unpacked"):
        stage(archive, tmp_path / "local")
    assert list((tmp_path / "local").iterdir()) == []


def test_a_tar_that_reaches_outside_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "evil.tar", "w") as file:
        member = tarfile.TarInfo("../../outside")
        file.addfile(member)
    with pytest.raises(BadData, match="outside"):
        stage(tmp_path / "evil.tar", tmp_path / "local")
    assert list((tmp_path / "local").iterdir()) == []


def test_too_little_room_is_said_before_anything_is_copied(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(EnvironmentUnfit, match=r"takes at least 2\.93 KB, and .* has 100 B free"):
        stage(source, tmp_path / "local")
    assert list((tmp_path / "local").iterdir()) == []


def test_a_file_that_grows_meanwhile_is_noticed(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.copyfile
    monkeypatch.setattr(
        shutil, "copyfile", lambda path, to: ((source / "train/b/2.JPEG").write_bytes(b"more and more"), real(path, to))
    )
    with pytest.raises(BadData, match="somebody is writing it"):
        stage(source, tmp_path / "local")
    assert list((tmp_path / "local").iterdir()) == []


RANK = """
import json, sys, time
from pathlib import Path
from hora.data import stage as module
copied = module.shutil.copyfile
def slowly(path, to):
    open(sys.argv[3], "a").write(f"{path}\\n")
    time.sleep(0.02)
    return copied(path, to)
module.shutil.copyfile = slowly
staged = module.stage(Path(sys.argv[1]), Path(sys.argv[2]), wait_s=30)
print(json.dumps([str(staged.folder), staged.how, staged.by_other, staged.files]))
"""


def rank(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RANK, *map(str, arguments)],
        env=clean_environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_four_ranks_bring_it_once(tmp_path: Path, source: Path) -> None:
    log = tmp_path / "log"
    ranks = [rank(source, tmp_path / "local", log) for _ in range(4)]
    said = [json.loads(one.communicate(timeout=30)[0]) for one in ranks]
    assert {(folder, files) for folder, _, _, files in said} == {(str(tmp_path / "local" / "images"), 4)}
    assert sorted(how for _, how, _, _ in said) == ["copied", "there", "there", "there"]
    assert len(log.read_text().splitlines()) == len(FILES)
    assert contents(tmp_path / "local" / "images") == FILES


def test_one_that_is_killed_leaves_nothing_that_looks_complete_and_the_next_takes_over(
    tmp_path: Path, source: Path
) -> None:
    for n in range(400):
        (source / f"{n}.bin").write_bytes(b"x")
    log = tmp_path / "log"
    first = rank(source, tmp_path / "local", log)
    wait_until(lambda: log.exists() and len(log.read_text()) > 0, what="the first to copy")
    second = rank(source, tmp_path / "local", log)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=10)
    assert not (tmp_path / "local" / "images").exists()
    _, how, _, files = json.loads(second.communicate(timeout=30)[0])
    assert (how, files) == ("copied", 404)
    assert sorted(path.name for path in (tmp_path / "local").iterdir()) == ["images"]


def test_a_wait_has_an_end(tmp_path: Path, source: Path) -> None:
    with (
        folder_lock(tmp_path / "local" / "images") as other,
        pytest.raises(EnvironmentUnfit, match=rf"not ready after 0\.2 s: .*process {os.getpid()}: copying, 1 B of 2 B"),
    ):
        other.progress("copying", 1, 2)
        stage(source, tmp_path / "local", wait_s=0.2)


def test_whoever_waited_does_not_read_the_source_again(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage(source, tmp_path / "local")
    note = tmp_path / "local" / "images" / NOTE
    later = json.loads(note.read_bytes()) | {"completed": time.time() + 60}
    note.write_text(json.dumps(later))
    shutil.rmtree(source / "train")  # would be seen
    looked = []
    monkeypatch.setattr(stage_module, "_source_files", lambda path: looked.append(path))

    class Waited:
        waited = True

    class Turned:
        def __enter__(self) -> Waited:
            return Waited()

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(stage_module, "folder_lock", lambda *_, **__: Turned())
    staged = stage(source, tmp_path / "local")
    assert staged.how == "there" and staged.by_other and looked == []
