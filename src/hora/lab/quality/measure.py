"""The experiment: runs every factor on every number of workers with every seed, and summarises the outcomes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hora.errors import EnvironmentUnfit, UsageError
from hora.lab.quality import rows as table
from hora.lab.quality.conduct import Say, conduct, has_diverged, result_text
from hora.lab.quality.trials import FactorCase, QualitySetup, cells, plan_of, processes_for, trials, twins
from hora.lab.quality.verdict import findings
from hora.lab.records import ExperimentWriter
from hora.lab.records.progress import Progress
from hora.lab.throughput.cores import LoadMonitor
from hora.lab.throughput.measure import failures
from hora.lab.trial import TrialOutcome
from hora.lab.trial.cost import steps_of
from hora.predict.calibration import Basis
from hora.text import how_long, plural
from hora.workloads import WORKLOADS, options_of

__all__ = ["check", "measure", "step_time"]

_ACCURACY = "val_accuracy"  # the metric of workloads that learn to classify


def check(workload: str) -> None:
    """Refuse workloads that have no accuracy to compare."""
    if options_of(workload).usual_metric != _ACCURACY:
        learning = [name for name in WORKLOADS if options_of(name).usual_metric == _ACCURACY]
        raise UsageError(
            f"{workload} reports no accuracy, so there is no quality to compare. Choose {', '.join(learning)}; 'hora "
            "lab sweep' compares anything by any metric."
        )


def refuse_exact(setup: QualitySetup) -> None:
    """Refuse warm-ups that were given in epochs and are shorter than a step, or the same as another."""
    for cell, same in twins(setup).items():
        if cell.factor.warmup:
            raise UsageError(
                f"--factors {cell.factor.name}: {_why(setup, cell, same)}. There is nothing to compare. Give a longer "
                "warm-up, more --epochs or a smaller batch, or leave it out."
            )


def _why(setup: QualitySetup, cell: FactorCase, same: str) -> str:
    """Why a cell is the same as another."""
    plan = plan_of(setup, cell)
    steps = plan.warmup.epochs * plan.steps_per_epoch
    short = (
        f"warms up for {steps:.2g} of a step, which is no warm-up" if steps < 1 else "has the same rate at every step"
    )
    return f"on {plural(cell.workers, 'worker')} {cell.factor.name} {short}: it would be {same}"


def measure(
    setup: QualitySetup,
    book: ExperimentWriter,
    say: Say,
    *,
    minutes: Sequence[float] = (),
    basis: Basis | None = None,
) -> None:
    """Run everything; rows, findings and notes are in the book, also of what was done when it is interrupted."""
    done: dict[FactorCase, list[TrialOutcome]] = {cell: [] for cell in cells(setup)}
    planned, watch = list(trials(setup)), LoadMonitor()
    progress = Progress(book, [trial for _, _, trial in planned], say)
    book.notes[:] = methods(setup, minutes, basis)
    for cell, seed, trial in planned:
        progress.begin(f"{setup.recipe.workload}, {cell.factor.name}, {plural(cell.workers, 'worker')}, seed {seed}")
        outcome = conduct(book, trial, setup.hosts)
        done[cell].append(outcome)
        progress.tell(result_text(outcome))
        if cell.workers == 1 and outcome.state == "failed" and not has_diverged(outcome):
            raise EnvironmentUnfit(
                f"one worker cannot be trained, so there is nothing to compare with: {outcome.error} See "
                f"{outcome.folder}/log.txt."
            )
        book.rows = table.make(setup, done, minutes, step_time(basis) if basis else None)
        book.findings = findings(book.rows)
        book.write()
    outcomes = [outcome for several in done.values() for outcome in several]
    if any(outcome.result.get("generated_data") for outcome in outcomes):
        book.notes.append("the data is generated, not real: the numbers say nothing about the real data set")
    if minutes and (caution := watch.caution()):
        book.notes.append(caution)
    book.notes += failures(outcomes)
    book.write()


def step_time(basis: Basis) -> table.StepTime:
    """Predicted seconds of a step."""
    model = basis.model.steady()
    return lambda workers, batch: model.forecast(batch, workers).step_s.middle


def methods(setup: QualitySetup, minutes: Sequence[float], basis: Basis | None) -> list[str]:
    """How the figures were measured."""
    recipe = setup.recipe
    seeds, one = len(setup.seeds), recipe.options(cells(setup)[0].factor, 1)
    of = f"{plural(seeds, 'seed')}, and ± their standard deviation" if seeds > 1 else "one seed, which has no interval"
    notes = [
        f"every factor changes one thing against one worker, which trains a batch of "
        f"{one.batch} for {how_long(recipe.epochs, steps_of(one, 1, setup.samples))}; each row is of {of}",
        *(f"left out: {_why(setup, cell, same)}" for cell, same in twins(setup).items()),
    ]
    counts = sorted({cell.workers for cell in cells(setup)})
    emulated = [count for count in counts if processes_for(count, setup.processes) != count]
    if emulated:
        notes.append(
            f"{', '.join(map(str, emulated))} workers are emulated on at most {setup.processes} processes: each has "
            "its own batches, random numbers and BN statistics, so they learn what as many processes would, up to "
            "rounding; their time is not that of as many"
        )
    odd = {f.name: f.warmup_in(recipe.epochs) for f in setup.factors if f.of_90}
    if odd:
        told = ", ".join(f"{name} is {text}" for name, text in odd.items())
        notes.append(
            f"warm-ups take the share of {how_long(recipe.epochs, math.nan)} that they take of the study's 90: {told}; "
            "one of fewer than 3 epochs rises at every step"
        )
    if any(factor.parts > 1 for factor in setup.factors):
        notes.append("reduced-batch gives each worker a quarter of the batch: the global batch of a quarter of them")
    notes.append("the best epoch is chosen on the validation set, as the study does it, so best is a little too good")
    if minutes:
        how = f"predicted from {basis.about}" if basis else "not known: give --calibration to predict it"
        notes.append(
            "a fixed time counts training and validation, not start-up; of emulated workers it is "
            f"{how}{', without validation' if basis else ''}"
        )
    return notes
