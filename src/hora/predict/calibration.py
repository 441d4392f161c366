"""What a prediction starts from: a file with a table of throughputs or with measured figures, or one step time.

Everything becomes a ``Model``, together with the assumptions that go into it, in words. A file that has ``rows`` is a
table, to be fitted; one that has ``compute_s`` is a calibration, as ``calibrate.py`` writes it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from hora.errors import BadData, UsageError
from hora.predict.fit import FitRow, Priors, fit
from hora.predict.model import Model, Setting
from hora.predict.network import Algorithm, Link, parse_link
from hora.schedule.plan import IMAGENET_SAMPLES, LearningRatePlan

__all__ = [
    "Basis",
    "Calibration",
    "LinkFacts",
    "ThroughputTable",
    "basis_for",
    "basis_of_step",
    "named",
    "read",
    "study",
]

STUDY = "study"  # what stands for the reference study in the place of a file
RESNET50_BYTES = 102_228_128
DRAWS = 2000
USUAL_INSIDE, USUAL_BETWEEN = Link(10e9, 5e-6), Link(1.1e9, 50e-6)  # PCI Express 3.0 or shared memory; 10 Gbit Ethernet
USUAL_EXPOSED, USUAL_JITTER, USUAL_SCATTER = 0.5, 0.02, 0.03


class LinkFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link in a file."""

    bytes_per_s: float
    latency_s: float = 0.0


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured figures of one job. Those not given are the usual ones, and are named as assumptions."""

    compute_s: float  # a step of one worker, with `batch` samples
    batch: int
    gradient_bytes: float
    per_host: int
    inside: LinkFacts | None = None
    between: LinkFacts | None = None
    exposed: float | None = None  # the share of communication that is not hidden
    jitter: float | None = None  # standard deviation of a worker's step, as a share of it
    scatter: float | None = None  # of a measurement, run to run
    algorithm: Algorithm = "hierarchical"
    about: str = ""
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shares = (self.exposed, self.jitter, self.scatter)
        rates = [link.bytes_per_s for link in (self.inside, self.between) if link]
        if not all(0 < value < math.inf for value in (self.compute_s, self.batch, self.per_host, *rates)):
            raise ValueError("compute_s, batch, per_host and every bytes_per_s must be above 0")
        if self.gradient_bytes < 0 or any(value is not None and not 0 <= value <= 1 for value in shares):
            raise ValueError("gradient_bytes must not be negative; exposed, jitter and scatter lie between 0 and 1")


class ThroughputTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of throughputs, and what is known besides."""

    rows: tuple[FitRow, ...]
    priors: Priors = Priors()
    about: str = ""


