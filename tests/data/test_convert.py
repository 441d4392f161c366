"""Pictures from format to format, and ImageNet from the archives it is published in: nothing lost, nothing mixed up,
bad input named before anything is written."""

from __future__ import annotations

import importlib.util
import io
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from tests.launch.jobs import run_hora

from hora.data import convert as convert_module
from hora.data import jpeg
from hora.data.convert import Shape, SplitLocation, convert
from hora.data.make.tars import DEVKIT, LABELS, TRAIN, VAL
from hora.data.make.textures import make_textures
from hora.data.published import read_devkit, read_labels, training, validation
from hora.data.source import Source, open_source
from hora.errors import BadData, UsageError

CLASSES = [f"n9000000{number}" for number in range(4)]
IMAGES = {"samples": 41, "val": 14, "classes": 4, "size": 40}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_textures(tmp_path_factory.mktemp("made") / "folders", **IMAGES).folder  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_textures(tmp_path_factory.mktemp("made") / "tars", **IMAGES, format="tars").folder  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> None:
    convert_module._opened.cache_clear()


def content(source: Source) -> list[tuple[int, bytes]]:
    return sorted((source.read(index).label, source.read(index).data) for index in range(len(source)))


def places(folder: Path) -> dict[str, SplitLocation]:
    return {split: SplitLocation(str(folder), split) for split in ("train", "val")}


def test_the_archives_have_what_the_folders_have(folders: Path, tars: Path) -> None:
    train = training(tars / TRAIN)
    assert content(train) == content(open_source(folders, "train")) and list(train.classes) == CLASSES
    plain = read_labels(tars / LABELS)
    val = validation(tars / VAL, plain, train.classes)
    assert content(val) == content(open_source(folders, "val"))
    assert val.names == [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 15)]
    if importlib.util.find_spec("scipy"):  # which comes with JAX
        assert read_devkit(tars / DEVKIT) == plain  # by its numbers, which are in another order
    with tarfile.open(tars / TRAIN) as archive:
        archive.extractall(tars / "classes", filter="data")
    assert content(training(tars / "classes")) == content(train)  # unpacked once


@pytest.mark.parametrize("way", [("tfrecord", "tar", "folder"), ("tar", "folder", "tfrecord")])
def test_there_and_back_nothing_changes(folders: Path, tmp_path: Path, way: tuple[str, ...]) -> None:
    here = folders
    for number, format in enumerate(way):
        convert_module._opened.cache_clear()
        made = convert(places(here), tmp_path / str(number), format=format, per_shard=10)  # type: ignore[arg-type]
        assert made.images == {"train": 41, "val": 14} and made.kept == 0
        here = made.folder
        for split in ("train", "val"):
            found, first = open_source(here, split), open_source(folders, split)
            assert content(found) == content(first) and found.classes == first.classes
    if way[-1] == "tfrecord":  # shards to train on are mixed
        labels = open_source(here, "train").labels
        assert (np.diff(labels) < 0).sum() > 5 and sorted(labels) == sorted(open_source(folders, "train").labels)


