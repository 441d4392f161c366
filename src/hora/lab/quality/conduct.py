"""What experiments of learning share: seeing that there is data, running a trial once, and telling of it."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping
from typing import Any

from hora.errors import UsageError
from hora.lab import trial as trials
from hora.lab.quality.curves import learned
from hora.lab.records import ExperimentWriter
from hora.lab.records.files import TRIALS
from hora.lab.trial import Trial, TrialOutcome
from hora.text import duration_text
from hora.workloads import options_of

__all__ = ["Say", "check_data", "conduct", "has_diverged", "result_text", "state_of"]

Say = Callable[[str], None]


def check_data(workload: str, options: Mapping[str, Any]) -> None:
    """Refuse to begin without any data, rather than with every trial alike.

    >>> check_data("synthetic", {})
    >>> check_data("mnist", {"data": "/no/such/folder"})
    Traceback (most recent call last):
    hora.errors.UsageError: there is no /no/such/folder. mnist reads its data there. Say where it is with --set data=...
    """
    kind = options_of(workload)
    place = kind.of(options).data_folder
    if "data" not in kind.unused and not place.exists() and not glob.glob(str(place)):
        raise UsageError(
            f"there is no {place}. {workload} reads its data there. Say where it is with --set data=DIR, or see 'hora "
            "data' for how to get or make it."
        )


def has_diverged(outcome: TrialOutcome) -> bool:
    """Whether it ended because a loss or a gradient was not a number.

    >>> ended = TrialOutcome(trial=Trial(name="a", workload="mnist"), state="failed", folder="",
    ...                 error="step 8: loss is nan on rank 0. The run ends here (HORA_NONFINITE=stop)")
    >>> has_diverged(ended)
    True
    """
    return outcome.state == "failed" and "HORA_NONFINITE" in outcome.error


def state_of(outcome: TrialOutcome) -> str:
    """The state as the tables show it: done, diverged, out of memory, failed, timeout, interrupted."""
    return "diverged" if has_diverged(outcome) else outcome.state


def conduct(book: ExperimentWriter, trial: Trial, place: str = "") -> TrialOutcome:
    """Run a trial, on the hosts of ``place`` if there are any, unless it was run before, wherever that was: one that
    diverged would do so again."""
    before = trials.kept(trial, book.folder / TRIALS / trial.name)
    return before if before is not None and has_diverged(before) else book.run(trial, place)


def result_text(outcome: TrialOutcome) -> str:
    """The outcome, in a few words."""
    if not outcome.done:
        return state_of(outcome)
    run = learned(outcome.epochs)
    return "done" if run is None else f"top-1 {100 * run.top1[run.best]:.2f} % in {duration_text(run.seconds[-1])}"