class Basis(NamedTuple):
    """A model, where it comes from, and what it takes for granted."""

    model: Model
    about: str
    assumptions: tuple[str, ...]

    def of(
        self,
        *,
        gradient_bytes: float | None = None,
        per_host: int | None = None,
        algorithm: Algorithm | None = None,
        link: str | None = None,
    ) -> Basis:
        """The same with what is known better; ``link`` is text, such as 10gbit:50us."""
        given = {"gradient_bytes": gradient_bytes, "per_host": per_host, "algorithm": algorithm}
        setting = replace(self.model.setting, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
        basis = self._replace(model=replace(self.model, setting=setting))
        if link is None:
            return basis
        said = f"between hosts gradients move over {link}, as --link says"
        assumptions = (*(text for text in basis.assumptions if "--link" not in text), said)
        return basis._replace(model=basis.model.over(parse_link(link)), assumptions=assumptions)


def model_of(given: Calibration) -> Basis:
    """The model of measured figures: each spreads as much as such a measurement does.

    >>> facts = Calibration(compute_s=0.1, batch=32, gradient_bytes=1e8, per_host=2, jitter=0.0, exposed=1.0,
    ...                     inside=LinkFacts(bytes_per_s=1e10), between=LinkFacts(bytes_per_s=1e9))
    >>> basis = model_of(facts)
    >>> round(basis.model.forecast(32, 4).step_s.middle, 2)  # 0.1 to compute, 0.01 inside, 0.1 between hosts
    0.21
    """
    assumed = list(given.assumptions)
    if given.inside is None:
        assumed.append(f"inside a host gradients move at {_link_text(USUAL_INSIDE)}")
    if given.between is None:
        assumed.append(f"between hosts they move at {_link_text(USUAL_BETWEEN)}, as over 10 Gbit Ethernet; give --link")
    if given.exposed is None:
        assumed.append(f"{USUAL_EXPOSED:.0%} of communication is not hidden behind the backward pass")
    if given.jitter is None:
        assumed.append(f"a worker's step time varies by {USUAL_JITTER:.0%}, and all wait for the slowest")
    rng = np.random.default_rng(1)

    def spread(value: float, share: float) -> NDArray[np.float64]:
        return value * np.exp(share * rng.standard_normal(DRAWS))

    def chosen(value: float | None, usual: float) -> float:
        return usual if value is None else value

    inside = USUAL_INSIDE if given.inside is None else Link(given.inside.bytes_per_s, given.inside.latency_s)
    between = USUAL_BETWEEN if given.between is None else Link(given.between.bytes_per_s, given.between.latency_s)
    scatter = chosen(given.scatter, USUAL_SCATTER)
    # What was measured is known to a tenth, because links and overlap vary with load; what is only usual, to a third.
    sure = {True: 0.1, False: 0.3}
    draws = {
        "inside": spread(float(inside.bytes_per_s), sure[given.inside is not None]),
        "between": spread(float(between.bytes_per_s), sure[given.between is not None]),
        "inside_latency": spread(float(inside.latency_s), sure[given.inside is not None]),
        "latency": spread(float(between.latency_s), sure[given.between is not None]),
        "exposed": np.minimum(spread(chosen(given.exposed, USUAL_EXPOSED), sure[given.exposed is not None]), 1.0),
        "jitter": spread(chosen(given.jitter, USUAL_JITTER), sure[given.jitter is not None]),
        "scatter": np.full(DRAWS, scatter),
        "growth": np.zeros(DRAWS),
    }
    setting = Setting(given.gradient_bytes, given.per_host, given.algorithm)
    model = Model(setting, draws, {given.batch: spread(given.compute_s, scatter)})
    return Basis(model, given.about or "the figures given", tuple(assumed))


def basis_of_step(step_s: float, batch: int, *, gradient_bytes: float = RESNET50_BYTES, per_host: int = 4) -> Basis:
    """A basis from nothing but the step time of one worker.

    >>> basis = basis_of_step(0.3, 64, gradient_bytes=102e6, per_host=4)
    >>> basis.about
    "one worker's step of 300 ms with 64 samples"
    >>> len(basis.assumptions)
    4
    """
    about = f"one worker's step of {1e3 * step_s:.3g} ms with {batch} samples"
    if not 0 < step_s < math.inf:
        raise UsageError(f"a step of {1e3 * step_s:g} ms cannot be predicted. Give milliseconds above 0")
    return model_of(
        Calibration(compute_s=step_s, batch=batch, gradient_bytes=gradient_bytes, per_host=per_host, about=about)
    )


def study(framework: str = "horovod+pytorch") -> Basis:
    """The reference study's job, fitted to its published rows of up to 8 GPUs; a long run, so without a first batch."""
    from hora.predict.check import FITTED_UP_TO, fit_study

    about = f"ResNet-50 with {framework} as the reference study measured it: P100 GPUs, 4 a host, FDR InfiniBand"
    fitted = f"fitted to published rows of up to {FITTED_UP_TO} GPUs, with the network the study describes"
    return Basis(fit_study(framework).steady(), about, (fitted,))


def basis_for(plan: LearningRatePlan, *, step_s: float | None = None, calibration: str | None = None) -> Basis | None:
    """What the time of a plan is predicted from: one worker's step, a calibration, or the study if the samples are
    ImageNet's. None if nothing is known.

    >>> basis_for(LearningRatePlan(samples=1000, batch=64), step_s=0.3).about
    "one worker's step of 300 ms with 64 samples"
    >>> basis_for(LearningRatePlan(samples=1000)) is None
    True
    """
    if step_s is not None:
        return basis_of_step(step_s, plan.batch)
    if calibration is not None:
        return named(calibration)
    return study() if plan.samples == IMAGENET_SAMPLES else None


def named(text: str) -> Basis:
    """What ``--calibration`` names: a file, or the reference study."""
    return study() if text == STUDY else read(Path(text))


def read(file: Path) -> Basis:
    """The model that a file describes, be it a table or a calibration."""
    try:
        text = file.read_bytes()
        fields = msgspec.json.decode(text)
        if isinstance(fields, dict) and "rows" in fields:
            table = msgspec.json.decode(text, type=ThroughputTable)
            return Basis(fit(table.rows, priors=table.priors), table.about or f"the table in {file.name}", ())
        return model_of(msgspec.json.decode(text, type=Calibration))
    except OSError as reason:
        raise UsageError(
            f"{file} cannot be read: {reason.strerror}. It should hold a table or a calibration. Check the name"
        ) from reason
    except msgspec.MsgspecError as reason:
        raise BadData(
            f"{file} is not a calibration: {reason}. Give it rows (batch, workers, "
            "images_per_s), or compute_s, batch, gradient_bytes and per_host, as docs/predict.md shows"
        ) from reason


def _link_text(link: Link) -> str:
    return f"{float(link.bytes_per_s) / 1e9:.3g} GB/s and {1e6 * float(link.latency_s):.3g} us a turn"
