"""Showers in HDF5, read back by h5py itself; any order, any chunks; what a file lacks is said."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hora.data.showers import ShowerFiles, find_shower_files, split_files, write_showers
from hora.errors import BadData, UsageError

COUNTS = (5, 1, 7)


def cells(events: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((events, 25, 25, 25), np.float32)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], np.ndarray, np.ndarray]:
    """One file of ours, one in a single block, one in large chunks and other types, as others may have written it."""
    place = tmp_path_factory.mktemp("showers")
    paths = [place / f"EleEscan_1_{number}.h5" for number in range(3)]
    ecal, energy = cells(sum(COUNTS)), np.linspace(10, 500, sum(COUNTS)).astype(np.float32)
    write_showers(paths[0], ecal[:5], energy[:5])
    for path, part, options in ((paths[1], slice(5, 6), {}), (paths[2], slice(6, 13), {"chunks": (3, 25, 25, 25)})):
        with h5py.File(path, "w") as file:
            file.create_dataset("ECAL", data=ecal[part].astype(np.float64), **options)
            file.create_dataset("target", data=np.stack([energy[part] * 0, energy[part], energy[part] * 9], axis=1))
    return paths, ecal, energy


Files = tuple[list[Path], np.ndarray, np.ndarray]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(indices=st.lists(st.integers(0, sum(COUNTS) - 1), max_size=20))
def test_any_events_in_any_order(files: Files, indices: list[int]) -> None:
    paths, ecal, energy = files
    found = ShowerFiles(paths).read(indices)
    np.testing.assert_array_equal(found.ecal, ecal[indices])
    np.testing.assert_array_equal(found.energy, energy[indices])
    assert found.ecal.dtype == found.energy.dtype == np.float32


def test_cells_go_where_they_are_wanted(files: Files) -> None:
    paths, ecal, energy = files
    source, out = ShowerFiles(paths), np.zeros((3, 25, 25, 25), np.float32)
    assert source.read(np.array([12, 0, 5]), out=out).ecal is out
    np.testing.assert_array_equal(out, ecal[[12, 0, 5]])
    np.testing.assert_array_equal(source.energy, energy)
    assert len(source) == 13 and source.name(6) == f"{paths[2]}, event 0"
    for outside in ([13], [-1]):
        with pytest.raises(IndexError):
            source.read(outside)


class _Counted:
    """A dataset that counts how often it is read."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self.chunks, self.reads = dataset, dataset.chunks, 0

    def __getitem__(self, part: slice) -> Any:
        self.reads += 1
        return self._dataset[part]