def test_what_was_interrupted_goes_on_and_nothing_is_mixed(folders: Path, tmp_path: Path) -> None:
    whole = convert(places(folders), tmp_path / "whole", format="tar", per_shard=10, shape=Shape(square=32))
    again = tmp_path / "again"
    shutil.copytree(whole.folder, again)
    for left in ("train-000001.tar", "val-000000.tar"):
        (again / left).unlink()
    (again / ".train-000001.tar.1234.part").write_bytes(b"half")
    made = convert(places(folders), again, format="tar", per_shard=10, shape=Shape(square=32))
    assert (made.parts, made.kept) == (7, 5) and not list(again.glob(".*.part"))
    for file in whole.folder.glob("*.tar"):
        assert file.read_bytes() == (again / file.name).read_bytes()
    with pytest.raises(UsageError, match=r"prepared with other settings \(made with per_shard 10, you give 11\)"):
        convert(places(folders), again, format="tar", per_shard=11, shape=Shape(square=32))
    with pytest.raises(UsageError, match="contains other files"):
        convert(places(folders), folders, format="tar")
    for name in ("train-000002.tar", "val-000001.tar"):  # as a file system that was full leaves them
        with (again / name).open("r+b") as file:
            file.truncate(700)
    made = convert(places(folders), again, format="tar", per_shard=10, shape=Shape(square=32))
    assert (made.parts, made.kept) == (7, 5)
    for file in whole.folder.glob("*.tar"):
        assert file.read_bytes() == (again / file.name).read_bytes()
    known = json.loads((again / "PREPARED.json").read_text())
    known["parts"]["train-000002.tar"] = (again / "train-000003.tar").stat().st_size
    (again / "PREPARED.json").write_text(json.dumps(known))
    (again / "train-000002.tar").write_bytes((again / "train-000003.tar").read_bytes())
    with pytest.raises(BadData, match="what was written is not what was read"):
        convert(places(folders), again, format="tar", per_shard=10, shape=Shape(square=32))


def test_an_image_that_was_cut_off_afterwards_is_written_again(folders: Path, tmp_path: Path) -> None:
    made = convert(places(folders), tmp_path / "out")
    image = next((made.folder / "train" / CLASSES[1]).iterdir())
    data = image.read_bytes()
    image.write_bytes(data[:100])
    again = convert(places(folders), tmp_path / "out")
    assert (again.parts, again.kept) == (8, 7) and image.read_bytes() == data
    shutil.rmtree(made.folder / "val" / CLASSES[2])
    assert convert(places(folders), tmp_path / "out").kept == 7


