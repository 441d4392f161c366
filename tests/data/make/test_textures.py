"""Generated textures: the same images in every format, classes that no single trait tells apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hora.data import jpeg
from hora.data.cifar import TEST_FILE, TRAIN_FILES, read_cifar
from hora.data.generated import is_generated
from hora.data.make.textures import MOST_CLASSES, Format, class_name, draw_texture, looks, make_textures
from hora.data.source import Source, open_source
from hora.errors import UsageError


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def samples(source: Source) -> list[tuple[int, bytes]]:
    return sorted((sample.label, sample.data) for sample in map(source.read, range(len(source))))


def test_every_format_has_the_same_images(tmp_path: Path) -> None:
    formats: tuple[Format, ...] = ("folder", "tar", "tfrecord")
    for format in formats:
        make_textures(tmp_path / format, samples=30, val=8, classes=4, size=32, format=format)
    for split, count in (("train", 30), ("val", 8)):
        folder, tar, tfrecord = (open_source(tmp_path / format, split) for format in formats)
        assert len(folder) == count and folder.classes == tuple(class_name(label) for label in range(4))
        assert tar.classes == folder.classes == tfrecord.classes
        assert samples(folder) == samples(tar) == samples(tfrecord)
        assert is_generated(tmp_path / "folder" / split)
    train, val = (samples(open_source(tmp_path / "folder", split)) for split in ("train", "val"))
    assert not {data for _, data in train} & {data for _, data in val}


def test_imagenets_layout_and_sizes_that_differ(tmp_path: Path) -> None:
    folder = make_textures(tmp_path / "set", samples=24, val=4, classes=3, size=40).folder
    assert sorted(path.name for path in folder.iterdir()) == ["GENERATED.json", "train", "val"]
    assert [path.name for path in sorted((folder / "train").iterdir())] == ["n90000000", "n90000001", "n90000002"]
    shapes = [jpeg.decode(path.read_bytes()).shape for path in (folder / "train").rglob("*.JPEG")]
    assert len(shapes) == 24 and len({shape[:2] for shape in shapes}) > 12
    assert all(32 <= min(shape[:2]) <= 50 for shape in shapes)
    assert any(height > width for height, width, _ in shapes) and any(height < width for height, width, _ in shapes)


@pytest.mark.parametrize("format", ["folder", "cifar"])
def test_the_same_seed_gives_the_same_bytes_by_any_number_of_processes(tmp_path: Path, format: Format) -> None:
    one, two, other = (
        files(
            make_textures(
                tmp_path / f"{seed}-{jobs}",
                samples=205,
                val=20,
                classes=10,
                size=16,
                format=format,
                seed=seed,
                jobs=jobs,
            ).folder
        )
        for seed, jobs in ((1, 1), (1, 2), (2, 1))
    )
    assert one == two
    assert one.keys() == other.keys() and one != other


def test_cifars_files(tmp_path: Path) -> None:
    folder = make_textures(tmp_path / "set", samples=52, val=10, format="cifar").folder
    sizes = [len(read_cifar(folder / name).labels) for name in (*TRAIN_FILES, TEST_FILE)]
    assert sum(sizes[:5]) == 52 and sizes[5] == 10 and min(sizes) == 10
    assert sorted(read_cifar(folder / TEST_FILE).labels) == list(range(10))


@pytest.mark.parametrize("classes", [2, 10, 100, MOST_CLASSES])
def test_classes_are_all_different(classes: int) -> None:
    found = looks(classes, 42)
    assert len(found) == classes == len(set(found))
    assert all(0 < look.angle < 90 for look in found)  # mirrored, it is the same class
    assert looks(classes, 42) is found or looks(classes, 42) == found


def test_no_single_trait_tells_the_class() -> None:
    found = looks(10, 42)
    for trait in ("motif", "hue", "angle"):
        values = [getattr(look, trait) for look in found]
        assert 1 < len(set(values)) <= 3  # of ten classes


def test_a_mean_colour_does_not_tell_it_but_says_something() -> None:
    found, rng = looks(10, 42), np.random.default_rng(5)
    means = np.array([[draw_texture(look, 32, 32, rng).mean(axis=(0, 1)) for _ in range(60)] for look in found])
    centres = means[:, :40].mean(axis=1)
    guessed = np.linalg.norm(means[:, 40:, None] - centres, axis=3).argmin(axis=2)
    right = (guessed == np.arange(10)[:, None]).mean()
    assert 0.12 < right < 0.4


def test_what_is_filled_is_about_as_much_as_it_says() -> None:
    """Counted on an image without anything lying on it: by the motifs' own mathematics, not their pictures."""
    from hora.data.make import textures

    grid = np.linspace(0, 8, 801, dtype=np.float32)[:-1]
    u, v = np.meshgrid(grid, grid)
    for motif in (textures._stripes, textures._dots, textures._grid, textures._zigzag):
        for fill in (0.25, 0.5, 0.75):
            inside = (motif(u, v, fill) > 0).mean()
            assert inside == pytest.approx(fill, abs=0.03), (motif.__name__, fill)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"classes": 1}, "from 2 to 1000"),
        ({"classes": 20, "format": "cifar"}, "room for ten"),
        ({"samples": 5}, "too few for 10 classes"),
        ({"size": 8}, "size=8"),
        ({"format": "zip"}, "zip"),
    ],
)
def test_wrong_numbers_are_refused(tmp_path: Path, wrong: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_textures(tmp_path / "set", **wrong)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
