"""What a run is, whichever framework computes: where it is, what it keeps, when, and what it tells.

``hora.workloads.run`` (torch) and ``hora.workloads.keras_run`` derive from it, and say how a step is driven and what
of theirs goes into a checkpoint. Nothing here computes with one.
"""

from __future__ import annotations

import math
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self, TypeVar

import msgspec

from hora.data.loader import BatchPlan
from hora.engine import session
from hora.engine.preempt import PREEMPTED_EXIT_CODE, preempted
from hora.errors import UsageError
from hora.schedule import Plan
from hora.workloads import agree
from hora.workloads.clock import Clock
from hora.workloads.folder import RunNote
from hora.workloads.keeper import Keeper
from hora.workloads.metrics import Means
from hora.workloads.options import Options
from hora.workloads.order import Order
from hora.workloads.progress import State, metrics_text, teller, the_end
from hora.workloads.record import Record
from hora.workloads.turns import Turns

__all__ = ["BaseRun"]

T = TypeVar("T")

_PLACES = ("data", "out", "json", "resume")


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
        quiet: The workload prints lines of its own; the run tells nothing of steps and epochs.
        fields: More to put into a checkpoint, plain data; called on rank 0.
        names: A checkpoint's file name from (finished epochs, step, whether at an epoch's end).
        best_name: A second name for the best checkpoint.
    """

    framework: ClassVar[str] = ""

    def __init__(
        self,
        options: Options,
        plan: Plan,
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
        self._is_first = session.rank() == 0
        agree.same({"workload": options.workload, "samples": plan.samples, **dict(facts or {}), **_alike(options)})
        self._order = Order(plan.samples, workers, options)
        self._clock = Clock()
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
        self._means, self._now = Means(), Means()
        self._complete = False  # where it is, its epoch has been validated
        self._taken = True
        self._keeper = Keeper(options.out_folder, keep=options.keep, best=best, highest=highest, best_name=best_name)
        preempted()  # from now on a signal is a request to save and leave
        note = self._resume()
        self._record: Record | None
        self._note: RunNote | None
        self._record, self._note = agree.everywhere(self._open_files)
        self._teller = teller(options.log_every, quiet or not self._is_first)
        self._introduce(note)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._record is not None:
            self._record.close()
        if self._note is not None:
            self._note.end(error, self.result())
        if error is None:
            self._tell_end()
        self._teller.close()

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

    def plans(self, epoch: int) -> list[BatchPlan]:
        """This process's batches of an epoch, in the order in which ``batches`` wants them; of the epoch under way,
        those that are left. Of another it is a pure function, for loaders that work ahead."""
        return self._order.plans(self._ranks, epoch)

    def _steps(self, batches: Iterable[T], parts: int) -> Iterator[list[T]]:
        """The batches of each step that is left of this epoch, so many of them. Sets the learning rate before each; at
        the end BN statistics are the mean of all workers'."""
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
        self._trained = time.perf_counter()
        self._average()

    def _set_rate(self) -> None:
        """For the next step."""
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
        if self._record is not None:
            self._record.step(
                {
                    "step": self.step_number,
                    "epoch": self.epoch,
                    "samples": self.samples_seen,
                    **own,
                    "lr": self.lr,
                    "images_per_s": samples / self.step_s if self.step_s else 0.0,
                    "data_s": self.data_s,
                }
            )
            self._teller.step(lambda: self._state(own), self.step_number)
        if self._turns is not None and self._turns.step(self.step_s, self.data_s):
            self._clock.start()
        if (self._turns is None or self._turns.meets) and preempted():
            self.save()
            saved = f"saved {self.checkpoint}" if self.options.save else "nothing is saved (--no-save)"
            self.say(f"asked to leave: {saved} after step {self.step_number}")
            raise SystemExit(PREEMPTED_EXIT_CODE)
        if self._order.steps_left and self._is_time_to_save(before, self._order.position):
            self.save()
            self._separate()

    def validated(self, metrics: Mapping[str, float]) -> None:
        """Note what validation found, the same on all ranks: ``loss`` and so on, which get the prefix ``val_``."""
        self.validation = {f"val_{name}": float(value) for name, value in metrics.items()}
        value = self.validation.get(self._best_by, math.nan)
        self.improved = value == value and (
            self.best is None or (value > self.best if self._highest else value < self.best)
        )
        if self.improved:
            self.best = value

    def means(self) -> dict[str, float]:
        """The means of this epoch's metrics so far, over all workers; all ranks call it together."""
        return self._means.reduced()

    def say(self, text: str) -> None:
        """Print a line, on rank 0."""
        if self._is_first:
            self._teller.say(text)

    # ---- telling ----

    def _state(self, own: Mapping[str, float]) -> State:
        left = max(0.0, self.options.epochs - self._order.position) * self.steps_per_epoch
        if self.options.max_steps:
            left = max(0.0, min(left, self.options.max_steps - self.step_number))
        speed = self._clock.images_per_s_of_late
        return State(
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
            self.say("the data is generated, not real: results on it say nothing about the real data set")
        if self._quiet:
            return
        emulated = f" ({session.size()} processes)" if self._total != session.size() else ""
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
            self.say("  ".join([f"{what} done in {seconds:.1f} s", *metrics_text(means | self.validation)]))

    def _tell_end(self) -> None:
        """What came of it, where it is, and what to do with it."""
        self.say(
            the_end(
                self.step_number, self._clock.seconds, self._clock.images_per_s, self.validation, self.checkpoint,
                str(self.options.out_folder),
            )
        )  # fmt: skip

    def result(self) -> dict[str, Any]:
        """The final metrics, the same on all ranks."""
        return {
            "workload": self.options.workload,
            "framework": self.framework,
            "workers": session.size(),
            "emulated_workers": self._total if self._total != session.size() else 0,
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

    def _resume(self) -> str:
        """Go on from a checkpoint if that was asked for; what there is to say about it."""
        path = agree.on_first(self._keeper.choose, self.options.resume, self.options.overwrite)
        if path is None:
            return ""
        content: dict[str, Any] = agree.on_first(self._read, path)
        self.checkpoint = str(path)
        alike = agree.everywhere(self._restore, content, path)
        anew = "" if alike else ": it was of another number of workers, so their random numbers begin anew"
        return f"going on from {path}, after step {self.step_number}{anew}"

    def _restore(self, content: dict[str, Any], path: Path) -> bool:
        """Put everything back; whether all of it, down to the random numbers."""
        run = content.get("run", {})
        with self._fitting(content, path):
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

    @contextmanager
    def _fitting(self, content: Mapping[str, Any], path: Path) -> Iterator[None]:
        """Inside, a checkpoint is put into model and optimizer; what is against that is said in a sentence."""
        workload = content.get("run", {}).get("workload", self.options.workload)
        if workload != self.options.workload:
            raise UsageError(f"{path} is of {workload}, not of {self.options.workload}. Give another checkpoint.")
        try:
            yield
        except (KeyError, ValueError, RuntimeError, TypeError, AttributeError) as error:
            reason = str(error).strip().replace("\n", " ")[:300]
            raise UsageError(
                f"{path} does not fit this run: {reason}. It is of another network or optimizer. Train with the options"
                " that it was written with, or give another checkpoint."
            ) from None

    def _open_files(self) -> tuple[Record, RunNote] | tuple[None, None]:
        if not self._is_first:
            return None, None
        record = Record(
            self.options.out_folder,
            after_step=self.step_number,
            tensorboard=self.options.tensorboard,
            every=self.options.log_every,
        )
        return record, RunNote(
            self.options,
            self.plan,
            workers=session.size(),
            emulated_workers=self._total if self._total != session.size() else 0,
            hosts=session.cross_size(),
            threads=self._threads(),
        )

    # ---- what a framework has to say ----

    @abstractmethod
    def _put_rate(self) -> None:
        """Give the optimizers the learning rate ``lr``."""

    def _rest(self, resting: bool) -> None:
        """Train on this worker's own gradients, or go on averaging them. Only asked for where ``by_turns`` may be."""
        raise NotImplementedError

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


def _alike(options: Options) -> dict[str, Any]:
    """The options that all ranks must have alike; a place on a disk may be another on every host."""
    return {f"--{k.replace('_', '-')}": v for k, v in msgspec.to_builtins(options).items() if k not in _PLACES}
