"""`hora lab elastic`: options and output; the work is in ``hora.lab.elastic``."""

from __future__ import annotations

import re

import click

from hora.cli.lab.flags import ExperimentFlags, experiment_flags, numbers
from hora.cli.progress import say
from hora.errors import UsageError

__all__ = ["command"]


@click.command("elastic")
@click.argument("workload", default="mnist")
@click.option("--workers", default="1:2", show_default=True, metavar="MIN:MAX", help="As --elastic of 'hora train'.")
@click.option("--logical-workers", type=click.IntRange(1), metavar="V", help="Logical workers.  [default: MAX]")
@click.option("--kills", type=click.IntRange(1), default=3, show_default=True, help="Workers killed in a run.")
@click.option("--every", default="5s", show_default=True, metavar="S", help="Seconds between two kills.")
@click.option("--seeds", default="1", show_default=True, metavar="N,…", help="A run for each; it chooses whom to kill.")
@click.option("--spares", type=click.IntRange(0), default=0, show_default=True, help="Workers that are kept ready.")
@click.option("--steps", type=click.IntRange(1), help="Steps of a run.  [default: as many as the kills take]")
@experiment_flags()
def command(
    workload: str,
    workers: str,
    logical_workers: int | None,
    kills: int,
    every: str,
    seeds: str,
    spares: int,
    steps: int | None,
    lab: ExperimentFlags,
) -> None:
    """Kill workers of WORKLOAD by plan, with SIGKILL, and compare with an undisturbed run.

    Says how long it took until steps were made again, how much of the time was used, and whether the parameters at the
    end are the same to the bit.
    """
    from hora.lab.elastic import measure, show
    from hora.lab.show import console, fitted, titled
    from hora.workloads import options_of

    options = lab.settings(workload)
    if lab.hosts or lab.hostfile is not None:
        raise UsageError(
            "'hora lab elastic' kills workers of this host, and compares bits, which are equal on one host."
        )
    if workload in ("gan3d", "synthetic"):
        raise UsageError(f"{workload} cannot be elastic. It can be mnist, cifar10 or imagenet.")
    fewest, most = _range(workers)
    logical = logical_workers or most
    setup = measure.Setup(
        workload, fewest, most, logical, kills, _seconds(every), numbers(seeds, "--seeds"), steps or 0, spares, options
    )
    options_of(workload).of({**options, "logical_workers": logical})
    given = {"workload": workload, "workers": workers, "logical_workers": logical, "kills": kills,
             "every_s": setup.every_s, "seeds": setup.seeds, "spares": spares, "steps": steps,
             "set": options}  # fmt: skip
    title = f"{workload}: elastic"
    with lab.book("elastic", title, given) as book:
        measure.measure(setup, book, say)
    screen = console()
    screen.print(fitted(show.table(book.rows, title), screen, show.EXPENDABLE))
    for finding in book.findings:
        titled(screen, f"{finding['title'][0].upper()}{finding['title'][1:]}.")
    lab.finish(book, screen)


def _range(text: str) -> tuple[int, int]:
    """
    >>> _range("1:4")
    (1, 4)
    """
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if not found or not 1 <= int(found[1]) < int(found[2]):
        raise UsageError(f"--workers {text}: give the fewest and the most workers, such as 1:2.")
    return int(found[1]), int(found[2])


def _seconds(text: str) -> float:
    """
    >>> _seconds("10s"), _seconds("2.5")
    (10.0, 2.5)
    """
    found = re.fullmatch(r"(\d+(\.\d+)?)\s*s?", text)
    if not found or float(found[1]) < 1:
        raise UsageError(f"--every {text}: give seconds, 1 or more, such as 10s.")
    return float(found[1])
