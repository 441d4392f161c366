"""The index beside the shards: made once, by anybody, whole; harmless when it is old, damaged or cannot be written."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path

import pytest

from hora.data.shards import INDEX_FILE, expand, shares
from hora.data.source import Sample
from hora.data.tar import TarShards, write_tar
from hora.data.tfrecord import TFRecordShards
from hora.errors import BadData

SAMPLES = [Sample(bytes([number]) * 700, number) for number in range(10)]


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"train-{number}.tar" for number in range(3)]
    for path, share in zip(paths, shares(len(SAMPLES), 3), strict=True):
        write_tar(path, SAMPLES[share.start : share.stop])
    return paths


def everything(source: TarShards) -> list[Sample]:
    return [source.read(index) for index in range(len(source))]


def forbid_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(*_: object) -> None:
        raise AssertionError("scanned")

    monkeypatch.setattr(TarShards, "scan", scan)


def test_a_second_opening_does_not_scan(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert everything(TarShards(shards)) == SAMPLES
    forbid_scans(monkeypatch)
    assert everything(TarShards(shards)) == SAMPLES
    assert everything(TarShards(shards[1:])) == SAMPLES[3:]
    assert sorted(path.name for path in shards[0].parent.iterdir()) == [INDEX_FILE, *(path.name for path in shards)]


def test_only_a_changed_shard_is_scanned(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    TarShards(shards)
    scanned = []
    real = TarShards.scan
    monkeypatch.setattr(TarShards, "scan", lambda self, data, path: scanned.append(path) or real(self, data, path))
    write_tar(shards[1], [Sample(b"new", 1), Sample(b"newer", 2)])
    assert [sample.data for sample in everything(TarShards(shards))[3:5]] == [b"new", b"newer"]
    state = shards[2].stat()
    os.utime(shards[2], ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    TarShards(shards)
    assert scanned == [shards[1], shards[2]]


@pytest.mark.parametrize("damage", [b"", b"\x00", b"not an index", None])
def test_a_damaged_index_is_made_anew(shards: list[Path], damage: bytes | None) -> None:
    TarShards(shards)
    index = shards[0].with_name(INDEX_FILE)
    whole = index.read_bytes()
    index.write_bytes(whole[:-5] if damage is None else damage)
    assert everything(TarShards(shards)) == SAMPLES
    assert index.read_bytes() == whole


def test_a_shard_of_another_kind_under_the_same_name(shards: list[Path]) -> None:
    TarShards(shards)
    with pytest.raises(BadData, match="no header of a TFRecord file"):
        TFRecordShards(shards)


def test_without_the_right_to_write_the_index_is_in_memory(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("hora.data.shards.replacing", refuse)  # tests may run as root, whom no mode stops
    assert everything(TarShards(shards)) == SAMPLES
    assert not shards[0].with_name(INDEX_FILE).exists()


def _open(shards: list[Path]) -> list[Sample]:
    return everything(TarShards(shards))


def test_many_processes_open_and_read_at_once(shards: list[Path]) -> None:
    """Each makes the index; then they read with descriptors that a fork shares, which have no common position."""
    source = TarShards(shards)
    shards[0].with_name(INDEX_FILE).unlink()
    everything(source)  # opens them all
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(_open, [shards] * 8) == [SAMPLES] * 8
        assert pool.map(source.read, list(range(10)) * 20, chunksize=1) == SAMPLES * 20
    assert everything(pickle.loads(pickle.dumps(source))) == SAMPLES
    assert sorted(path.name for path in shards[0].parent.iterdir()) == [INDEX_FILE, *(path.name for path in shards)]


def test_more_shards_than_may_be_open(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hora.data.shards._MOST_OPEN", 1)
    before = len(os.listdir("/proc/self/fd"))
    source = TarShards(shards)
    assert everything(source) == SAMPLES
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del source
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_shard_that_shrinks_while_it_is_used(shards: list[Path]) -> None:
    source = TarShards(shards)
    os.truncate(shards[0], 1000)
    with pytest.raises(BadData, match=r"train-0\.tar, record 0 at byte 512 should have 700 bytes, .* after 488"):
        source.read(0)


def test_numbers_in_braces_and_wildcards(tmp_path: Path) -> None:
    assert [path.name for path in expand(Path("a-{08..11}-{0..1}.tar"))][:3] == [
        "a-08-0.tar",
        "a-08-1.tar",
        "a-09-0.tar",
    ]
    for name in "ba":
        (tmp_path / f"{name}.tar").touch()
    assert expand(tmp_path / "[ab].tar") == [tmp_path / "a.tar", tmp_path / "b.tar"]


def test_shares_are_all_of_it() -> None:
    for samples, parts in ((0, 2), (1, 3), (10, 4), (1281167, 1024)):
        found = shares(samples, parts)
        assert [number for part in found for number in part] == list(range(samples)) and len(found) == parts
