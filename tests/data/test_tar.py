"""Tar shards against Python's own tarfile and the tar program; damage of every kind is named, with its place."""

from __future__ import annotations

import contextlib
import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hora.data.shards import INDEX_FILE
from hora.data.source import Sample
from hora.data.tar import TarShards, write_tar
from hora.errors import BadData

FILES = {"a.jpg": b"first", "a.cls": b"2", "b.json": b'{"label": 0, "text": "b"}', "b.PNG": b"second"}


def archive(path: Path, files: dict[str, bytes], form: int = tarfile.GNU_FORMAT, kind: bytes = tarfile.REGTYPE) -> Path:
    """Made by Python's own writer."""
    with tarfile.open(path, "w", format=form) as out:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.type = len(data), kind
            out.addfile(member, io.BytesIO(data))
    return path


def samples(*paths: Path, **more: int) -> list[Sample]:
    source = TarShards(paths, **more)
    return [source.read(index) for index in range(len(source))]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("folder", ["", "train/", "long/" * 30])
def test_archives_of_every_form(tmp_path: Path, form: int, folder: str) -> None:
    files = {folder + name: data for name, data in FILES.items()}
    files |= {
        f"{folder}._a.jpg": b"of macOS",
        f"{folder}ü{'x' * 60}.jpeg": b"third",
        f"{folder}ü{'x' * 60}.cls": b" 1\n",
    }
    path = archive(tmp_path / "x.tar", files, form)
    assert samples(path) == [Sample(b"first", 2), Sample(b"second", 0), Sample(b"third", 1)]


def test_archives_of_the_tar_program(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for name, data in FILES.items():
        (tmp_path / "set" / name).write_bytes(data)
    subprocess.run(["tar", "cf", "x.tar", "--sort=name", "set"], cwd=tmp_path, check=True, timeout=30)
    assert samples(tmp_path / "x.tar") == [Sample(b"first", 2), Sample(b"second", 0)]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.builds(Sample, st.binary(max_size=1500), st.integers(0, 999)), min_size=1, max_size=6))
def test_what_is_written_is_read_by_us_and_by_others(tmp_path: Path, written: list[Sample]) -> None:
    assert write_tar(tmp_path / "x.tar", written, first=7) == len(written)
    assert samples(tmp_path / "x.tar") == written
    with tarfile.open(tmp_path / "x.tar") as found:
        names = [name for number in range(len(written)) for name in (f"{number + 7:09d}.jpg", f"{number + 7:09d}.cls")]
        assert found.getnames() == names
        (tmp_path / INDEX_FILE).unlink()  # the next may have the same size, and be written within the clock's tick


