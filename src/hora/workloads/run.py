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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch
from torch import nn

import hora.torch as hvd
from hora.engine import session
from hora.errors import DamagedCheckpoint, NonFiniteError, UsageError
from hora.schedule import Plan
from hora.workloads.base_run import BaseRun
from hora.workloads.options import Options
from hora.workloads.workers import Worker, Workers

__all__ = ["Run", "compression", "usual_name"]

T = TypeVar("T")
Optimizers = torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer]


def compression(options: Options) -> Any:
    """What ``DistributedOptimizer`` takes as ``compression``: a class, or an object with a memory.

    >>> compression(Options()) is hvd.Compression.none
    True
    """
    kind: Any = getattr(hvd.Compression, options.compression)
    return kind if options.compression in ("none", "fp16", "bf16") else kind()


def usual_name(epoch: int, step: int, whole: bool) -> str:
    """What a checkpoint is called, after so many epochs, or in the middle of one.

    >>> usual_name(3, 1800, True), usual_name(3, 2000, False)
    ('epoch-0003.pt', 'step-00002000.pt')
    """
    return f"epoch-{epoch:04d}.pt" if whole else f"step-{step:08d}.pt"


class Run(BaseRun):
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

    framework = "torch"

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
        self.model, self.workers, self._model_field = model, workers, model_field
        self._optimizer = optimizer
        self._optimizers = list(optimizer.values()) if isinstance(optimizer, Mapping) else [optimizer]
        self._compression = compression if hasattr(compression, "load_state_dict") else None
        self._looks_at_loss = hvd.size() == 1 and session.engine().settings.nonfinite == "stop"
        super().__init__(
            options, plan, workers.total, workers.ranks, facts=facts, generated=generated, best=best, highest=highest,
            quiet=quiet, fields=fields, names=names, best_name=best_name,
        )  # fmt: skip

    # ---- the loop ----

    def batches(self, batches: Iterable[T]) -> Iterator[list[tuple[Worker, T]]]:
        """The batches of each step that is left of this epoch, each with the worker that takes it. Sets the learning
        rate, and puts the model into training mode; at the end BN statistics are the mean of all workers'."""
        turns = [worker for worker in self.workers for _ in range(self.options.accumulate)]
        self.model.train()
        for taken in self._steps(batches, len(turns)):
            yield list(zip(turns, taken, strict=True))

    def _put_rate(self) -> None:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.lr

    def _rest(self, resting: bool) -> None:
        for optimizer in self._optimizers:
            rest: Any = getattr(optimizer, "rest", None)
            if rest is not None:
                rest(resting)

    def autocast(self) -> AbstractContextManager[Any]:
        """For the forward pass, in the precision that was asked for."""
        return torch.autocast(self.workers.device.type, torch.bfloat16, enabled=self.options.precision == "bf16")

    def count(self, samples: int, **values: Any) -> None:
        """Note the metrics of a batch: means over its samples. Before ``optimizer.step()``, so that a loss that is not
        finite is found before it does harm."""
        plain = {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in values.items()}
        super().count(samples, **plain)
        if self._looks_at_loss and self.workers.device.type == "cpu":
            for name, value in plain.items():
                if not math.isfinite(value):
                    raise NonFiniteError(
                        f"step {self.step_number + 1}: {name} is {float(value)} on rank {hvd.rank()}. No parameter was "
                        "changed by it; the run ends here (HORA_NONFINITE=stop). Lower the learning rate, clip "
                        "gradients, or look at the data."
                    )

    # ---- keeping ----

    def _average(self) -> None:
        self.workers.average()

    def _separate(self) -> None:
        self.workers.separate()

    def _gathered(self) -> dict[str, Any]:
        several = self._optimizer
        return {
            self._model_field: self.model.state_dict(),
            "optimizer": {name: each.state_dict() for name, each in several.items()}
            if isinstance(several, Mapping)
            else several.state_dict(),
            "workers": self.workers.state(),
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
                    f"{path} is a checkpoint of --framework keras. Go on with that, or give another one."
                ) from None
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise DamagedCheckpoint(f"{path} is not a checkpoint of plain data: {reason}. Give another one.") from None
        if not isinstance(content, dict):
            raise DamagedCheckpoint(f"{path} holds a {type(content).__name__}, not a checkpoint. Give another one.")
        return content

    def _put_back(self, content: dict[str, Any]) -> bool:
        self.model.load_state_dict(content[self._model_field])
        if isinstance(self._optimizer, Mapping):
            for name, optimizer in self._optimizer.items():
                optimizer.load_state_dict(content["optimizer"][name])
        else:
            self._optimizer.load_state_dict(content["optimizer"])
        memories = content.get("compression", [])
        if self._compression is not None and len(memories) == hvd.size():
            self._compression.load_state_dict(memories[hvd.rank()])
        self.loaded = {k: v for k, v in content.items() if k not in (self._model_field, "optimizer", "workers")}
        return self.workers.load_state(content.get("workers", []))

    def _threads(self) -> int:
        return torch.get_num_threads()
