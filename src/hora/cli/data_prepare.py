"""`hora data prepare`, `convert` and `stats`: options and output; the work is in ``hora.data.convert``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hora.cli.data import JOBS, JSON, ConsoleReporter, jobs_of, short, tell, write
from hora.errors import BadData, UsageError

if TYPE_CHECKING:
    from hora.data.convert import Converted, Shape

__all__ = ["convert", "prepare", "stats"]

_F = TypeVar("_F", bound=Callable[..., Any])
_PATH = click.Path(path_type=Path)


def _flags(function: _F) -> _F:
    """What preparing and converting have in common."""
    pixels = click.IntRange(8)
    for option in (
        JSON,
        JOBS,
        click.option(
            "--per-shard", type=click.IntRange(1), default=1000, show_default=True, metavar="N",
            help="Images per shard.",
        ),
        click.option(
            "--quality", type=click.IntRange(1, 100), default=90, show_default=True, metavar="N",
            help="JPEG quality of resized images.",
        ),
        click.option("--square", type=pixels, metavar="PIXELS",
                     help="Resize to a square; the reference study used 250."),
        click.option("--shorter", type=pixels, metavar="PIXELS",
                     help="Shrink to this length of the shorter side, such as 256."),
        click.option(
            "--format", "format_", type=click.Choice(["folder", "tfrecord", "tar"]), default="folder",
            show_default=True, help="Class folders, TFRecord shards or tar shards.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


@click.group()
def prepare() -> None:
    """Prepare a published data set for training."""


@prepare.command("imagenet")
@click.option(
    "--train", type=_PATH, required=True, metavar="TAR", help="ILSVRC2012_img_train.tar, or a folder of the tars in it."
)
@click.option("--val", type=_PATH, required=True, metavar="TAR", help="ILSVRC2012_img_val.tar.")
@click.option("--devkit", type=_PATH, metavar="TAR", help="ILSVRC2012_devkit_t12.tar.gz, for the classes of --val.")
@click.option("--labels", type=_PATH, metavar="FILE", help="Instead of --devkit: a class per line, such as n01440764.")
@click.option(
    "--to", "folder", type=_PATH, default=Path("data/imagenet"), show_default=True, metavar="DIR",
    help="Folder to write to.",
)  # fmt: skip
@_flags
def imagenet(
    train: Path, val: Path, devkit: Path | None, labels: Path | None, folder: Path, format_: Any, shorter: int | None,
    square: int | None, quality: int, per_shard: int, jobs: int | None, json_file: Path | None,
) -> None:  # fmt: skip
    """Convert ImageNet's tars to folders or shards, and resize the images if asked.

    Nothing is unpacked first; truncated archives and labels that do not match are found before anything is written. If
    interrupted, the same command continues where it stopped.
    """
    from hora.data.convert import SplitLocation
    from hora.data.convert import convert as work
    from hora.data.generated import generated_facts
    from hora.data.published import read_devkit, read_labels, training, validation

    if (devkit is None) == (labels is None):
        raise UsageError("the classes of --val are in another file. Give one of them: --devkit or --labels.")
    shape = _shape(shorter, square, quality)
    with ConsoleReporter() as console:
        console.progress("reading the archives", 0, 0)
        source = training(train)
        known = read_devkit(devkit) if devkit else read_labels(labels or Path())
        other = validation(val, known, source.classes)
        places, scans = {}, {"train": source, "val": other}
        facts = {"sources": {path.resolve().name: _size(path) for path in (train, val)}}
        with tempfile.TemporaryDirectory(prefix="hora-prepare-") as scratch:  # for the processes that write
            for split, tars in scans.items():
                tars.save(Path(scratch, split))
                places[split] = SplitLocation(str(Path(scratch, split)), scan=True)
            made = work(
                places, folder, format=format_, shape=shape, per_shard=per_shard, jobs=jobs_of(jobs), facts=facts,
                generated=generated_facts(train) if not train.is_dir() else None, reporter=console,
            )  # fmt: skip
    _told(made, format_, json_file)


@click.command()
@click.argument("source", type=_PATH)
@click.option("--to", "folder", type=_PATH, required=True, metavar="DIR", help="Folder to write to.")
@_flags
def convert(
    source: Path, folder: Path, format_: Any, shorter: int | None, square: int | None, quality: int, per_shard: int,
    jobs: int | None, json_file: Path | None,
) -> None:  # fmt: skip
    """Convert images between folders, TFRecord shards and tar shards.

    SOURCE is a folder with train and val, in any of these formats. If interrupted, the same command continues where it
    stopped.
    """
    from hora.data.convert import SplitLocation
    from hora.data.convert import convert as work
    from hora.data.generated import generated_facts

    if not source.is_dir():
        raise BadData(f"{source} is not a folder. Give the one that has train and val, as folders or as shards.")
    places = {split: SplitLocation(str(source.resolve()), split) for split in ("train", "val")}
    with ConsoleReporter() as console:
        made = work(
            places, folder, format=format_, shape=_shape(shorter, square, quality), per_shard=per_shard,
            jobs=jobs_of(jobs), facts={"sources": {source.resolve().name: _size(source)}},
            generated=generated_facts(source), reporter=console,
        )  # fmt: skip
    _told(made, format_, json_file)


@click.command()
@click.argument("source", type=_PATH)
@click.option(
    "--sample", type=click.IntRange(1), default=500, show_default=True, metavar="N", help="Images to measure."
)
@JSON
def stats(source: Path, sample: int, json_file: Path | None) -> None:
    """Count images by class, and measure the sizes and colours of some."""
    from hora.data.source import open_source
    from hora.data.statistics import describe

    found = {}
    for split in ("train", "val"):
        about = found[split] = describe(open_source(source, split), sample=sample)
        (rare, few), (common, many) = about["fewest"], about["most"]
        mean, deviation = (" ".join(f"{value:.3f}" for value in about[name]) for name in ("mean", "deviation"))
        each = f"{few:,} of each" if few == many else f"from {few:,} of {rare} to {many:,} of {common}"
        tell(f"{split}: {about['images']:,} images of {about['classes']:,} classes, {each}")
        size = f"{about['height']:g} x {about['width']:g} pixels and {about['bytes']:,.0f} bytes in the middle"
        tell(f"  of {about['looked_at']:,}: {size}; colours {mean}, deviation {deviation}")
    write(json_file, found)


def _shape(shorter: int | None, square: int | None, quality: int) -> Shape:
    from hora.data.convert import Shape

    if shorter and square:
        raise UsageError("--shorter and --square are two ways to resize. Give only one.")
    return Shape(shorter or 0, square or 0, quality)


def _size(path: Path) -> int:
    """The bytes of a source: with its name they tell it from others, wherever it lies and is seen from."""
    if not path.is_dir():
        return path.stat().st_size
    files = (file for file in path.rglob("*") if not file.name.startswith("."))  # the index of shards is made by us
    return sum(file.stat().st_size for file in files if file.is_file())


def _told(made: Converted, format_: str, json_file: Path | None) -> None:
    from hora.text import size_text

    counts = f"{made.images['train']:,} images to train on + {made.images['val']:,} to validate with"
    kept = f"; {made.kept:,} of {made.parts:,} parts were there already" if made.kept else ""
    size = size_text(made.nbytes)
    where = short(made.folder)
    tell(f"{where}: {counts} of {made.classes:,} classes, as {format_}; {size}, checked, in {made.seconds:.1f} s{kept}")
    write(json_file, made._asdict())
