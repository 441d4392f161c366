"""A trial: one configuration of `hora train`, run once in a child process and watched.

``run`` promises: the child has a session of its own and prints to ``log.txt``; whatever ends it (itself, the time
limit, Ctrl-C here, the death of this process) nothing of it stays; its outcome is in ``outcome.json``, which is
complete or absent. A trial whose folder holds the outcome of an equal one is not run again: that is how experiments
continue after an interruption. How steps become images/s is in ``measure``.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from hora.config import env
from hora.errors import BadData
from hora.lab.trial import measure, reason, turns
from hora.lab.trial.child import Child
from hora.workloads import folder as run_folder
from hora.workloads import options_of, run_record
from hora.workloads.start import worker_folder

__all__ = ["FILE", "LOG", "SPEED_ONLY", "OutcomeState", "Trial", "TrialOutcome", "command_of", "kept", "load", "run"]

FILE = "outcome.json"
LOG = "log.txt"
RESULT = "result.json"
TIMELINE = "timeline.json"
SPEED_ONLY: Mapping[str, Any] = {"validate": False, "save": False}  # options of a trial that is only to be timed
OutcomeState = Literal["done", "out of memory", "failed", "timeout", "interrupted"]

_ANSWERS = ("done", "out of memory", "timeout")  # it would come out the same again


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration."""

    name: str  # unique in its experiment, safe as a folder name
    workload: str
    workers: int = 1
    options: dict[str, Any] = {}  # of hora train, by field name: {"batch": 64, "max_steps": 50}
    threads_per_worker: int | None = None
    inter_threads: int | None = None  # of torch's inter-op pool
    transport: str = "auto"  # auto, shm, gloo, mpi
    independent: bool = False  # the same processes on the same cores, each training by itself
    by_turns: bool = False  # by itself, in step and together, by turns (``lab.trial.turns`` takes them apart)
    hosts: str = ""  # as -H takes them
    elastic: str = ""  # MIN:MAX; then ``workers`` is the first size
    spares: int = 0  # of an elastic job
    timeline: bool = False
    env: dict[str, str] = {}  # more variables
    timeout_s: float = 3600.0


class TrialOutcome(msgspec.Struct, kw_only=True):
    """What is known after it ran. A number that is not known is nan, which is null in JSON."""

    trial: Trial
    state: OutcomeState
    error: str = ""  # one line, if it is not done
    folder: str
    seconds: float = 0.0  # of the whole child
    first_batch_s: float = math.nan  # from the start of the child to the end of its first step
    step_s: list[float] = []  # steady steps of rank 0, without those of the warm-up; by turns: those together
    warmup_steps: int = 0  # how many were left out
    rank_step_s: dict[int, float] = {}  # the median steady step of each rank that kept a record
    images_per_s: float = math.nan  # samples of a step / median of step_s; if independent, the sum over workers
    images_per_s_low: float = math.nan  # where that median lies with 90 %
    images_per_s_high: float = math.nan
    images_per_s_study: float = math.nan  # samples of a step / mean of the first 200 steps, the very first included
    study_steps: int = 0  # how many that were
    data_s: float = math.nan  # median wait for data in a step
    cpu_share: float = math.nan  # of the cores that the job may use, while it trained
    memory_bytes: int = 0  # the most that its processes had at a time, what they share counted once
    gpu_share: float | None = None
    cpu_over_time: list[list[float]] = []  # rows of seconds since the start, and the cores that each rank used
    gpu_over_time: list[list[float]] = []  # the same of this host's GPUs, as shares of the time
    result: dict[str, Any] = {}  # final metrics
    epochs: list[dict[str, Any]] = []  # lines of metrics.jsonl about epochs

    @property
    def done(self) -> bool:
        return self.state == "done"


def run(
    trial: Trial,
    folder: Path,
    *,
    look: Callable[[float], None] | None = None,
    place: str = "",
) -> TrialOutcome:
    """Run a trial in a child, or return its outcome in ``folder``. An interrupt is raised when the child has ended.
    ``look`` is called about once a second while it runs, with the seconds that it has. ``place`` are hosts to run on,
    as -H takes them, where these are not part of the question."""
    command, variables = command_of(trial, folder, place), _variables(trial, folder)
    found = _answer(trial, folder)
    if found is not None:
        return found
    _clear(folder)
    outcome = TrialOutcome(trial=trial, state="interrupted", folder=str(folder))
    with Child(command, {**env.environ(), **variables}, folder / LOG) as child:
        try:
            code = child.wait(trial.timeout_s, look)
            outcome.state, outcome.error = _how(code, child, folder)
        except BaseException:
            child.end()
            outcome.error = "interrupted"
            raise
        finally:
            _measure(outcome, child, folder, here=not (trial.hosts or place))
            run_folder.write_json(folder / FILE, outcome)
    return outcome


def load(folder: Path) -> TrialOutcome:
    """The outcome in a trial's folder; BadData if there is none."""
    return run_folder.read_json(
        folder / FILE, TrialOutcome, "Give the folder of a trial: one of trials/ in an experiment."
    )


# ---- before ----


