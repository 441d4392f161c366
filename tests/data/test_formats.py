"""IDX and CIFAR files: what is written is read, by us and by hand-made bytes; damaged ones are refused."""

from __future__ import annotations

import contextlib
import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hora.data.cifar import RECORD_BYTES, read_cifar, write_cifar
from hora.data.idx import read_idx, write_idx
from hora.errors import BadData

LABELS = struct.pack(">II", 2049, 3) + bytes([7, 2, 1])
IMAGES = struct.pack(">IIII", 2051, 2, 2, 2) + bytes(range(8))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_mnists_own_headers(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    (tmp_path / "labels").write_bytes(pack(LABELS))
    (tmp_path / "images").write_bytes(pack(IMAGES))
    assert read_idx(tmp_path / "labels", 1).tolist() == [7, 2, 1]
    assert read_idx(tmp_path / "images", 3).tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    array=arrays.arrays(
        dtype=st.sampled_from([np.uint8, np.int8, np.int16, np.int32, np.float32, np.float64]),
        shape=arrays.array_shapes(max_dims=4, max_side=5),
    ),
    name=st.sampled_from(["x", "x.gz"]),
)
def test_what_is_written_is_read(tmp_path: Path, array: np.ndarray, name: str) -> None:
    write_idx(tmp_path / name, array)
    found = read_idx(tmp_path / name)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not an IDX file"),
        (b"<html>", "not an IDX file"),
        (LABELS[:-1], "should have 11 bytes"),
        (LABELS + b"x", "should have 11 bytes"),
        (LABELS[:6], "inside its header"),
        (gzip.compress(LABELS, mtime=0)[:-9], "cannot be unpacked"),
        (IMAGES, "3 dimensions, not 1"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "labels").write_bytes(data)
    with pytest.raises(BadData, match=said) as refused:
        read_idx(tmp_path / "labels", 1)
    assert str(tmp_path / "labels") in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="nothing-here"):
        read_idx(tmp_path / "nothing-here")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=64))
def test_any_bytes_are_an_array_or_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "any").write_bytes(data)
    with contextlib.suppress(BadData):
        read_idx(tmp_path / "any")


def test_cifar_records(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (5, 3, 32, 32), np.uint8)
    labels = np.array([0, 9, 3, 1, 2], np.uint8)
    write_cifar(tmp_path / "a.bin", pixels[:2], labels[:2])
    write_cifar(tmp_path / "b.bin", pixels[2:], labels[2:])
    raw = (tmp_path / "a.bin").read_bytes()
    assert raw[RECORD_BYTES] == 9 and raw[1] == pixels[0, 0, 0, 0] and raw[1 + 1024] == pixels[0, 1, 0, 0]
    found = read_cifar(tmp_path / "a.bin", tmp_path / "b.bin")
    np.testing.assert_array_equal(found.pixels, pixels)
    np.testing.assert_array_equal(found.labels, labels)


@pytest.mark.parametrize(
    ("data", "said"), [(b"", "0 bytes"), (b"x" * 3072, "whole number"), (b"\x0a" * RECORD_BYTES, "label 10")]
)
def test_damaged_cifar_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "x.bin").write_bytes(data)
    with pytest.raises(BadData, match=said):
        read_cifar(tmp_path / "x.bin")
