"""About how long a trial will take: to start, and then that many samples at a speed that is known from trials that were
run before in the same place, or guessed. A guess is only good until something has run; whoever tells it says so."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import msgspec

from hora.data.generated import generated_facts
from hora.errors import BadData
from hora.lab.trial import FILE, Trial, TrialOutcome, load, usage
from hora.text import count_text
from hora.workloads import WorkloadOptions, options_of

__all__ = ["Costs", "TrialSpeed", "samples_in", "steps_of"]

START_S = 6.0  # launching, importing, reading data
_KIND = ("framework", "network", "model", "arch", "depth", "image_size", "precision")  # options that speed depends on
_MOST = 200  # outcomes that are read, the newest


class TrialSpeed(msgspec.Struct, frozen=True):
    """``trials`` is of how many it is known; 0 if it is a guess."""

    start_s: float
    sample_s: float  # of one process
    trials: int = 0

    @property
    def basis(self) -> str:
        """The estimate's basis, in words.

        >>> TrialSpeed(6.0, 0.002).basis, TrialSpeed(4.0, 0.002, 3).basis
        ('a guess: 6 s to start a trial, 500 images/s a core', 'as long as 3 such trials before')
        """
        if self.trials:
            return f"as long as {self.trials} such trial{'s' if self.trials > 1 else ''} before"
        return f"a guess: {self.start_s:.0f} s to start a trial, {count_text(1 / self.sample_s)} images/s a core"


class Costs:
    """What is known of trials in ``place``, a folder of experiments."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._known: dict[tuple[str, ...], list[TrialSpeed]] | None = None

    def speed(self, trial: Trial) -> TrialSpeed:
        """The speed of such a trial, on the same number of workers if there were any."""
        if self._known is None:
            self._known = _read(self._place)
        kind = _kind(trial)
        known = self._known.get((*kind, str(trial.workers))) or self._known.get(kind)
        if known:
            start_s, sample_s = (
                statistics.median(getattr(each, name) for each in known) for name in ("start_s", "sample_s")
            )
            return TrialSpeed(start_s, sample_s, len(known))
        fast = options_of(trial.workload).speed_of(trial.options)
        return TrialSpeed(START_S, max(1.0, trial.workers / usage.cores()) / fast)

    def expect(self, trial: Trial) -> float:
        """Seconds that it will take, about."""
        options = options_of(trial.workload).of(trial.options)
        speed = self.speed(trial)
        return speed.start_s + steps_of(options, trial.workers) * _of_a_process(options, trial.workers) * speed.sample_s


def _kind(trial: Trial) -> tuple[str, ...]:
    return trial.workload, *(f"{name}={trial.options[name]}" for name in _KIND if name in trial.options)


def _of_a_process(options: WorkloadOptions, workers: int) -> float:
    """Samples that a process takes in a step."""
    return options.batch * options.accumulate * max(1.0, options.emulate_workers / workers)


def _read(place: Path) -> dict[tuple[str, ...], list[TrialSpeed]]:
    """The speeds of trials that are done, by kind, and by kind and workers."""
    found: dict[tuple[str, ...], list[TrialSpeed]] = {}
    paths = sorted(place.glob(f"*/trials/*/{FILE}"), key=_time, reverse=True)
    for path in paths[:_MOST]:
        try:
            outcome = load(path.parent)
        except BadData:
            continue
        if (speed := _speed_of(outcome)) is not None:
            kind = _kind(outcome.trial)
            for key in (kind, (*kind, str(outcome.trial.workers))):
                found.setdefault(key, []).append(speed)
    return found


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _speed_of(outcome: TrialOutcome) -> TrialSpeed | None:
    if not outcome.done or not outcome.step_s:
        return None
    options = options_of(outcome.trial.workload).of(outcome.trial.options)
    sample_s = statistics.median(outcome.step_s) / _of_a_process(options, outcome.trial.workers)
    return TrialSpeed(START_S if math.isnan(outcome.first_batch_s) else outcome.first_batch_s, sample_s)


def steps_of(options: WorkloadOptions, workers: int, samples: int = 0) -> float:
    """Steps of a run on that many processes; ``samples`` are those of an epoch, 0 to look them up.

    >>> steps_of(options_of("mnist").of({"epochs": 2, "batch": 50}), 2, samples=1000)
    20.0
    >>> steps_of(options_of("synthetic").of({"max_steps": 25}), 2)
    25.0
    """
    a_step = options.batch * options.accumulate * (options.emulate_workers or workers)
    return options.steps(a_step, samples or samples_in(options.workload, options.data_folder))


def samples_in(workload: str, folder: Path) -> int:
    """How many samples there are to train on: counted where that is quick, else as many as the real set has.

    >>> samples_in("mnist", Path("/no/such/folder"))
    60000
    """
    kind = options_of(workload)
    try:
        if counted := kind.count_samples(folder):
            return counted
        facts = generated_facts(folder) or {}
        if isinstance(facts.get("samples"), int) and facts["samples"] > 0:
            return int(facts["samples"])
    except (BadData, OSError):
        pass
    return kind.usual_samples
