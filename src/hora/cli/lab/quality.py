"""`hora lab quality`: does the model get worse with more workers? The work is in ``hora.lab.quality``."""

from __future__ import annotations

import click

from hora.cli.lab.flags import ExperimentFlags, experiment_flags, numbers
from hora.cli.progress import say
from hora.errors import UsageError

__all__ = ["command"]


@click.command("quality")
@click.argument("workload")
@click.option(
    "--workers", default="1,2,8,32", show_default=True, metavar="N,…", help="Worker counts; 1 is always included."
)
@click.option(
    "--factors",
    default="naive,linear,stepping,gradual5,gradual10,reduced-batch",
    metavar="NAME,…",
    help="Factors to compare; also any warm-up of 'hora plan', such as iteration:2.  [default: all six above]",
)
@click.option("--seeds", default="1,2,3", show_default=True, metavar="N,…", help="Repeat every run with each seed.")
@click.option(
    "--epochs",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Epochs per run.  [default: the workload's]",
)
@click.option("--minutes", default="", metavar="N,…", help="Also report what is reached within N minutes.")
@click.option(
    "--calibration",
    metavar="FILE|study",
    help="For --minutes: predict the time of emulated workers, as in 'hora plan'.",
)
@click.option(
    "--processes", type=click.IntRange(1), metavar="N", help="Most processes at once.  [default: one per core]"
)
@click.option(
    "--threads", type=click.IntRange(1), metavar="N", help="Threads per process.  [default: its share of the cores]"
)
@click.option("--keep-models", is_flag=True, help="Keep the final model of each run.")
@experiment_flags()
def command(
    workload: str,
    workers: str,
    factors: str,
    seeds: str,
    epochs: float | None,
    minutes: str,
    calibration: str | None,
    processes: int | None,
    threads: int | None,
    keep_models: bool,
    lab: ExperimentFlags,
) -> None:
    """Train WORKLOAD on one worker and on many, and report whether the model gets worse and which factor helps.

    Factors, one at a time: the learning rate of one worker is kept (naive), scaled with the global batch size (linear),
    or scaled and combined with a warm-up (stepping, gradual5, gradual10) or a quarter of the batch size
    (reduced-batch). If there are more workers than cores, they are emulated.
    """
    from hora.lab.quality import show
    from hora.lab.quality.conduct import check_data, result_text
    from hora.lab.quality.factors import Recipe, parse_factors
    from hora.lab.quality.measure import check, measure, refuse_exact
    from hora.lab.quality.trials import QualitySetup, cells, trials
    from hora.lab.records.files import TRIALS
    from hora.lab.show import console
    from hora.lab.throughput.cores import cores
    from hora.lab.trial.cost import samples_in
    from hora.lab.trial.parallel import run_parallel
    from hora.launch.planning.hosts import parse_hosts
    from hora.predict import calibration as known
    from hora.workloads import options_of

    check(workload)
    given = lab.settings(workload)
    if epochs is not None and "epochs" in given:
        raise UsageError("--epochs and --set epochs were both given. Leave one out.")
    where = lab.where(processes or 1)
    given_hosts = parse_hosts(where) if where else ()
    setup = QualitySetup(
        recipe=Recipe.of(workload, given, epochs),
        workers=tuple(sorted({1, *numbers(workers, "--workers")})),
        factors=parse_factors(factors),
        seeds=numbers(seeds, "--seeds"),
        processes=processes or (sum(host.slots for host in given_hosts) if given_hosts else cores()),
        hosts=where,
        threads=threads,
        keep_models=keep_models,
        samples=samples_in(workload, options_of(workload).of(given).data_folder),
    )
    refuse_exact(setup)
    limits = _minutes(minutes)
    if calibration is not None and not limits:
        raise UsageError("--calibration is for --minutes, which was not given. Give both, or neither.")
    basis = None if calibration is None else known.named(calibration)
    check_data(workload, given)
    for cell in cells(setup):
        setup.recipe.options(cell.factor, cell.workers)  # refuses before anything starts
    title = f"{workload}: quality by workers and factor"
    options = {
        "workload": workload, "workers": list(setup.workers), "factors": [f.name for f in setup.factors],
        "seeds": list(setup.seeds), "epochs": setup.recipe.epochs, "minutes": list(limits), "set": dict(given),
    }  # fmt: skip
    with lab.book("quality", title, options) as book:
        if given_hosts:
            run_parallel([each for _, _, each in trials(setup)], book.folder / TRIALS, given_hosts, say, result_text)
        measure(setup, book, say, minutes=limits, basis=basis)
    screen = console()
    show.print_results(screen, book.rows, book.findings, title)
    lab.finish(book, screen)


def _minutes(text: str) -> tuple[float, ...]:
    """
    >>> _minutes("0.5,10"), _minutes("")
    ((0.5, 10.0), ())
    """
    found = []
    for part in text.split(",") if text.strip() else []:
        try:
            value = float(part)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise UsageError(f"--minutes {text}: {part.strip()!r} is not a time above 0. Give minutes, such as 1,10.")
        found.append(value)
    return tuple(found)
