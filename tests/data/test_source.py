"""Finding out what lies in a folder, and image folders: numbered as torchvision would, and read by number."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from hora.data import jpeg
from hora.data.example import write_example
from hora.data.folder import Folder, write_folder
from hora.data.generated import generated_facts, is_generated, mark_generated
from hora.data.sampler import Sampler
from hora.data.shards import shares
from hora.data.source import Sample, Source, open_source
from hora.data.tar import TarShards, write_tar
from hora.data.tfrecord import TFRecordShards, shard_name, write_records, write_tfrecord
from hora.errors import BadData, UsageError
from hora.files import replacing, replacing_path

PICTURE = jpeg.encode(np.zeros((8, 8, 3), np.uint8))


def image(path: Path, data: bytes = b"x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_classes_are_numbered_in_alphabetical_order(tmp_path: Path) -> None:
    names = ["n02/b.JPEG", "n02/a.jpg", "n10/c.png", "n01/z.PNG", "n01/deep/below/y.Jpeg"]
    for name in names:
        image(tmp_path / name, name.encode())
    for other in ("n01/notes.txt", "n01/.hidden.jpg", "n01/.cache/x.jpg", ".git/x.jpg", "README.jpg"):
        image(tmp_path / other)
    source = Folder(tmp_path)
    assert source.classes == ("n01", "n02", "n10") and source.labels.tolist() == [0, 0, 1, 1, 2]
    found = [source.read(index) for index in range(len(source))]
    in_order = ["n01/z.PNG", "n01/deep/below/y.Jpeg", "n02/a.jpg", "n02/b.JPEG", "n10/c.png"]
    assert found == [Sample(name.encode(), label) for name, label in zip(in_order, (0, 0, 1, 1, 2), strict=True)]
    assert source.name(4) == str(tmp_path / "n10/c.png")
    assert pickle.loads(pickle.dumps(source)).read(4) == found[4]
    with pytest.raises(IndexError):
        source.read(5)


def test_a_name_that_is_not_unicode(tmp_path: Path) -> None:
    image(tmp_path / "a" / os.fsdecode(b"\xff.jpg"), b"odd")
    assert Folder(tmp_path).read(0).data == b"odd"


def test_a_class_without_images_is_named(tmp_path: Path) -> None:
    image(tmp_path / "cat" / "1.jpg")
    (tmp_path / "dog").mkdir()
    with pytest.raises(BadData, match=r"1 of 2, the first 'dog'"):
        Folder(tmp_path)


def test_files_that_vanish_or_are_empty_are_named(tmp_path: Path) -> None:
    image(tmp_path / "cat" / "1.jpg")
    image(tmp_path / "cat" / "2.jpg", b"")
    source = Folder(tmp_path)
    (tmp_path / "cat" / "1.jpg").unlink()
    with pytest.raises(BadData, match=r"cat/1\.jpg cannot be read: No such file"):
        source.read(0)
    with pytest.raises(BadData, match=r"cat/2\.jpg is empty"):
        source.read(1)


def test_a_written_folder_is_read(tmp_path: Path) -> None:
    samples = [Sample(bytes([number]), number % 3) for number in range(7)]
    assert write_folder(tmp_path, samples, ["a", "b", "c"]) == 7
    source = Folder(tmp_path)
    assert sorted(source.read(index) for index in range(7)) == sorted(samples)
    with pytest.raises(BadData, match="alphabetical"):
        write_folder(tmp_path, samples, ["b", "a"])


def lay_out(place: Path) -> dict[str, tuple[Path, type]]:
    """The same two samples in every form that is recognised."""
    samples = [Sample(PICTURE, 0), Sample(PICTURE, 1)]
    write_folder(place / "images" / "train", samples, ["a", "b"])
    write_folder(place / "images" / "val", samples[:1], ["a"])
    for form in ("tars", "flat", "records"):
        (place / form).mkdir()
    (place / "tars" / "train").mkdir()
    write_tar(place / "tars" / "train" / "x-000000.tar", samples[:1])
    write_tar(place / "tars" / "train" / "x-000001.tar", samples[1:])
    write_tar(place / "flat" / "train-000000.tar", samples)
    write_tar(place / "flat" / "val-000000.tar", samples[:1])
    for shard in range(2):
        write_tfrecord(place / "records" / shard_name("train", shard, 2), [samples[shard]], ["a", "b"])
    write_tfrecord(place / "records" / shard_name("validation", 0, 1), samples[1:], ["a", "b"])
    return {
        "images": (place / "images", Folder),
        "tars": (place / "tars", TarShards),
        "flat": (place / "flat", TarShards),
    } | {"records": (place / "records", TFRecordShards)}


def test_what_lies_there_is_found_out(tmp_path: Path) -> None:
    for path, kind in lay_out(tmp_path).values():
        source: Source = open_source(path, "train")
        assert isinstance(source, kind)
        assert [source.read(index) for index in range(len(source))] == [Sample(PICTURE, 0), Sample(PICTURE, 1)]
    for form in ("images", "flat", "records"):
        assert len(open_source(tmp_path / form, "val")) == 1
    assert len(open_source(tmp_path / "tars" / "train")) == 2
    assert len(open_source(tmp_path / "tars" / "train" / "x-{000000..000001}.tar")) == 2
    assert len(open_source(tmp_path / "tars" / "train" / "x-*.tar")) == 2
    assert len(open_source(tmp_path / "records" / "train-00001-of-00002")) == 1


def test_a_pattern_validates_with_other_images_than_it_trains_on(tmp_path: Path) -> None:
    lay_out(tmp_path)
    write_tar(tmp_path / "tars" / "train" / "val-of-the-train-folder.tar", [Sample(b"t", 0)])
    (tmp_path / "tars" / "validation").mkdir()
    write_tar(tmp_path / "tars" / "validation" / "x-000000.tar", [Sample(b"v", 1)])
    for pattern, counts in {"records/*-of-*": (2, 1), "flat/*.tar": (2, 1), "tars/*/*.tar": (3, 1)}.items():
        assert tuple(len(open_source(tmp_path / pattern, split)) for split in ("train", "val")) == counts
    assert open_source(tmp_path / "tars/*/x-*.tar", "val").read(0) == Sample(b"v", 1)
    for one in (
        "records/train-*",
        "records/train-{00000..00001}-of-00002",
        "flat/train-000000.tar",
        "tars/train/*.tar",
    ):
        assert len(open_source(tmp_path / one, "train")) == len(open_source(tmp_path / one))
        with pytest.raises(BadData, match=r"matches no shards to validate with: .* a pattern that matches both"):
            open_source(tmp_path / one, "val")
    with pytest.raises(BadData, match="matches no shards to train on"):
        open_source(tmp_path / "flat" / "val-*", "train")


def test_a_pattern_that_matches_one_folder_is_that_folder(tmp_path: Path) -> None:
    lay_out(tmp_path)
    mark_generated(tmp_path / "records", generator="textures")
    assert len(open_source(tmp_path / "rec*", "train")) == 2 and len(open_source(tmp_path / "rec*", "val")) == 1
    assert is_generated(tmp_path / "rec*") and is_generated(tmp_path / "r*" / "*-of-*")
    assert len(open_source(tmp_path / "imag*", "train")) == 2


def test_every_form_is_shuffled_divided_and_resumed_alike(tmp_path: Path) -> None:
    """The same samples in three forms; three workers stop in the middle of an epoch, two go on: each sample once."""
    samples = [Sample(bytes([number]), number // 10) for number in range(40)]
    classes = [f"c{number}" for number in range(4)]
    write_folder(tmp_path / "images", samples, classes)
    for number, share in enumerate(shares(40, 3)):
        write_tar(tmp_path / f"x-{number}.tar", samples[share.start : share.stop])
        records = [{"image/encoded": [data], "image/class/label": [label + 1]} for data, label in samples]
        write_records(tmp_path / f"x-{number}.tfrecord", map(write_example, records[share.start : share.stop]))
    for place in ("images", "x-{0..2}.tar", "x-*.tfrecord"):
        source = open_source(tmp_path / place)
        before = [Sampler(40, rank=rank, size=3, seed=6) for rank in range(3)]
        done = [source.read(index) for sampler in before for index in list(sampler)[:5]]
        state = before[0].state_dict() | {"seen": 15}
        for rank in range(2):
            sampler = Sampler(40, rank=rank, size=2, uneven="keep")
            sampler.load_state_dict(state)
            done += [source.read(index) for index in sampler]
        assert sorted(done) == samples


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    lay_out(tmp_path)
    with pytest.raises(BadData, match="nowhere does not exist"):
        open_source(tmp_path / "nowhere")
    with pytest.raises(BadData, match=r"x-000002\.tar cannot be read: No such file"):
        open_source(tmp_path / "tars" / "train" / "x-{000001..000002}.tar")
    (tmp_path / "empty").mkdir()
    for split in (None, "train"):
        with pytest.raises(BadData, match=r"no folders of images, no tar shards \(\*\.tar\) and no TFRecord shards"):
            open_source(tmp_path / "empty", split)
    with pytest.raises(BadData, match="begin with val or validation"):
        open_source(tmp_path / "tars", "val")
    with pytest.raises(UsageError, match="'test' is not known"):
        open_source(tmp_path, "test")
    with pytest.raises(UsageError, match="image folder"):
        open_source(tmp_path / "images", "train", first_label=1)
    write_tar(tmp_path / "records" / "train-1.tar", [Sample(PICTURE, 0)])
    with pytest.raises(BadData, match="1 tar shards and 2 TFRecord shards"):
        open_source(tmp_path / "records", "train")


def test_generated_data_is_known_by_its_mark(tmp_path: Path) -> None:
    assert not is_generated(tmp_path) and generated_facts(tmp_path) is None
    mark_generated(tmp_path, generator="textures", seed=7)
    (tmp_path / "train").mkdir()
    for place in (tmp_path, tmp_path / "train", tmp_path / "train" / "shard-{0..9}.tar"):
        assert is_generated(place) and generated_facts(place) == {"generator": "textures", "seed": 7}
    assert not is_generated(tmp_path.parent)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["GENERATED.json"]
    (tmp_path / "GENERATED.json").write_text("{")
    with pytest.raises(BadData, match=r"GENERATED\.json cannot be read"):
        generated_facts(tmp_path)


def test_what_was_not_finished_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "a") as file:
        file.write(b"half")
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), replacing_path(tmp_path / "b") as part:
        part.write_text("half")
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_text() == "old"
