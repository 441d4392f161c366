"""The predictor against the study's tables: fitted on its small runs, asked for its large ones.

Only rows of up to ``FITTED_UP_TO`` workers are read for the fit, of first batches too. The form of the model and its
priors were written down before the larger rows were looked at: ``docs/predict.md`` says what was chosen, and how.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hora.predict import published
from hora.predict.fit import FitRow, Priors, fit
from hora.predict.model import FirstBatch, Interval, Model

__all__ = ["FITTED_UP_TO", "Checked", "check", "fit_study", "held"]

FITTED_UP_TO = 8
AVERAGED_STEPS = 200  # the study's PyTorch figures are the average at batch 199, from batch 0 on


@dataclass(frozen=True)
class Checked:
    """A published row that the model has not seen, and what the model says."""

    framework: str
    batch: int
    workers: int
    published: float  # images/s
    predicted: Interval

    @property
    def error(self) -> float:
        """Predicted over published, less one."""
        return self.predicted.middle / self.published - 1


def fit_study(framework: str, *, up_to: int = FITTED_UP_TO, priors: Priors | None = None) -> Model:
    """The model of one framework of the study, from its rows of up to ``up_to`` workers."""
    rows = [FitRow(row.batch, row.workers, row.images_per_s) for row in published.throughput(framework)]
    return fit([row for row in rows if row.workers <= up_to], priors=priors, first=_first_batch(framework, up_to))


def _first_batch(framework: str, up_to: int) -> FirstBatch | None:
    """tf_cnn_benchmarks leaves ten steps of warm-up out of its figures; the PyTorch scripts leave nothing out."""
    logged = {n: seconds for n, seconds in published.first_batch(framework).items() if n <= up_to}
    if not logged:
        return None
    steady = published.one_worker_log()[-1].seconds
    average = next(line.average_s for line in published.one_worker_log() if line.batch == AVERAGED_STEPS - 1)
    alone = AVERAGED_STEPS * average - (AVERAGED_STEPS - 1) * steady
    return FirstBatch(AVERAGED_STEPS, {1: alone, **logged})


def check(*, up_to: int = FITTED_UP_TO, priors: Priors | None = None) -> list[Checked]:
    """Fit each framework, and predict every published row beyond."""
    checked = []
    for framework in published.FRAMEWORKS:
        model = fit_study(framework, up_to=up_to, priors=priors)
        checked += [
            Checked(framework, row.batch, row.workers, row.images_per_s, model.images_per_s(row.batch, row.workers))
            for row in published.throughput(framework)
            if row.workers > up_to
        ]
    return checked


def held(checked: Sequence[Checked]) -> int:
    """How many published values lie within their interval.

    >>> held([Checked("x", 32, 16, value, Interval(100.0, 90.0, 110.0, 0.9)) for value in (95.0, 120.0)])
    1
    """
    return sum(row.predicted.holds(row.published) for row in checked)
