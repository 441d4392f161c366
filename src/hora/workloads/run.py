"""A run: where it is, what it keeps and what it tells. The loop of a workload is written around one.

::

    with Run(options, plan, model, optimizer, workers) as run:
        for epoch in run.epochs():                                # goes on where a checkpoint was written
            for batches in run.batches(data.batch(plan) for plan in run.plans(epoch)):
                optimizer.zero_grad()
                for worker, (images, labels) in batches:          # one, or several emulated or accumulated
                    with worker, run.autocast():
                        loss = cross_entropy(model(images), labels)
                    (loss / len(batches)).backward()
                    run.count(len(labels), loss=loss)
                optimizer.step()
                run.step()                                          # leaves with a checkpoint if the job must end
            run.validated(evaluate(model))                        # on the mean of the workers' BN statistics
    return run.result()

Promises: at the same number of workers, real or emulated, an interrupted run ends with the bits of one that was not;
with another number it goes on with weights, optimizer and position. Every rank takes the same decisions at the same
step. Nothing is half written, whatever is killed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from torch import nn

import hora.torch as hvd
from hora.data.loader import BatchPlan
from hora.engine import session
from hora.errors import NonFiniteError, UsageError
from hora.schedule import Plan
from hora.workloads import agree
from hora.workloads.clock import Clock
from hora.workloads.folder import RunNote
from hora.workloads.keeper import Keeper, usual_name
from hora.workloads.metrics import Means
from hora.workloads.options import Options
from hora.workloads.order import Order
from hora.workloads.progress import State, metrics_text, teller
from hora.workloads.record import Record
from hora.workloads.workers import Worker, Workers

__all__ = ["Run", "compression"]

T = TypeVar("T")
Optimizers = torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer]

_PLACES = ("data", "out", "json", "resume")


def compression(options: Options) -> Any:
    """What ``DistributedOptimizer`` takes as ``compression``: a class, or an object with a memory.

    >>> compression(Options()) is hvd.Compression.none
    True
    """
    kind: Any = getattr(hvd.Compression, options.compression)
    return kind if options.compression in ("none", "fp16", "bf16") else kind()


class Run:
    """One run of a workload. Made on all ranks together, when model and optimizer are as they shall be at the start.

    Args:
        options: The workload's.
        plan: ``options.plan(samples, workers.total)``.
        model: Everything that is trained; several networks in an ``nn.ModuleDict``.
        optimizer: One, or several by name. Their rates are set to the plan's before every step.
        workers: Those of this process.
        facts: What else must be the same on all ranks, such as ``classes``; told if it is not.
        generated: Whether the data is, which the run says.
        best: The metric by which a checkpoint is the best; ``highest`` or lowest.
        quiet: The workload prints lines of its own; the run tells nothing of steps and epochs.
        compression: What the optimizer got, if it has a memory to be kept.
        model_field: What the model is called in a checkpoint.
        fields: More to put into a checkpoint, plain data; called on rank 0.
        names: A checkpoint's file name from (finished epochs, step, whether at an epoch's end).
        best_name: A second name for the best checkpoint.

    Attributes:
        epoch, step_number, samples_seen: where it is, over the whole run.
        steps_per_epoch, lr, step_s, data_s: of the epoch; of the step under way; of the last one, in seconds.
        best, improved: the best validation so far; whether it is the last one.
        extra: the workload's own state, plain data, kept in checkpoints.
        loaded: the checkpoint that it went on from, without model and optimizer; {} if none.
    """

    def __init__(
        self,
        options: Options,
        plan: Plan,
        model: nn.Module,
        optimizer: Optimizers,
        workers: Workers,
        *,
        facts: Mapping[str, Any] | None = None,
        generated: bool = False,
        best: str = "val_accuracy",
        highest: bool = True,
        quiet: bool = False,
        compression: Any = None,
        model_field: str = "model",
        fields: Callable[[], Mapping[str, Any]] = dict,
        names: Callable[[int, int, bool], str] = usual_name,
        best_name: str = "",
    ) -> None:
        self.options, self.plan, self.model, self.workers = options, plan, model, workers
        self._optimizer = optimizer
        self._optimizers = list(optimizer.values()) if isinstance(optimizer, Mapping) else [optimizer]
        self._model_field, self._fields, self._names, self.generated = model_field, fields, names, generated
        self._compression = compression if hasattr(compression, "load_state_dict") else None
        agree.same({"workload": options.workload, "samples": plan.samples, **dict(facts or {}), **_alike(options)})
        self._order = Order(plan.samples, workers.total, options)
        self._clock = Clock()
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
        self._is_first = hvd.rank() == 0
        self._looks_at_loss = hvd.size() == 1 and session.engine().settings.nonfinite == "stop"
        self._keeper = Keeper(options.out_folder, keep=options.keep, best=best, highest=highest, best_name=best_name)
        hvd.preempted()  # from now on a signal is a request to save and leave
        note = self._resume()
        self._record: Record | None
        self._note: RunNote | None
        self._record, self._note = agree.everywhere(self._open_files)
        self._teller = teller(options.log_every, quiet or not self._is_first)
        self._quiet = quiet
        self._introduce(note)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._teller.close()
        if self._record is not None:
            self._record.close()
        if self._note is not None:
            self._note.end(error, self.result())

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
        return self._order.plans(self.workers.ranks, epoch)

    def batches(self, batches: Iterable[T]) -> Iterator[list[tuple[Worker, T]]]:
        """The batches of each step that is left of this epoch, each with the worker that takes it. Sets the learning
        rate, and puts the model into training mode; at the end BN statistics are the mean of all workers'."""
        turns = [worker for worker in self.workers for _ in range(self.options.accumulate)]
        source = iter(batches)
        self.workers.separate()
        self.model.train()
        self._clock.start()
        for _ in range(self._order.steps_left):
            self.lr = self.plan.lr_at_epoch(self._order.position)
            for optimizer in self._optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = self.lr
            asked = time.perf_counter()
            taken = list(islice(source, len(turns)))
            self.data_s = time.perf_counter() - asked
            if len(taken) < len(turns):
                raise UsageError(
                    f"step {self.step_number + 1} has {len(taken)} of its {len(turns)} batches: the data ended."
                )
            self._taken = False
            yield list(zip(turns, taken, strict=True))
            if not self._taken:
                raise UsageError("the loop did not call run.step() after a step. Call it after optimizer.step().")
        self.workers.average()

    def autocast(self) -> AbstractContextManager[Any]:
        """For the forward pass, in the precision that was asked for."""
        return torch.autocast(self.workers.device.type, torch.bfloat16, enabled=self.options.precision == "bf16")

    def count(self, samples: int, **values: torch.Tensor | float) -> None:
        """Note the metrics of a batch: means over its samples. Before ``optimizer.step()``, so that a loss that is not
        finite is found before it does harm."""
        plain = {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in values.items()}
        self._now.add(samples, plain)
        if self._looks_at_loss and self.workers.device.type == "cpu":
            for name, value in plain.items():
                if not math.isfinite(value):
                    raise NonFiniteError(
                        f"step {self.step_number + 1}: {name} is {float(value)} on rank {hvd.rank()}. No parameter was "
                        "changed by it; the run ends here (HORA_NONFINITE=stop). Lower the learning rate, clip "
                        "gradients, or look at the data."
                    )

    def step(self) -> None:
        """A step is done, on all ranks: note it, tell it, and leave with a checkpoint if the job was asked to end."""
        samples, before = self._order.next_samples, self._order.position
        self._taken, self.step_s = True, self._clock.step(samples)
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
        if hvd.preempted():
            self.save()
            self.say(f"asked to leave: saved {self.checkpoint} after step {self.step_number}")
            raise SystemExit(hvd.PREEMPTED_EXIT_CODE)
        if self._order.steps_left and self._is_time_to_save(before, self._order.position):
            self.save()
            self.workers.separate()

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
            left = min(left, self.options.max_steps - self.step_number)
        speed = self._clock.images_per_s_of_late
        return State(
            epoch=self.epoch,
            epochs=self.options.epochs,
            step=self.epoch_step,
            steps=self.steps_per_epoch,
            done=min(1.0, self._order.position / self.options.epochs),
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
        emulated = f" ({hvd.size()} processes)" if self.workers.total != hvd.size() else ""
        self.say(
            f"{self.options.workload}: {self.workers.total} workers{emulated}, {self.plan.global_batch} samples a step,"
            f" {self.steps_per_epoch} steps an epoch, peak learning rate {self.plan.peak_lr:.6g}"
        )

    def _tell_epoch(self, epoch: int, seconds: float, training_s: float) -> None:
        means = self._means.reduced()
        if self._record is not None:
            facts = {"step": self.step_number, "epoch": epoch, "samples": self.samples_seen, "epoch_s": seconds}
            self._record.epoch({**facts, "train_s": training_s, **means, **self.validation})
        if not self._quiet:
            told = "  ".join(metrics_text(means | self.validation))
            self.say(f"epoch {epoch + 1}/{self.options.epochs:g} done in {seconds:.1f} s  {told}")

    def result(self) -> dict[str, Any]:
        """The final metrics, the same on all ranks."""
        return {
            "workload": self.options.workload,
            "workers": hvd.size(),
            "emulated_workers": self.workers.total if self.workers.total != hvd.size() else 0,
            "epochs": self._order.position,
            "steps": self.step_number,
            "samples": self.samples_seen,
            **self.validation,
            f"best_{self._best_by}": self.best,
            "images_per_s": self._clock.images_per_s,
            "first_batch_s": self._clock.first_batch_s,
            "seconds": self._clock.seconds,
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
        """Write a checkpoint; all ranks call it together, and it is there when it returns."""
        self.workers.average()
        states, means = self.workers.state(), self._means.state()
        memories = hvd.allgather_object(self._compression.state_dict()) if self._compression else []
        several, optimizer = self._optimizer, self._optimizers[0]
        content = {
            "epoch": self.epoch,
            self._model_field: self.model.state_dict(),
            "optimizer": {name: each.state_dict() for name, each in several.items()}
            if isinstance(several, Mapping)
            else optimizer.state_dict(),
            "run": {
                "workload": self.options.workload,
                "options": msgspec.to_builtins(self.options),
                "plan": msgspec.to_builtins(self.plan),
                **self._order.state_dict(),
                "complete": self._complete,
                "best": self.best,
                "validation": self.validation,
                "means": {name: list(pair) for name, pair in means.items()},
                "seconds": self._clock.seconds,
                "processes": hvd.size(),
                "extra": self.extra,
            },
            "workers": states,
            "compression": memories,
        }
        self.checkpoint = agree.on_first(self._write, content)
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
        path = self._keeper.save(name, content | dict(self._fields()), position=self.samples_seen, facts=facts)
        if self.improved:
            self._keeper.name_best(path)
        return str(path)

    def _resume(self) -> str:
        """Go on from a checkpoint if that was asked for; what there is to say about it."""
        path = agree.on_first(self._keeper.choose, self.options.resume, self.options.overwrite)
        if path is None:
            return ""
        content: dict[str, Any] = agree.on_first(self._keeper.load, path)
        self.checkpoint = str(path)
        alike = agree.everywhere(self._restore, content, path)
        anew = "" if alike else ": it was of another number of workers, so their random numbers begin anew"
        return f"going on from {path}, after step {self.step_number}{anew}"

    def _restore(self, content: dict[str, Any], path: Path) -> bool:
        """Put everything back; whether all of it, down to the random numbers."""
        run = content.get("run", {})
        if run.get("workload", self.options.workload) != self.options.workload:
            raise UsageError(
                f"{path} is of {run['workload']}, not of {self.options.workload}. Give another checkpoint."
            )
        try:
            self.model.load_state_dict(content[self._model_field])
            self._load_optimizers(content["optimizer"])
        except (KeyError, ValueError, RuntimeError, TypeError, AttributeError) as error:
            reason = str(error).strip().replace("\n", " ")[:300]
            raise UsageError(
                f"{path} does not fit this run: {reason}. It is of another network or optimizer. Train with the options"
                " that it was written with, or give another checkpoint."
            ) from None
        if run:
            self._order.load_state_dict(run)
            self.best, self.validation, self.extra = run["best"], run["validation"], run["extra"]
            self._complete, self._clock.before_s = run["complete"], run["seconds"]
            self._means.load_state({name: (pair[0], pair[1]) for name, pair in run["means"].items()})
        else:  # somebody else's, with at least the epoch
            self._order.begin(int(content.get("epoch", 0)))
            self._order.step = self.epoch * self.steps_per_epoch
            self._order.samples_seen = self._order.step * self._order.step_samples
        alike = self.workers.load_state(content.get("workers", []))
        memories = content.get("compression", [])
        if self._compression is not None and len(memories) == hvd.size():
            self._compression.load_state_dict(memories[hvd.rank()])
        self.loaded = {k: v for k, v in content.items() if k not in (self._model_field, "optimizer", "workers")}
        return alike

    def _load_optimizers(self, saved: Any) -> None:
        if isinstance(self._optimizer, Mapping):
            for name, optimizer in self._optimizer.items():
                optimizer.load_state_dict(saved[name])
        else:
            self._optimizers[0].load_state_dict(saved)

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
            workers=hvd.size(),
            emulated_workers=self.workers.total if self.workers.total != hvd.size() else 0,
            hosts=hvd.cross_size(),
            threads=torch.get_num_threads(),
        )


def _alike(options: Options) -> dict[str, Any]:
    """The options that all ranks must have alike; a place on a disk may be another on every host."""
    return {f"--{k.replace('_', '-')}": v for k, v in msgspec.to_builtins(options).items() if k not in _PLACES}
