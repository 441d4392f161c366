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
@click.option("--workers", default="1:2", show_default=True, metavar="MIN:MAX", help="As in 'hora train --elastic'.")
@click.option("--logical-workers", type=click.IntRange(1), metavar="N", help="Logical workers.  [default: MAX]")
@click.option(
    "--kills", type=click.IntRange(1), default=3, show_default=True, metavar="N", help="Workers to kill per run."
)
@click.option("--every", default="5s", show_default=True, metavar="SECONDS", help="Time between two kills.")
@click.option(
    "--seeds", default="1", show_default=True, metavar="N,…", help="One run per seed; it chooses the workers to kill."
)
@click.option(
    "--spares", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Standby workers to keep ready."
)
@click.option(
    "--steps", type=click.IntRange(1), metavar="N", help="Steps per run.  [default: as many as the kills take]"
)
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
    """Kill workers of WORKLOAD while they train, with SIGKILL, and compare with an undisturbed run.

    Reports how long it took until training continued, how much of the time was spent training (goodput), and whether
    the final parameters are bitwise the same.
    """
    from hora.lab.elastic import measure, show
    from hora.lab.show import console, fitted, titled
    from hora.workloads import WORKLOADS, options_of

    options = lab.settings(workload)
    if lab.hosts or lab.hostfile is not None:
        raise UsageError(
            "'hora lab elastic' runs on this host only, where results are bitwise reproducible. Leave the hosts out."
        )
    if options_of(workload).not_elastic:
        can = [name for name in WORKLOADS if not options_of(name).not_elastic]
        raise UsageError(f"{workload} cannot be elastic. Use {', '.join(can)}.")
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