def test_many_shards_are_one_row_of_samples(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    paths = [tmp_path / "0.tar", tmp_path / "more" / "1.tar", tmp_path / "2.tar"]  # not folder by folder
    for number, path in enumerate(paths):
        write_tar(path, [Sample(bytes([number, index]), index) for index in range(number + 1)])
    source = TarShards(paths)
    assert [source.read(index).data for index in range(6)] == [bytes([a, b]) for a in range(3) for b in range(a + 1)]
    assert source.name(5).startswith(f"{paths[2]}, record 2 at byte ")
    for outside in (-1, 6):
        with pytest.raises(IndexError):
            source.read(outside)


def test_labels_may_begin_with_one(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", [Sample(b"a", 1), Sample(b"b", 3)])
    assert [label for _, label in samples(tmp_path / "x.tar", first_label=1)] == [0, 2]
    with pytest.raises(BadData, match=r"x\.tar, record 0 at byte 512 has label 1, but labels are 2 to 3"):
        samples(tmp_path / "x.tar", first_label=2)


def test_classes_are_named_by_a_file_beside_or_above(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    write_tar(tmp_path / "train" / "x.tar", [Sample(b"a", 1)])
    assert TarShards([tmp_path / "train" / "x.tar"]).classes == ("0", "1")
    (tmp_path / "classes.txt").write_text("cat\ndog\nowl\n")
    assert TarShards([tmp_path / "train" / "x.tar"]).classes == ("cat", "dog", "owl")
    (tmp_path / "train" / "classes.txt").write_text("cat\n")
    with pytest.raises(BadData, match="record 0 at byte 512 has label 1, but labels are 0 to 0"):
        TarShards([tmp_path / "train" / "x.tar"])


WRONG = {
    "no label": ({"a.jpg": b"x"}, r"sample 'a' at byte 512 has no label"),
    "not a number": ({"a.jpg": b"x", "a.cls": b"cat"}, r"a\.cls in .* at byte 1536 is b'cat', not a label"),
    "no label in JSON": ({"a.jpg": b"x", "a.json": b'{"label": "cat"}'}, "has no label"),
    "not JSON": ({"a.jpg": b"x", "a.json": b"{"}, r"a\.json in .* is b'\{', not a label"),
    "no image": ({"a.txt": b"x", "a.cls": b"1"}, r"has no image .* only \.txt, \.cls"),
    "files apart": ({"a.jpg": b"x", "b.jpg": b"x", "a.cls": b"1", "b.cls": b"1"}, "sample 'a' .* has no label"),
    "negative": ({"a.jpg": b"x", "a.cls": b"-1"}, "has label -1"),
    "too large": ({"a.jpg": b"x", "a.cls": b"9" * 30}, "record 0 at byte 512 has label 9{30}, which is not"),
    "nothing": ({}, "hold no sample"),
}


@pytest.mark.parametrize(("files", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_sample_is_said(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    path = archive(tmp_path / "x.tar", files)
    with pytest.raises(BadData, match=said) as refused:
        TarShards([path])
    assert str(path) in str(refused.value)


def test_damaged_archives_are_refused_by_name_and_place(tmp_path: Path) -> None:
    whole = archive(tmp_path / "x.tar", FILES).read_bytes()
    end = 4 * 1024  # four headers, four files of a block each
    flipped = bytearray(whole)
    flipped[1024 + 3] ^= 1  # in the second header
    cases = {
        whole[:0]: "ends at byte 0 without",
        whole[:100]: "ends at byte 100 without",
        whole[: end - 100]: r"ends at byte 3996, inside 'b\.PNG', which begins at byte 3584",
        whole[:1024]: "ends at byte 1024 without the archive's end mark",  # which tarfile does not mind
        whole[:end]: "ends at byte 4096 without",
        bytes(flipped): "is damaged at byte 1024",
        b"\x89PNG" + whole[4:]: "begins with 89 50 4e 47",
        b"\x1f\x8b" + whole[2:]: "compressed with gzip, which has no random access",
    }
    for data, said in cases.items():
        (tmp_path / "x.tar").write_bytes(data)
        with pytest.raises(BadData, match=said) as refused:
            TarShards([tmp_path / "x.tar"])
        assert str(tmp_path / "x.tar") in str(refused.value)
    archive(tmp_path / "x.tar", {"a.jpg": b""}, kind=tarfile.SYMTYPE)
    with pytest.raises(BadData, match=r"has 'a\.jpg' of type b'2' at byte 0"):
        TarShards([tmp_path / "x.tar"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_refused_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    """A flipped byte in a header is always found; in a file it changes that file's bytes or label, or is found."""
    broken = bytearray(archive(tmp_path / "x.tar", FILES).read_bytes())
    broken[data.draw(st.integers(0, len(broken) - 1))] ^= data.draw(st.integers(1, 255))
    (tmp_path / "y.tar").write_bytes(broken[: data.draw(st.integers(0, len(broken)))])
    with contextlib.suppress(BadData):
        assert len(samples(tmp_path / "y.tar")) == 2
    (tmp_path / INDEX_FILE).unlink(missing_ok=True)