def test_a_chunk_is_read_once(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ShowerFiles(files[0])
    counted = _Counted(source._file(files[0][2])["ECAL"])
    monkeypatch.setattr(source, "_file", lambda path: {"ECAL": counted})
    np.testing.assert_array_equal(source.read([8, 6, 12, 8]).ecal, files[1][[8, 6, 12, 8]])
    assert counted.reads == 2  # events 0 and 2 of its first chunk, twice; event 6, of its third


def _energies(work: tuple[ShowerFiles, list[int]]) -> np.ndarray:
    return work[0].read(work[1]).ecal


_source: ShowerFiles


def _of_parent(indices: list[int]) -> np.ndarray:
    return _source.read(indices).ecal


def test_it_goes_to_other_processes(files: Files) -> None:
    global _source
    paths, ecal, _ = files
    _source = ShowerFiles(paths)
    _source.read([0, 7])  # opens two of them, whose handles the children must not use
    orders = [[12, 0], [5, 6, 7], [3]]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for found, order in zip(pool.map(_of_parent, orders), orders, strict=True):
            np.testing.assert_array_equal(found, ecal[order])
    again = pickle.loads(pickle.dumps(_source))
    np.testing.assert_array_equal(again.read([1]).ecal, ecal[[1]])
    np.testing.assert_array_equal(_source.read([12]).ecal, ecal[[12]])


def test_a_written_file_has_the_layout(tmp_path: Path) -> None:
    ecal, energy = cells(3), np.array([10, 20, 30], np.float32)
    hcal = np.random.default_rng(1).random((3, 5, 5, 60), np.float32)
    write_showers(tmp_path / "a.h5", ecal, energy)
    write_showers(tmp_path / "b.h5", ecal, energy, hcal)
    for name, expected in (("a.h5", np.zeros_like(hcal)), ("b.h5", hcal)):
        with h5py.File(tmp_path / name) as file:
            assert sorted(file) == ["ECAL", "HCAL", "target"] and file["ECAL"].dtype == np.float32
            np.testing.assert_array_equal(file["ECAL"], ecal)
            np.testing.assert_array_equal(file["HCAL"], expected)
            np.testing.assert_array_equal(file["target"], [[11, 10], [11, 20], [11, 30]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h5", "b.h5"]
    with pytest.raises(UsageError, match="2 energies do not go with cells"):
        write_showers(tmp_path / "c.h5", ecal, energy[:2])
    assert not (tmp_path / "c.h5").exists()


GOOD = {"ECAL": np.ones((2, 25, 25, 25), np.float32), "target": np.array([[11, 10], [11, 20.0]])}
WRONG = {
    "no cells": ({"target": GOOD["target"]}, "no dataset 'ECAL', only target"),
    "no energies": ({"ECAL": GOOD["ECAL"]}, "no dataset 'target', only ECAL"),
    "other cells": (GOOD | {"ECAL": np.ones((2, 51, 51, 25), np.float32)}, r"shape \(2, 51, 51, 25\)"),
    "one column": (GOOD | {"target": np.ones((2, 1))}, r"target of shape \(2, 1\)"),
    "other number": (GOOD | {"target": np.ones((3, 2))}, r"target of shape \(3, 2\)"),
    "nothing": ({name: array[:0] for name, array in GOOD.items()}, r"shape \(0, 25, 25, 25\)"),
    "no numbers": (GOOD | {"target": np.array([[b"a", b"b"]] * 2)}, "which is not a number"),
    "energy nan": (GOOD | {"target": np.array([[11, 10], [11, np.nan]])}, "event 1 has a primary energy of nan"),
    "energy 0": (GOOD | {"target": np.array([[11, 0], [11, 20]])}, "event 0 has a primary energy of 0"),
    "cell nan": (
        GOOD | {"ECAL": np.where(np.arange(2)[:, None, None, None], np.nan, GOOD["ECAL"])},
        "event 1 has a cell",
    ),
}


@pytest.mark.parametrize(("content", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, content: dict[str, Any], said: str) -> None:
    path = tmp_path / "EleEscan_1_1.h5"
    with h5py.File(path, "w") as file:
        for name, array in content.items():
            file[name] = array
    with pytest.raises(BadData, match=said) as refused:
        ShowerFiles([path]).read([0, 1])
    assert str(path) in str(refused.value)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "EleEscan_1_1.h5"
    write_showers(path, cells(4), np.full(4, 50, np.float32))
    whole = path.read_bytes()
    for data in (b"", b"not HDF5", whole[: len(whole) // 2]):
        path.write_bytes(data)
        with pytest.raises(BadData, match=r"EleEscan_1_1\.h5 cannot be read as HDF5"):
            ShowerFiles([path])
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["ECAL"] = GOOD["ECAL"]
    path.write_bytes(whole)
    source = ShowerFiles([path])
    with h5py.File(path) as file:
        stored = file["ECAL"].id.get_chunk_info(2)
    broken = bytearray(whole)
    broken[stored.byte_offset : stored.byte_offset + 64] = bytes(64)
    path.write_bytes(broken)
    with pytest.raises(BadData, match=r"EleEscan_1_1\.h5 cannot be read: .* damaged"):
        source.read([2])


def test_files_are_found_and_divided(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"has no file EleEscan_\*\.h5"):
        find_shower_files(tmp_path)
    with pytest.raises(BadData, match="is not a folder"):
        find_shower_files(tmp_path / "nowhere")
    for name in ("b.h5", "a.h5", ".part.h5"):
        (tmp_path / name).touch()
    assert [path.name for path in find_shower_files(tmp_path)] == ["a.h5", "b.h5"]
    for number in (2, 10, 1):
        (tmp_path / f"EleEscan_1_{number}.h5").touch()
    found = find_shower_files(tmp_path)
    assert [path.name for path in found] == ["EleEscan_1_1.h5", "EleEscan_1_10.h5", "EleEscan_1_2.h5"]
    assert split_files(found[::-1]) == (found[:2], found[2:])
    sizes = [
        tuple(map(len, split_files([Path(f"{n:03}") for n in range(count)]))) for count in (2, 4, 5, 14, 15, 20, 100)
    ]
    assert sizes == [(1, 1), (3, 1), (4, 1), (13, 1), (14, 1), (18, 2), (90, 10)]
    with pytest.raises(BadData, match="1 files cannot be divided"):
        split_files(found[:1])
