"""What a run is, whichever framework computes: its position, what it saves and when, and what it prints.

``hora.workloads.run`` (torch) and ``hora.workloads.keras_run`` derive from it, and say how a step is driven and what
of theirs goes into a checkpoint. Nothing here computes with one.
"""

from __future__ import annotations

import math
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self, TypeVar

import msgspec

from hora.data.loader import BatchPlan
from hora.engine import session
from hora.engine.preempt import PREEMPTED_EXIT_CODE, preempted, preempted_or
from hora.errors import HostsUpdatedInterrupt, UsageError
from hora.schedule import LearningRatePlan
from hora.workloads import agree, progress
from hora.workloads.clock import StepClock
from hora.workloads.folder import RunNote, earlier, now
from hora.workloads.metrics import Means
from hora.workloads.options import WorkloadOptions
from hora.workloads.order import SampleOrder
from hora.workloads.run_checkpoints import RunCheckpoints, fitting
from hora.workloads.run_record import RunRecord
from hora.workloads.turns import Turns

__all__ = ["BaseRun"]

T = TypeVar("T")


class BaseRun(ABC):
    """One run of a workload, made on all ranks together. Whoever derives from it sets its own attributes first: a
    checkpoint may be loaded here.

    Args:
        options: The workload's.
        plan: ``options.plan(samples, workers)``.
        workers: How many there are, real or emulated.
        ranks: Those of this process.
        facts: What else must be the same on all ranks, such as ``classes``; told if it is not.
        generated: Whether the data is, which the run says.
        best: The metric by which a checkpoint is the best; ``highest`` or lowest.
        quiet: The workload prints lines of its own; the run prints nothing about steps and epochs.
        fields: More to put into a checkpoint, plain data; called on rank 0.
        names: A checkpoint's file name from (finished epochs, step, whether at an epoch's end).
        best_name: A second name for the best checkpoint.
    """

    framework: ClassVar[str] = ""

    def __init__(
        self,
        options: WorkloadOptions,
        plan: LearningRatePlan,
        workers: int,
        ranks: range,
        *,
        facts: Mapping[str, Any] | None,
        generated: bool,
        best: str,
        highest: bool,
        quiet: bool,
        names: Callable[[int, int, bool], str],
        fields: Callable[[], Mapping[str, Any]] = dict,
        best_name: str = "",
    ) -> None:
        self.options, self.plan, self.generated = options, plan, generated
        self._total, self._ranks, self._fields, self._names, self._quiet = workers, ranks, fields, names, quiet
        self._facts = {"workload": options.workload, "samples": plan.samples, **dict(facts or {}), **options.alike()}
        self._is_first, self._size = False, session.size()
        self._order = SampleOrder(plan.samples, workers, options)
        self._clock, self._began, self._began_at = StepClock(), time.monotonic(), now()
        self._turns = Turns.wanted(options.max_steps, self._rest)
        self._pauses: dict[str, list[float]] = {"validation": [], "save": []}  # seconds of each
        self._trained = 0.0  # when the steps of this epoch were done
        self.lr = self.step_s = self.data_s = 0.0
        self.best: float | None = None
        self.improved = False
        self.validation: dict[str, float] = {}
        self.extra: dict[str, Any] = {}
        self.loaded: dict[str, Any] = {}
        self.checkpoint = ""
        self._best_by, self._highest = best, highest
        self._means, self._now = Means(bool(options.logical_workers)), Means()
        self._complete = False  # where it is, its epoch has been validated
        self._taken = True
        self._keeper = RunCheckpoints(
            options.out_folder, keep=options.keep, best=best, highest=highest, best_name=best_name
        )
        self._record: RunRecord | None = None
        self._note: RunNote | None = None
        self._reporter: progress.ProgressReporter = progress.NoProgress()
        self._line: dict[str, Any] = {}  # of the last step
        if not session.is_elastic():  # else when the others are met: see ``workloads.elastic``
            self._meet()
            note = self._resume(options.resume, options.overwrite)
            agree.everywhere(self._take_files)
            self._introduce(note)

    def _meet(self) -> None:
        """All ranks of this generation are there, and train the same."""
        self._is_first, self._size = session.rank() == 0, session.size()
        agree.same(self._facts)
        preempted()  # from now on a signal is a request to save and leave

    def _take_files(self) -> None:
        """The first rank writes the run's files and messages; if it was lost, another one does."""
        if (self._record is None) == self._is_first:
            self._close_files()
            self._record, self._note = self._open_files() if self._is_first else (None, None)
            self._reporter.close()
            self._reporter = progress.progress_reporter(self.options.log_every, self._quiet or not self._is_first)
        if self._record is not None and self._record.last_step < self._line.get("step", 0) == self.step_number:
            self._record.step(self._line)  # who kept the record was lost, or was behind, and has not written it

    def _close_files(self) -> None:
        if self._record is not None:
            self._record.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._close_files()
        if self._note is not None:
            self._note.end(error, self.result())
        if error is None:
            self._tell_end()
        self._reporter.close()

    # ---- the loop ----

    @property
    def epoch(self) -> int:
        return self._order.epoch

    @property
    def step_number(self) -> int:
        return self._order.step

    @property
    def samples_seen(self) -> int:
        return self._order.samples_seen

    @property
    def steps_per_epoch(self) -> int:
        return self._order.steps_per_epoch

    @property
    def epoch_step(self) -> int:
        return self._order.epoch_step

    def epochs(self) -> Iterator[int]:
        """The epochs that are left, from 0; at the end of each, after its validation, a checkpoint is written."""
        while self._order.steps_left or (self._order.seen and not self._complete):
            began, trained_s, epoch = self._clock.seconds, self._clock.training_s, self.epoch
            self._complete = self.improved = False
            self.validation = {}
            yield epoch
            self._pauses["validation"].append(time.perf_counter() - self._trained)
            self._tell_epoch(epoch, self._clock.seconds - began, self._clock.training_s - trained_s)
            if self._order.epoch_ended:
                self._order.begin(epoch + 1)
                self._means.clear()
            self._complete = True
            if not self._order.steps_left or self._is_time_to_save(epoch, epoch + 1):
                self.save()
            self._committed()

    def plans(self, epoch: int) -> list[BatchPlan]:
        """This process's batches of an epoch, in the order in which ``batches`` wants them; of the epoch under way,
        those that are left. Of another it is a pure function, for loaders that work ahead."""
        return self._order.plans(self._ranks, epoch)

    def _steps(self, batches: Iterable[T], parts: int) -> Iterator[list[T]]:
        """The batches of each remaining step of this epoch. Sets the learning rate before each; then BN statistics
        are the mean of all workers'."""
        source = iter(batches)
        self._separate()
        self._clock.start()
        for _ in range(self._order.steps_left):
            self._set_rate()
            asked = time.perf_counter()
            taken = list(islice(source, parts))
            self.data_s = time.perf_counter() - asked
            if len(taken) < parts:
                raise UsageError(
                    f"step {self.step_number + 1} has {len(taken)} of its {parts} batches: the data ended."
                )
            self._taken = False
            yield taken
            if not self._taken:
                raise UsageError("the loop did not call run.step() after a step. Call it after the optimizer's step.")
            if not self._order.steps_left:  # the time is up
                break
        self._trained = time.perf_counter()
        self._average()

    def _set_rate(self) -> None:
        """Set the rate of the next step."""
        self.lr = self.plan.lr_at_epoch(self._order.position) if self._turns is None else 0.0
        self._put_rate()

    def count(self, samples: int, **values: Any) -> None:
        """Note the metrics of a batch: means over its samples."""
        self._now.add(samples, values)

    def step(self) -> None:
        """A step is done, on all ranks: note it, tell it, and leave with a checkpoint if the job was asked to end."""
        samples, before = self._order.next_samples, self._order.position
        first = math.isnan(self._clock.first_batch_s)
        self._taken, self.step_s = True, self._clock.step(samples)
        if first and self._note is not None:
            self._note.first_step()
        self._order.advance()
        own = self._now.local()
        self._means.take(self._now)
        self._line = {
            "step": self.step_number,
            "epoch": self.epoch,
            "samples": self.samples_seen,
            **own,
            "lr": self.lr,
            "images_per_s": samples / self.step_s if self.step_s else 0.0,
            "data_s": self.data_s,
        }
        if self._record is not None:
            self._record.step(self._line)
            self._reporter.step(lambda: self._state(own), self.step_number)
        if self._turns is not None and self._turns.step(self.step_s, self.data_s):
            self._clock.start()
        self._committed()
        if self._turns is None or self._turns.meets:
            over = 0 < self.options.max_minutes * 60 < time.monotonic() - self._began
            leaves, late, others_wait = preempted_or(over, session.others_wait())
        else:
            leaves = late = others_wait = False
        if late and self._order.steps_left:
            self._order.end_here()
            self.say(f"the time is up (--max-minutes {self.options.max_minutes:g}) after step {self.step_number}")
        if leaves:
            self.save()
            saved = f"saved {self.checkpoint}" if self.options.save else "nothing is saved (--no-save)"
            self.say(f"stopping as requested: {saved} after step {self.step_number}")
            raise SystemExit(PREEMPTED_EXIT_CODE)
        if self._order.steps_left and self._is_time_to_save(before, self._order.position):
            self.save()
            self._separate()
        if others_wait:
            raise HostsUpdatedInterrupt

    def _committed(self) -> None:  # noqa: B027  # only some runs can be elastic
        """Elastic: what is done up to here is not lost with any worker."""

    def validated(self, metrics: Mapping[str, float]) -> None:
        """Note what validation found, the same on all ranks: ``loss`` and so on, which get the prefix ``val_``."""
        self.validation = {f"val_{name}": float(value) for name, value in metrics.items()}
        value = self.validation.get(self._best_by, math.nan)
        better = self.best is None or (value > self.best if self._highest else value < self.best)
        self.improved = value == value and better
        if self.improved:
            self.best = value

    def means(self) -> dict[str, float]:
        """The means of this epoch's metrics so far, over all workers; all ranks call it together."""
        return self._means.reduced()

    def say(self, text: str) -> None:
        """Print a line, on rank 0."""
        if self._is_first:
            self._reporter.say(text)

    # ---- telling ----

    def _state(self, own: Mapping[str, float]) -> progress.ProgressState:
        left = max(0.0, self.options.epochs - self._order.position) * self.steps_per_epoch
        if self.options.max_steps:
            left = max(0.0, min(left, self.options.max_steps - self.step_number))
        speed = self._clock.images_per_s_of_late
        return progress.ProgressState(
            epoch=self.epoch,
            epochs=self.options.epochs,
            step=self.epoch_step,
            steps=self.steps_per_epoch,
            done=self.step_number / (self.step_number + left),
            lr=self.lr,
            images_per_s=speed,
            left_s=left * self._order.step_samples / speed if speed else math.inf,
            metrics=dict(own),
        )

    def _introduce(self, note: str) -> None:
        if note:
            self.say(note)
        if self.generated:
            self.say("the data is generated: results on it say nothing about the real data set")
        if self._quiet:
            return
        emulated = f" ({self._size} process{'es'[: 2 * (self._size > 1)]})" if self._total != self._size else ""
        workers = f"{self._total} worker{'s'[: self._total > 1]}{emulated}"
        self.say(
            f"{self.options.workload}: {workers}, {self.plan.global_batch} samples a step, {self.steps_per_epoch} steps"
            f" an epoch, peak learning rate {self.plan.peak_lr:.6g}"
        )

    def _tell_epoch(self, epoch: int, seconds: float, training_s: float) -> None:
        means = self._means.reduced()
        if self._record is not None:
            facts = {"step": self.step_number, "epoch": epoch, "samples": self.samples_seen, "epoch_s": seconds}
            self._record.epoch({**facts, "train_s": training_s, **means, **self.validation})
        if not self._quiet:
            what = f"epoch {epoch + 1}/{math.ceil(self.options.epochs)}"
            if not self._order.epoch_ended:
                what = f"{self.epoch_step} of {self.steps_per_epoch} steps of {what}"
            self.say("  ".join([f"{what} done in {seconds:.1f} s", *progress.metrics_text(means | self.validation)]))

    def _tell_end(self) -> None:
        """Print the results, where they are, and what to do with them."""
        clock, folder, found = self._clock, str(self.options.out_folder), self.validation
        took = self.step_number, clock.seconds, clock.images_per_s
        self.say(progress.the_end(*took, found, self.checkpoint, folder))

    def tell_test(self) -> None:
        """The two lines that Keras's examples end with; a run that did not validate has none."""
        if "val_loss" in self.validation:
            found = self.validation
            self.say(f"Test loss: {found['val_loss']}\nTest accuracy: {found.get('val_accuracy')}")

    def result(self) -> dict[str, Any]:
        """The final metrics, the same on all ranks."""
        return {
            "workload": self.options.workload,
            "framework": self.framework,
            "workers": self._size,
            "emulated_workers": self._total if self._total != self._size else 0,
            **({"logical_workers": self._total} if self.options.logical_workers else {}),
            "epochs": self._order.position,
            "steps": self.step_number,
            "samples": self.samples_seen,
            **self.validation,
            f"best_{self._best_by}": self.best,
            "images_per_s": self._clock.images_per_s,
            "first_batch_s": self._clock.first_batch_s,
            "seconds": self._clock.seconds,
            "steps_per_epoch": self.steps_per_epoch,
            **{f"{kind}_s": statistics.fmean(taken) for kind, taken in self._pauses.items() if taken},
            **({"by_turns": self._turns.found} if self._turns is not None else {}),
            "seed": self.options.seed,
            "generated_data": self.generated,
            "batch": self.options.batch,
            "accumulate": self.options.accumulate,
            "global_batch": self.plan.global_batch,
            "peak_lr": self.plan.peak_lr,
            "precision": self.options.precision,
            "strategy": self.options.strategy,
            "checkpoint": self.checkpoint,
        }

    # ---- keeping ----

    def save(self) -> None:
        """Write a checkpoint, unless none are wanted; all ranks call it together, and it is there when it returns."""
        if not self.options.save:
            return
        began = time.perf_counter()
        self._average()
        content = {
            "epoch": self.epoch,
            **self._gathered(),
            "run": {
                "workload": self.options.workload,
                "options": msgspec.to_builtins(self.options),
                "plan": msgspec.to_builtins(self.plan),
                **self._order.state_dict(),
                "complete": self._complete,
                "best": self.best,
                "validation": self.validation,
                "means": {name: list(pair) for name, pair in self._means.state().items()},
                "seconds": self._clock.seconds,
                "processes": session.size(),
                "extra": self.extra,
            },
        }
        self.checkpoint = agree.on_first(self._write, content)
        self._pauses["save"].append(time.perf_counter() - began)
        self._clock.start()

    def _is_time_to_save(self, before: float, now: float) -> bool:
        """Whether a multiple of ``save_every`` lies between these positions."""
        every = self.options.save_every
        return every > 0 and math.floor(now / every + 1e-9) > math.floor(before / every + 1e-9)

    def _write(self, content: dict[str, Any]) -> str:
        if self._record is not None:
            self._record.write()
        whole = not self._order.seen
        name = self._names(self.epoch, self.step_number, whole)
        facts = {"epoch": self.epoch, "step": self.step_number, **self.validation}
        content = content | dict(self._fields())
        path = self._keeper.save(
            name, lambda file: self._put_down(content, file), position=self.samples_seen, facts=facts
        )
        if self.improved:
            self._keeper.name_best(path)
        return str(path)

    def _resume(self, resume: str, overwrite: bool) -> str:
        """Continue from a checkpoint if that was asked for; what there is to say about it."""
        path = agree.on_first(self._keeper.choose, resume, overwrite)
        if path is None:
            return ""
        content: dict[str, Any] = agree.on_first(self._read, path)
        self.checkpoint = str(path)
        alike = agree.everywhere(self._restore, content, path)
        anew = "" if alike else ": it was saved by another number of workers, so per-worker state is reset"
        return f"resuming from {path}, after step {self.step_number}{anew}"

    def _restore(self, content: dict[str, Any], path: Path) -> bool:
        """Put everything back; whether all of it, down to the random numbers."""
        run = content.get("run", {})
        with fitting(content, path, self.options.workload):
            alike = self._put_back(content)
        if run:
            self._order.load_state_dict(run)
            self.best, self.validation, self.extra = run["best"], run["validation"], run["extra"]
            self._complete, self._clock.before_s = run["complete"], run["seconds"]
            self._means.load_state({name: (pair[0], pair[1]) for name, pair in run["means"].items()})
        else:  # somebody else's, with at least the epoch
            self._order.begin(int(content.get("epoch", 0)))
            self._order.step = self.epoch * self.steps_per_epoch
            self._order.samples_seen = self._order.step * self._order.step_samples
        return alike

    def _open_files(self) -> tuple[RunRecord, RunNote]:
        record = RunRecord(
            self.options.out_folder,
            after_step=self.step_number,
            tensorboard=self.options.tensorboard,
            every=self.options.log_every,
        )
        return record, RunNote(
            self.options,
            self.plan,
            workers=self._size,
            emulated_workers=self._total if self._total != self._size else 0,
            hosts=session.engine().world.cross_size,
            threads=self._threads(),
            began=self._began_at,
            earlier=earlier(self.options.out_folder) if session.is_elastic() and session.generation() > 1 else None,
        )

    # ---- what a framework has to say ----

    @abstractmethod
    def _put_rate(self) -> None:
        """Give the optimizers the learning rate ``lr``."""

    @abstractmethod
    def _rest(self, resting: bool) -> None:
        """Train on this worker's own gradients, or keep averaging them."""

    @abstractmethod
    def _average(self) -> None:
        """Put the mean of all workers' statistics of batch normalisation into the model. All ranks call it together."""

    @abstractmethod
    def _separate(self) -> None:
        """Give every worker its own statistics again."""

    @abstractmethod
    def _gathered(self) -> dict[str, Any]:
        """What goes into a checkpoint of this framework's. All ranks call it together."""

    @abstractmethod
    def _put_down(self, content: dict[str, Any], file: BinaryIO) -> None:
        """Write a checkpoint. On rank 0."""

    @abstractmethod
    def _read(self, path: Path) -> dict[str, Any]:
        """What is in a checkpoint, to be told to all ranks. On rank 0."""

    @abstractmethod
    def _put_back(self, content: dict[str, Any]) -> bool:
        """Put back model, optimizer and what belongs to each worker; whether it was as many of them. Leaves in
        ``loaded`` what is small. Raises KeyError, ValueError and the like if they are others."""

    @abstractmethod
    def _threads(self) -> int:
        """Threads that this process computes with."""
