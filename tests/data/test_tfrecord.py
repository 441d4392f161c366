"""TFRecord and tf.train.Example against TensorBoard's own reader, writer and checksum, and protobuf's own codec."""

from __future__ import annotations

import contextlib
import io
import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow
from tensorboard.summary.writer.record_writer import RecordWriter

from hora.data import jpeg
from hora.data.crc32c import FOLDS, crc32c, masked
from hora.data.example import parse_example, write_example
from hora.data.shards import INDEX_FILE
from hora.data.source import Sample
from hora.data.tfrecord import TFRecordShards, read_records, shard_name, write_records, write_tfrecord
from hora.errors import BadData

PICTURE = jpeg.encode(np.full((9, 12, 3), 200, np.uint8))


# Checksums


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"\0" * 32, 0x8A9136AA),  # these four are of RFC 3720
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_checksums(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


@settings(max_examples=80, deadline=None)
@given(nbytes=st.integers(0, 3000), seed=st.integers(0, 9))
@example(nbytes=8 * 256 + 1, seed=0)
@example(nbytes=8 * 810 + 9, seed=1)
@example(nbytes=8 * 5685 + 3, seed=2)
@example(nbytes=150_001, seed=3)
def test_checksums_are_what_tensorboard_computes(nbytes: int, seed: int) -> None:
    data = np.random.default_rng(seed).bytes(nbytes)
    assert masked(data) == pywrap_tensorflow.masked_crc32c(data)
    assert crc32c(memoryview(data)) == pywrap_tensorflow.crc32c(data)


def test_the_folds_are_multiples_of_the_polynomial() -> None:
    """Computed the plain way: the highest power leftmost, one bit at a time."""

    def power(exponent: int) -> int:
        rest = 1
        for _ in range(exponent):
            rest <<= 1
            if rest >> 32:
                rest ^= 0x11EDC6F41
        return rest

    for longest, others in FOLDS:
        total = power(64 * longest)
        for other in others:
            total ^= power(64 * other)
        assert total == 0 and sorted(others, reverse=True) == list(others) and others[-1] == 0


# The message


@cache
def message() -> Any:
    """tf.train.Example as protobuf itself understands it, from its definition."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto

    def add(parent: Any, name: str, *fields: tuple[str, int, int, int, str]) -> Any:
        made = parent.add(name=name)
        for label, number, repeated, kind, of in fields:
            made.field.add(name=label, number=number, label=repeated, type=kind, type_name=of or None)
        return made

    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    add(file.message_type, "BytesList", ("value", 1, many, field.TYPE_BYTES, ""))
    add(file.message_type, "FloatList", ("value", 1, many, field.TYPE_FLOAT, ""))
    add(file.message_type, "Int64List", ("value", 1, many, field.TYPE_INT64, ""))
    kinds = [("bytes_list", 1, "BytesList"), ("float_list", 2, "FloatList"), ("int64_list", 3, "Int64List")]
    feature = add(file.message_type, "Feature", *((n, i, one, field.TYPE_MESSAGE, f".t.{of}") for n, i, of in kinds))
    feature.oneof_decl.add(name="kind")
    for entry in feature.field:
        entry.oneof_index = 0
    features = add(file.message_type, "Features", ("feature", 1, many, field.TYPE_MESSAGE, ".t.Features.FeatureEntry"))
    pair = [("key", 1, one, field.TYPE_STRING, ""), ("value", 2, one, field.TYPE_MESSAGE, ".t.Feature")]
    add(features.nested_type, "FeatureEntry", *pair).options.map_entry = True
    add(file.message_type, "Example", ("features", 1, one, field.TYPE_MESSAGE, ".t.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


FEATURES = st.dictionaries(
    st.text(max_size=20),
    st.lists(st.binary(max_size=200), max_size=3)
    | st.lists(st.floats(width=32, allow_nan=False), max_size=5)
    | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
    max_size=5,
)


def reference(features: dict[str, list[Any]]) -> Any:
    made = message()()
    for name, values in features.items():
        kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type(values[0])] if values else None
        entry = made.features.feature[name]
        if kind:
            getattr(entry, kind).value.extend(values)
    return made


@settings(max_examples=150, deadline=None)
@given(FEATURES)
def test_messages_are_protobufs_in_both_directions(features: dict[str, list[Any]]) -> None:
    assert parse_example(reference(features).SerializeToString()) == features
    found = message()()
    found.ParseFromString(write_example(features))
    assert found.features == reference(features).features


def test_lists_that_are_not_packed_and_unknown_fields() -> None:
    one = b"\x0a\x01i\x12\x06\x1a\x04\x08\x05\x08\x07"  # i: Int64List of 5 and 7, each a field of its own
    two = b"\x0a\x01f\x12\x07\x12\x05\x0d" + struct.pack("<f", 0.5)
    inner = b"".join(b"\x0a" + bytes([len(entry)]) + entry for entry in (one, two)) + b"\x18\x96\x01"
    data = b"\x11" + b"8 bytes!" + b"\x0a" + bytes([len(inner)]) + inner
    assert parse_example(data) == {"i": [5, 7], "f": [0.5]}


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | FEATURES.map(write_example), st.integers(0, 59), st.integers(0, 255))
def test_any_bytes_are_features_or_refused(data: bytes, place: int, change: int) -> None:
    broken = bytearray(data)
    if place < len(broken):
        broken[place] ^= change
    with contextlib.suppress(BadData):
        parse_example(bytes(broken))


# The files


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=3000), max_size=5))
def test_records_are_tensorboards_in_both_directions(tmp_path: Path, records: list[bytes]) -> None:
    assert write_records(tmp_path / "ours", records) == len(records)
    reader = pywrap_tensorflow.PyRecordReader_New(str(tmp_path / "ours"))
    found = []
    while True:
        try:
            reader.GetNext()
        except Exception:  # TensorBoard's own, which says that there are no more
            break
        found.append(reader.record())
    assert found == records
    theirs = io.BytesIO()
    writer = RecordWriter(theirs)
    for record in records:
        writer.write(record)
    assert theirs.getvalue() == (tmp_path / "ours").read_bytes()
    assert list(read_records(tmp_path / "ours")) == records


def test_images_with_imagenets_fields(tmp_path: Path) -> None:
    path = tmp_path / shard_name("train", 0, 1)
    png = jpeg.encode_png(np.zeros((3, 5, 3), np.uint8))
    assert write_tfrecord(path, [Sample(PICTURE, 0), Sample(png, 2)], ["n1", "n2", "n3"], first=8) == 2
    first, second = (parse_example(record) for record in read_records(path))
    assert first.pop("image/encoded") == [PICTURE]
    assert first == {
        "image/height": [9],
        "image/width": [12],
        "image/colorspace": [b"RGB"],
        "image/channels": [3],
        "image/class/label": [1],  # counted from one
        "image/class/synset": [b"n1"],
        "image/class/text": [b"n1"],
        "image/format": [b"JPEG"],
        "image/filename": [b"n1_0000008.JPEG"],
    }
    assert (second["image/class/label"], second["image/format"], second["image/height"]) == ([3], [b"PNG"], [3])
    source = TFRecordShards([path])
    assert [source.read(index) for index in (1, 0)] == [Sample(png, 2), Sample(PICTURE, 0)]
    assert TFRecordShards([path], first_label=0).labels.tolist() == [1, 3]


def test_empty_shards_are_no_harm(tmp_path: Path) -> None:
    paths = [tmp_path / shard_name("train", number, 3) for number in range(3)]
    for path, labels in zip(paths, ([], [0], []), strict=True):
        write_tfrecord(path, [Sample(PICTURE, label) for label in labels], ["a"])
    assert len(TFRecordShards(paths)) == 1
    with pytest.raises(BadData, match="hold no sample"):
        TFRecordShards(paths[:1])


def test_damaged_files_are_refused_by_name_and_place(tmp_path: Path) -> None:
    path = tmp_path / "train-00000-of-00001"
    write_tfrecord(path, [Sample(PICTURE, 0), Sample(PICTURE, 1)], ["a", "b"])
    whole = path.read_bytes()
    half = len(whole) // 2  # where the second record begins
    cases = {
        whole[: half + 5]: rf"record 1 at byte {half} ends inside its header",
        whole[:-1]: rf"record 1 at byte {half} has \d+ bytes, but the file ends after {half - 13}",
        whole[: half + 1] + b"\x01" + whole[half + 2 :]: rf"record 1 at byte {half} is damaged: its length",
        b"\x1f\x8b" + whole[2:]: "is compressed",
        b"<html>" + whole[6:]: "record 0 at byte 0 has no header of a TFRecord file",
    }
    for data, said in cases.items():
        path.write_bytes(data)
        with pytest.raises(BadData, match=said) as refused:
            TFRecordShards([path])
        assert str(path) in str(refused.value)
    flipped = bytearray(whole)
    flipped[whole.rindex(b"\xff\xd9") - 20] ^= 1  # in the second picture: only its checksum can tell
    path.write_bytes(flipped)
    source = TFRecordShards([path])
    assert source.read(0).data == PICTURE
    with pytest.raises(BadData, match=rf"record 1 at byte {half + 12} is damaged: its data has another checksum"):
        source.read(1)
    assert TFRecordShards([path], check=False).read(1).data != PICTURE
    with pytest.raises(BadData, match="record 1"):
        list(read_records(path))


WRONG = {
    "no label": ({"image/encoded": [PICTURE]}, "no integer 'image/class/label'"),
    "text for a label": ({"image/encoded": [PICTURE], "image/class/label": [b"cat"]}, "no integer"),
    "label 0": ({"image/encoded": [PICTURE], "image/class/label": [0]}, "has label 0, but labels are 1 to"),
    "not an Example": (b"anything", "record 0 at byte 12: "),
    "no image": ({"image/class/label": [1]}, "no bytes 'image/encoded'"),
}


@pytest.mark.parametrize(("content", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_record_is_said(tmp_path: Path, content: Any, said: str) -> None:
    path = tmp_path / "x.tfrecord"
    write_records(path, [content if isinstance(content, bytes) else write_example(content)])
    with pytest.raises(BadData, match=said) as refused:
        TFRecordShards([path]).read(0)
    assert str(path) in str(refused.value)
    (tmp_path / INDEX_FILE).unlink(missing_ok=True)