def test_it_goes_on_from_another_directory_and_says_what_is_another_source(folders: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    given = ["--format", "tar", "--jobs", "1"]
    first = run_hora("data", "convert", folders, "--to", tmp_path / "out", *given, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    (tmp_path / "moved").mkdir()
    shutil.copytree(folders, tmp_path / "moved" / folders.name)
    for source in (f"../moved/{folders.name}", folders):
        again = run_hora("data", "convert", source, "--to", "../out", *given, cwd=tmp_path / "elsewhere")
        assert again.returncode == 0 and "2 of 2 parts were there already" in again.stdout, again.stderr
    shutil.copytree(folders, tmp_path / "other")
    other = run_hora("data", "convert", "../other", "--to", "../out", *given, cwd=tmp_path / "elsewhere")
    assert other.returncode == 2 and f"made from {folders.name} " in other.stderr, other.stderr
    assert "you give other " in other.stderr and "{" not in other.stderr


def test_images_are_shrunk_and_stay_what_they_are() -> None:
    y, x = np.mgrid[:300, :400]
    pixels = np.stack([x / 400 * 255, y / 300 * 255, np.full_like(x, 90)], -1).astype(np.uint8)
    data = jpeg.encode(pixels, 95)
    for shape, size in (
        (Shape(shorter=100), (100, 133)),
        (Shape(square=50), (50, 50)),
        (Shape(shorter=900), (300, 400)),
    ):
        found = jpeg.decode(convert_module.shrunk(data, shape, "it")).astype(float)
        assert found.shape[:2] == size
        down, across = (np.arange(n) + 0.5 for n in size)
        expected = np.stack(np.broadcast_arrays(across[None] / size[1] * 255, down[:, None] / size[0] * 255, 90.0), -1)
        assert np.abs(found - expected).mean() < 3
    with pytest.raises(BadData, match="it cannot be decoded"):
        convert_module.shrunk(data[: len(data) // 2], Shape(), "it")


def test_by_the_command_and_trained_on(tars: Path, tmp_path: Path) -> None:
    given = ["data", "prepare", "imagenet", "--train", tars / TRAIN, "--val", tars / VAL, "--labels", tars / LABELS]
    done = run_hora(*given, "--format", "tar", "--shorter", "32", "--to", "data/imagenet", "--jobs", "2", "--json",
                    "made.json", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "41 images to train on + 14 to validate with of 4 classes, as tar" in done.stdout
    assert json.loads((tmp_path / "made.json").read_text())["images"] == {"train": 41, "val": 14}
    about = run_hora("data", "stats", "data/imagenet", "--json", "stats.json", cwd=tmp_path)
    assert about.returncode == 0 and "val: 14 images of 4 classes, from 3 of" in about.stdout, about.stderr
    found = json.loads((tmp_path / "stats.json").read_text())["train"]
    labels = open_source(tmp_path / "data/imagenet", "train").labels
    assert found["fewest"][1] == np.bincount(labels).min() and min(found["height"], found["width"]) == 32
    train = (
        "train",
        "imagenet",
        "--arch",
        "resnet18",
        "--image-size",
        "32",
        "--resize",
        "36",
        "--batch",
        "4",
        "--loaders",
    )
    ran = run_hora(*train, "0", "--max-steps", "2", "--no-save", cwd=tmp_path, timeout_s=100)
    assert ran.returncode == 0 and "the data is generated" in ran.stdout, ran.stderr


def test_bad_input_is_named_and_nothing_is_written(tars: Path, tmp_path: Path) -> None:
    whole = (tars / TRAIN).read_bytes()
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole[: len(whole) // 2])
    empty = tmp_path / "empty.tar"
    with tarfile.open(empty, "w") as archive, io.BytesIO() as inner:
        with tarfile.open(fileobj=inner, mode="w"):
            pass
        member = tarfile.TarInfo("n00000001.tar")
        member.size = len(inner.getvalue())
        archive.addfile(member, io.BytesIO(inner.getvalue()))
    labels = (tars / LABELS).read_text().splitlines()
    fewer, other = tmp_path / "fewer.txt", tmp_path / "other.txt"
    fewer.write_text("\n".join(labels[:-1]))
    typo = tmp_path / "typo.txt"
    typo.write_text("\n".join([labels[0].replace("n", "m"), *labels[1:]]))
    other.write_text("\n".join(["n12345678", *labels[1:]]))
    for given, said in {
        (cut, tars / LABELS): "it was cut off",
        (empty, tars / LABELS): "n00000001.tar has no image in it",
        (tars / VAL, tars / LABELS): "which is not the tar file of a class",
        (tars / TRAIN, fewer): "has 14 images, and there are 13 labels",
        (tars / TRAIN, typo): f"Line 1 of the labels was read as a heading: '{labels[0].replace('n', 'm')}'",
        (tars / TRAIN, other): "not among the 4 to train on, the first 'n12345678'",
        (tars / "nothing.tar", other): "cannot be read: No such file",
    }.items():
        done = run_hora("data", "prepare", "imagenet", "--train", given[0], "--val", tars / VAL, "--labels", given[1],
                        "--to", "out", cwd=tmp_path)  # fmt: skip
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr
        assert not (tmp_path / "out").exists()
    done = run_hora("data", "prepare", "imagenet", "--train", tars / TRAIN, "--val", tars / VAL, cwd=tmp_path)
    assert done.returncode == 2 and "Give one of them: --devkit or --labels" in done.stderr


def test_labels_as_they_go_around(tmp_path: Path) -> None:
    file = tmp_path / "labels"
    for text in (
        "a.JPEG n00000001\nb.JPEG n00000002\n",
        "ImageId,PredictionString\na,n00000001 1 2\nb,n00000002 3 4\n",
    ):
        file.write_text(text)
        assert read_labels(file).classes == {"a": "n00000001", "b": "n00000002"}
    for text, said in {
        "": "no labels",
        "a.JPEG n00000001\nn00000002\n": "in one way",
        "n00000001\n17\n": "line 2",
    }.items():
        file.write_text(text)
        with pytest.raises(BadData, match=said):
            read_labels(file)