def command_of(trial: Trial, folder: Path, place: str = "") -> list[str]:
    """What is started. Wrong options are refused here, before anything is.

    >>> command_of(Trial(name="a", workload="mnist", workers=2, options={"batch": 8, "augment": True}), Path("a"))
    Traceback (most recent call last):
    hora.errors.UsageError: options: Object contains unknown field `augment`. Change it; --help says what it takes.
    >>> command_of(Trial(name="a", workload="mnist", workers=2, options={"batch": 8}), Path("/a"))[1:7]
    ['-m', 'hora', 'train', 'mnist', '-np', '2']
    """
    kind = options_of(trial.workload)
    kind.of(trial.options)
    out = folder.resolve()
    mine = {name: value for name, value in trial.options.items() if name not in kind.unused}  # as not saving, for one
    options = {**mine, "out": str(out), "json": str(out / RESULT)}
    if options.get("resume", "no") == "no":
        options["overwrite"] = True  # what an interrupted attempt has left
    if trial.inter_threads is not None:
        options["inter_threads"] = trial.inter_threads
    return [
        sys.executable, "-m", "hora", "train", trial.workload, "-np", str(trial.workers),
        *(["-H", place or trial.hosts] if place or trial.hosts else []),
        *(["--elastic", trial.elastic, "--blacklist-cooldown-range", "1", "1"] if trial.elastic else []),
        *(["--spares", str(trial.spares)] if trial.spares else []),
        *(["--on", "mpi"] if trial.transport == "mpi" else []),
        *(["--threads-per-worker", str(trial.threads_per_worker)] if trial.threads_per_worker is not None else []),
        *(["--independent"] if trial.independent else []),
        *(["--by-turns"] if trial.by_turns else []),
        *_flags(options),
    ]  # fmt: skip


def _flags(options: Mapping[str, Any]) -> list[str]:
    """
    >>> _flags({"save_every": 0.5, "tensorboard": False, "overwrite": True, "lr": None})
    ['--save-every=0.5', '--no-tensorboard', '--overwrite']
    """
    flags = []
    for name, value in options.items():
        word = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{word}" if value else f"--no-{word}")
        elif value is not None:
            flags.append(f"--{word}={value}")
    return flags


def _variables(trial: Trial, folder: Path) -> dict[str, str]:
    timeline = {"HORA_TIMELINE": str(folder.resolve() / TIMELINE)} if trial.timeline and not trial.independent else {}
    transport = {"HORA_TRANSPORT": trial.transport} if trial.transport != "auto" else {}
    return {"PYTHONUNBUFFERED": "1", **transport, **timeline, **trial.env}


def kept(trial: Trial, folder: Path) -> TrialOutcome | None:
    """The outcome that is there, if it is one of this very trial."""
    try:
        found = load(folder)
    except BadData:
        return None
    return found if msgspec.json.encode(found.trial) == msgspec.json.encode(trial) else None


def _answer(trial: Trial, folder: Path) -> TrialOutcome | None:
    """The same, if it would be so again."""
    found = kept(trial, folder)
    if found is None or found.state not in _ANSWERS:
        return None
    found.folder = str(folder)  # it may have been moved
    return found


def _clear(folder: Path) -> None:
    """Forget an earlier attempt, so that nothing of it is taken for this one's; checkpoints are the run's business."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (FILE, LOG, RESULT, run_folder.FILE, run_record.FILE):
        (folder / name).unlink(missing_ok=True)
    for path in folder.glob("timeline*.json"):
        path.unlink()
    for path in folder.glob(worker_folder("*")):
        shutil.rmtree(path)


# ---- after ----


def _how(code: int | None, child: Child, folder: Path) -> tuple[OutcomeState, str]:
    """The state that an exit code (None: the time was up) and the log speak of, and one line about it."""
    if code is None:
        return "timeout", f"not done after {child.seconds:.0f} s"
    if code == 0 and (folder / RESULT).exists():
        return "done", ""
    if code == 0:
        return "failed", f"it succeeded, but {folder / RESULT} is not here: rank 0 has written to another host's disk"
    said = reason.tail(folder / LOG)
    if reason.out_of_memory(code, said, child.oom_kills):
        return "out of memory", reason.line(code, said)
    return "failed", reason.line(code, said)


def _measure(outcome: TrialOutcome, child: Child, folder: Path, *, here: bool) -> None:
    """Everything that the child and its files can tell."""
    trial, usage = outcome.trial, child.usage
    outcome.seconds = child.seconds
    outcome.result = _result(folder)
    outcome.first_batch_s = measure.first_batch_s(folder, child.started)
    ranks = range(trial.workers) if trial.independent else range(1)
    places = {rank: folder / worker_folder(rank) if rank else folder for rank in ranks}
    speeds = {rank: measure.speed(run_record.read_lines(place)[0]) for rank, place in places.items()}
    outcome.epochs = run_record.read_lines(folder)[1]
    first, known = speeds[0], all(speed.step_s for speed in speeds.values())
    outcome.step_s, outcome.warmup_steps, outcome.data_s = first.step_s, first.warmup_steps, first.data_s
    outcome.study_steps = first.study_steps
    outcome.rank_step_s = {rank: speed.median_s for rank, speed in speeds.items() if speed.step_s}
    if known:
        outcome.images_per_s = sum(speed.images_per_s for speed in speeds.values())
        outcome.images_per_s_low = sum(speed.low for speed in speeds.values())
        outcome.images_per_s_high = sum(speed.high for speed in speeds.values())
        outcome.images_per_s_study = sum(speed.study for speed in speeds.values())
    if trial.by_turns:
        turns.take(outcome, "together")
    if here:  # the processes of other hosts are not seen from here
        outcome.cpu_share = usage.cpu_share(measure.training_time(folder))
        outcome.memory_bytes = usage.memory_bytes
        outcome.cpu_over_time = usage.cpu_over_time()
    outcome.gpu_share, outcome.gpu_over_time = usage.gpu_share(), usage.gpu_over_time()


def _result(folder: Path) -> dict[str, Any]:
    """The final metrics; of a run that did not get there, those that it had."""
    try:
        return run_folder.read_json(folder / RESULT, dict[str, Any], "")
    except BadData:
        pass
    try:
        return run_folder.read(folder).result
    except BadData:
        return {}
