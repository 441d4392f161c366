"""The forecast that `hora plan` prints: for these workers, for many more, and its assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from hora.predict.calibration import Basis
from hora.predict.model import Forecast, Interval
from hora.predict.network import ALGORITHMS, Algorithm
from hora.schedule.plan import LearningRatePlan
from hora.text import size_text

__all__ = ["FAR", "Outlook", "document", "outlook", "outlook_of"]

FAR = (256, 1024, 4096)  # workers that nobody here has, but somebody asks about
ALWAYS = (
    "every worker's data loading keeps up, and validation, checkpoints and start-up are not counted",
    "a worker's batch stays the same, so the global batch grows with the workers",
)
FAR_ASSUMPTIONS = (
    "all hosts are connected as well as two are: no switch in between is shared or overloaded",
    "the step times of workers stay normally distributed, without rare long pauses",
    "agreeing on what to sum is not counted: it takes Hora's coordinator about 0.5 ms a worker and step",
)


@dataclass(frozen=True)
class Outlook:
    """What is expected of a run, and of the same job on more workers."""

    here: Forecast
    total_steps: int
    run_s: Interval
    farther: dict[Algorithm, tuple[Forecast, ...]]
    algorithm: Algorithm
    about: str
    assumptions: tuple[str, ...]
    far_assumptions: tuple[str, ...] = FAR_ASSUMPTIONS


def outlook(
    basis: Basis, *, workers: int, batch: int, total_steps: int, accumulation: int = 1, far: Sequence[int] = FAR
) -> Outlook:
    """Forecast a run. ``batch`` is what a worker takes at once; several in a step if it accumulates.

    >>> from hora.predict.calibration import basis_of_step
    >>> seen = outlook(basis_of_step(0.3, 64, gradient_bytes=102e6, per_host=4), workers=8, batch=64, total_steps=1000)
    >>> seen.here.hosts, 300 < seen.run_s.middle < 600, sorted(seen.farther)
    (2, True, ['hierarchical', 'ring', 'tree'])
    """
    model = basis.model.steady()
    samples = batch * accumulation
    if accumulation > 1:  # all batches of a step are computed one after the other, and communicated once
        model = replace(model, compute={samples: accumulation * model.compute_s(batch)})
    here = model.forecast(samples, workers)
    step = here.step_s
    run = Interval(step.middle * total_steps, step.low * total_steps, step.high * total_steps, step.level)
    farther: dict[Algorithm, tuple[Forecast, ...]] = {}
    for algorithm in ALGORITHMS:
        other = replace(model, setting=replace(model.setting, algorithm=algorithm))
        farther[algorithm] = tuple(other.forecast(samples, n) for n in far if n > workers)
    added = [f"gradients have {size_text(model.setting.gradient_bytes)} and are summed {_how(model.setting.algorithm)}"]
    if batch not in basis.model.compute:
        known = ", ".join(map(str, sorted(basis.model.compute)))
        added.append(f"the time of a batch of {batch} follows from that of {known}")
    assumptions = (*basis.assumptions, *added, *ALWAYS)
    return Outlook(here, total_steps, run, farther, model.setting.algorithm, basis.about, assumptions)


def _how(algorithm: Algorithm) -> str:
    return {
        "ring": "in one ring through all workers",
        "tree": "up and down a tree",
        "hierarchical": "inside each host first, then in a ring over hosts",
    }[algorithm]


def outlook_of(plan: LearningRatePlan, basis: Basis) -> Outlook:
    """Forecast the run of a learning-rate plan.

    >>> from hora.predict.calibration import basis_of_step
    >>> outlook_of(LearningRatePlan(workers=8, batch=64, epochs=1), basis_of_step(0.3, 64)).total_steps
    2502
    """
    return outlook(
        basis, workers=plan.workers, batch=plan.batch, accumulation=plan.accumulation, total_steps=plan.total_steps
    )


def document(plan: LearningRatePlan, seen: Outlook | None) -> dict[str, Any]:
    """A plan and its forecast as `hora plan --json` writes them, with the learning rate of every epoch.

    >>> made = document(LearningRatePlan(workers=8, epochs=2), None)
    >>> made["global_batch"], made["epochs"], made["predicted"]
    (256, [{'epoch': 0, 'lr': 0.1}, {'epoch': 1, 'lr': 0.1}], None)
    """
    return {
        "plan": plan,
        "global_batch": plan.global_batch,
        "peak_lr": plan.peak_lr,
        "steps_per_epoch": plan.steps_per_epoch,
        "total_steps": plan.total_steps,
        "cautions": plan.cautions(),
        "epochs": [{"epoch": epoch, "lr": plan.lr_at_epoch(epoch)} for epoch in range(max(1, round(plan.epochs)))],
        "predicted": None if seen is None else asdict(seen),
    }
