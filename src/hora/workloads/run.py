"""A run: its position, what it saves and what it prints. The loop of a workload is written around one.

::

    def learn() -> None:
        for epoch in run.epochs():                                # continues where a checkpoint was written
            for batches in run.batches(data.batch(plan) for plan in run.plans(epoch)):
                optimizer.zero_grad()
                for worker, (images, labels) in batches:          # one, or several that are played or accumulated
                    with worker, run.autocast():
                        loss = cross_entropy(model(images), labels)
                    run.backward(loss)
                    run.count(len(labels), loss=loss)
                run.update(optimizer)
                run.step()                                          # leaves with a checkpoint if the job must end
            run.validated(evaluate(model))                        # on the mean of the workers' BN statistics

    with TorchRun(options, plan, model, optimizer, workers) as run:
        run.through(learn)                                        # in an elastic job again whenever workers change
    return run.result()

Promises: at the same number of workers, real, emulated or logical, an interrupted run ends with the bits of one that
was not; logical ones may be played by any number of processes, which may change. With another number of workers it goes
on with weights, optimizer and position. Every rank takes the same decisions at the same step. Nothing is half written,
whatever is killed.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import hora.torch as hvd
from hora.data.loader import Loader
from hora.engine import session
from hora.errors import DamagedCheckpoint, NonFiniteError, UsageError
from hora.schedule import LearningRatePlan
from hora.workloads import agree, elastic
from hora.workloads.base_run import BaseRun
from hora.workloads.elastic import RunState
from hora.workloads.metrics import shard
from hora.workloads.options import WorkloadOptions
from hora.workloads.order import SampleOrder
from hora.workloads.precision import Precision
from hora.workloads.workers import EmulatedWorker, EmulatedWorkers

__all__ = ["TorchRun", "compression", "usual_name"]

T = TypeVar("T")
Optimizers = torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer]


def compression(options: WorkloadOptions) -> Any:
    """What ``DistributedOptimizer`` takes as ``compression``: a class, or an object with a memory.

    >>> compression(WorkloadOptions()) is hvd.Compression.none
    True
    """
    kind: Any = getattr(hvd.Compression, options.compression)
    return kind if options.compression in ("none", "fp16", "bf16") else kind()


def usual_name(epoch: int, step: int, whole: bool) -> str:
    """What a checkpoint is called, after that many epochs, or in the middle of one.

    >>> usual_name(3, 1800, True), usual_name(3, 2000, False)
    ('epoch-0003.pt', 'step-00002000.pt')
    """
    return f"epoch-{epoch:04d}.pt" if whole else f"step-{step:08d}.pt"


def checksum(tensors: Mapping[str, torch.Tensor]) -> str:
    """A sum over every bit of a model.

    >>> checksum({"a": torch.zeros(2)}) != checksum({"a": torch.tensor([0.0, -0.0])})
    True
    """
    found = hashlib.sha256()
    for name, tensor in tensors.items():
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


class LabelledSet(Protocol):
    """What can be validated on: samples by number, with their labels."""

    def __len__(self) -> int: ...

    def batch(self, indices: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]: ...


class TorchRun(BaseRun):
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
        quiet: The workload prints lines of its own; the run prints nothing about steps and epochs.
        compression: What the optimizer got, if it has a memory to be kept.
        rest: ``Distributed.rest`` of each network, for runs that take turns.
        model_field: What the model is called in a checkpoint.
        fields: More to put into a checkpoint, plain data; called on rank 0.
        names: A checkpoint's file name from (finished epochs, step, whether at an epoch's end).
        best_name: A second name for the best checkpoint.

    Attributes:
        epoch, step_number, samples_seen: where it is, over the whole run.
        steps_per_epoch, lr, step_s, data_s: of the epoch; of the step under way; of the last one, in seconds.
        best, improved: the best validation so far; whether it is the last one.
        extra: the workload's own state, plain data, kept in checkpoints.
        loaded: the checkpoint that it continued from, without model and optimizer; {} if none.
    """

    framework = "torch"

    def __init__(
        self,
        options: WorkloadOptions,
        plan: LearningRatePlan,
        model: nn.Module,
        optimizer: Optimizers,
        workers: EmulatedWorkers,
        *,
        facts: Mapping[str, Any] | None = None,
        generated: bool = False,
        best: str = "val_accuracy",
        highest: bool = True,
        quiet: bool = False,
        compression: Any = None,
        rest: Sequence[Callable[[bool], None]] = (),
        model_field: str = "model",
        fields: Callable[[], Mapping[str, Any]] = dict,
        names: Callable[[int, int, bool], str] = usual_name,
        best_name: str = "",
    ) -> None:
        self.model, self.workers, self._model_field = model, workers, model_field
        self._optimizers = optimizer if isinstance(optimizer, Mapping) else {"optimizer": optimizer}
        self._several, self._rests = isinstance(optimizer, Mapping), rest
        self._precision = Precision(options.precision, workers.device)
        self._compression = compression if hasattr(compression, "load_state_dict") else None
        self._passes = 1
        self._forgetful: list[Loader[Any]] = []
        self._elastic: RunState | None = None
        self._is_new, self._stepped = False, 0.0  # no step of this generation is done yet; when the last one was
        threads = {"threads": torch.get_num_threads()} if workers.logical else {}  # sums inside a process differ else
        super().__init__(
            options, plan, workers.total, workers.ranks, facts={**dict(facts or {}), **threads}, generated=generated,
            best=best, highest=highest, quiet=quiet, fields=fields, names=names, best_name=best_name,
        )  # fmt: skip
        if session.is_elastic():
            elastic.refuse(self)
            self._elastic = elastic.RunState(self, dict(self._optimizers))

    # ---- the loop ----

    def through(self, loop: Callable[[], None], *loaders: Loader[Any]) -> None:
        """Call the loop, which continues from where the run is; in an elastic job again whenever workers were lost or
        have come. ``loaders`` then make other batches."""
        self._forgetful = list(loaders)
        if self._elastic is None:
            loop()
        else:
            elastic.survive(self, self._elastic, loop)

    def shard(self, samples: int, batch: int) -> Iterator[npt.NDArray[np.int64]]:
        """This process's part of a validation set, batch by batch, the same batches on any number of processes."""
        return shard(samples, batch, self._ranks, self._total)

    def batches(self, batches: Iterable[T]) -> Iterator[list[tuple[EmulatedWorker, T]]]:
        """The batches of each step that is left of this epoch, each with the worker that takes it. Sets the learning
        rate, and puts the model into training mode; at the end BN statistics are the mean of all workers'."""
        turns = [worker for worker in self.workers for _ in range(self.options.accumulate)]
        self._passes = self.options.accumulate if self.workers.logical else len(turns)
        self.model.train()
        for taken in self._steps(batches, len(turns)):
            self.workers.begin(self.step_number)
            yield list(zip(turns, taken, strict=True))

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: LabelledSet) -> dict[str, float]:
        """Cross entropy and accuracy over all of a set, of which each process looks at its part."""
        model.eval()
        totals = torch.zeros(3, dtype=torch.float64)  # loss, correct, samples
        for indices in self.shard(len(data), self.options.val_batch):
            images, labels = (tensor.to(self.workers.device) for tensor in data.batch(indices))
            with self.autocast():
                scores = model(images).float()
            loss = cross_entropy(scores, labels, reduction="sum")
            totals += torch.tensor([loss.item(), (scores.argmax(1) == labels).sum().item(), len(labels)])
        loss, correct, samples = hvd.allreduce(totals, op=hvd.Sum, name="validation").tolist()  # Hora 5
        return {"loss": loss / samples, "accuracy": correct / samples}

    def _put_rate(self) -> None:
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = self.lr

    def _rest(self, resting: bool) -> None:
        for rest in self._rests:
            rest(resting)

    def autocast(self) -> AbstractContextManager[Any]:
        """The autocast context of the forward pass, in the precision that was chosen."""
        return self._precision.autocast()

    def backward(self, loss: torch.Tensor) -> None:
        """Instead of ``loss.backward()``: a step is made of the mean of its losses, and float16 has no room for small
        gradients."""
        self._precision.backward(loss / self._passes)

    def update(self, optimizer: Any) -> None:
        """Instead of ``optimizer.step()``."""
        if self.workers.logical:
            self._now.add_sums(self.workers.summed())
        self._precision.step(optimizer)

    def count(self, samples: int, **values: Any) -> None:
        """Note the metrics of a batch: means over its samples. Before ``optimizer.step()``, so that a loss that is not
        finite is found before it does harm."""
        plain = {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in values.items()}
        if self.workers.logical:
            self.workers.count(samples, plain)
        else:
            super().count(samples, **plain)
        # Where nobody looks at the gradients: Hora does, unless it is alone or others average.
        alone = self._size == 1 or self.options.strategy == "ddp" or bool(self.workers.logical)
        stops = alone and session.engine().settings.nonfinite == "stop"
        if stops and self.workers.device.type == "cpu":
            for name, value in plain.items():
                if not math.isfinite(value):
                    raise NonFiniteError(
                        f"step {self.step_number + 1}: {name} is {float(value)} on rank {hvd.rank()}. No parameter was "
                        "changed by it; the run ends here (HORA_NONFINITE=stop). Lower the learning rate, clip "
                        "gradients, or look at the data."
                    )

    # ---- elastic ----

    def _committed(self) -> None:
        if self._elastic is None:
            return
        if self._record is not None:
            self._record.write()  # what this process knows may be gone at any time
        self._elastic.commit()
        now = time.perf_counter()
        if self._is_new and self._note is not None:
            self._note.goes_on(now - self._stepped if self._stepped else None)
        self._is_new, self._stepped = False, now

    def place(self) -> dict[str, Any]:
        """All that the run is, besides model and optimizer; plain data."""
        return {
            **self._order.state_dict(),
            "complete": self._complete,
            "best": self.best,
            "validation": self.validation,
            "means": self._means.sums() if self.workers.logical else {},
            "extra": self.extra,
            "scaler": self._precision.state(),
            "line": self._line,
        }

    def regroup(self) -> None:
        """The workers have changed: find out what this process plays, and whether all train the same."""
        self._meet()
        self.workers.share_out()
        self._total, self._ranks = self.workers.total, self.workers.ranks
        self.plan = self.options.plan(self.plan.samples, self._total)
        self._order = SampleOrder(self.plan.samples, self._total, self.options)
        for loader in self._forgetful:
            loader.forget()

    def begin(self, anew: bool) -> None:
        """Nobody has the state: begin, or continue from a checkpoint."""
        resume, overwrite = (self.options.resume, self.options.overwrite) if anew else ("auto", False)
        note = self._resume(resume, overwrite)
        if not anew and not note:
            raise elastic.nothing_to_go_on_from(self.options.out_folder)
        agree.everywhere(self._take_files)
        self._introduce(note)

    def go_on(self, place: Mapping[str, Any]) -> None:
        """Continue from there; everybody has the state."""
        self._order.load_state_dict(dict(place))
        self._complete, self.best = place["complete"], place["best"]
        self.validation, self.extra = dict(place["validation"]), dict(place["extra"])
        if self.workers.logical:
            self._means.load_state(place["means"])
        self._now.clear()
        self._line = dict(place["line"])
        self._precision.load_state(place["scaler"])
        self._taken = self._is_new = True
        agree.everywhere(self._take_files)
        if self._note is not None:
            self._note.generation(self.step_number, session.generation(), session.engine().peers)

    def result(self) -> dict[str, Any]:
        """The final metrics, the same on all ranks; of logical workers with a sum by which two runs are compared."""
        found = super().result()
        if self.workers.logical:
            found["parameters_sha256"] = checksum(self.model.state_dict())
        return found

    # ---- keeping ----

    def _average(self) -> None:
        self.workers.average()

    def _separate(self) -> None:
        self.workers.separate()

    def _gathered(self) -> dict[str, Any]:
        states = {name: each.state_dict() for name, each in self._optimizers.items()}
        return {
            self._model_field: self.model.state_dict(),
            "optimizer": states if self._several else states["optimizer"],
            "workers": self.workers.state(),
            "scaler": self._precision.state(),
            "compression": hvd.allgather_object(self._compression.state_dict()) if self._compression else [],
        }

    def _put_down(self, content: dict[str, Any], file: BinaryIO) -> None:
        torch.save(content, file)

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}. Give another checkpoint.") from None
        except Exception as error:  # what is not a torch file fails in the unpickler anywhere
            if path.read_bytes()[:4] == b"\x89HDF":
                raise UsageError(
                    f"{path} is a checkpoint of --framework keras. Continue with that, or give another one."
                ) from None
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise DamagedCheckpoint(f"{path} is not a checkpoint of plain data: {reason}. Give another one.") from None
        if not isinstance(content, dict):
            raise DamagedCheckpoint(f"{path} holds a {type(content).__name__}, not a checkpoint. Give another one.")
        return content

    def _put_back(self, content: dict[str, Any]) -> bool:
        self.model.load_state_dict(content[self._model_field])
        states = content["optimizer"] if self._several else {"optimizer": content["optimizer"]}
        for name, optimizer in self._optimizers.items():
            optimizer.load_state_dict(states[name])
        self._precision.load_state(content.get("scaler", {}))
        memories = content.get("compression", [])
        if self._compression is not None and len(memories) == hvd.size():
            self._compression.load_state_dict(memories[hvd.rank()])
        self.loaded = {k: v for k, v in content.items() if k not in (self._model_field, "optimizer", "workers")}
        return self.workers.load_state(content.get("workers", []))

    def _threads(self) -> int:
        return torch.get_num_threads()
