"""A run in Keras: its position, what it saves and what it prints. The loop of a workload is written around one.

::

    with KerasRun(options, plan, model) as run:
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), run.callback]
        for epoch in run.epochs():                                # continues where a checkpoint was written
            if run.steps_left:                                    # or only its validation is left
                batches = run.batches(data.batch(plan) for plan in run.plans(epoch))
                model.fit(batches, steps_per_epoch=run.batches_left, initial_epoch=epoch, epochs=epoch + 1,
                          shuffle=False, verbose=0, callbacks=callbacks)
            run.validated(run.evaluate(model, validation))        # on the mean of the workers' BN statistics
    return run.result()

``model.fit`` is called once an epoch: what happens between two of them stands in the loop, and an epoch may have fewer
steps than another. A loop without ``fit`` takes ``run.steps`` in its place, and calls ``run.count`` and ``run.step``.

Promises: those of ``hora.workloads.run``. A checkpoint is a plain Keras file, which ``keras.models.load_model`` reads,
with what Hora needs to continue beside the weights: an attribute ``hora`` and a group ``hora``.
"""

from __future__ import annotations

import io
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import h5py
import keras
import msgspec
import numpy as np
from keras.src.legacy.saving import legacy_h5_format

import hora.keras as hvd
from hora.engine import session
from hora.engine.process_set import global_process_set
from hora.errors import DamagedCheckpoint, HoraError, NonFiniteError, UsageError
from hora.keras.adapter import Array, to_numpy
from hora.keras.callbacks.learning_rate import scale_velocity
from hora.keras.optimizer import innermost
from hora.ops import host
from hora.ops.objects import allgather_object
from hora.schedule import LearningRatePlan
from hora.types import ReduceOp, Reduction
from hora.workloads.base_run import BaseRun
from hora.workloads.keras_backend import TorchStream, arrays, compression, on_torch, prepare, threads_wanted
from hora.workloads.metrics import Means
from hora.workloads.options import WorkloadOptions
from hora.workloads.order import worker_seed
from hora.workloads.run_checkpoints import fitting

__all__ = ["KerasRun", "arrays", "compression", "prepare", "usual_name"]

T = TypeVar("T")

_OURS = "hora"  # what Hora's attribute and group in a file are called


def usual_name(epoch: int, step: int, whole: bool) -> str:
    """What a checkpoint is called, after that many epochs, or in the middle of one.

    >>> usual_name(3, 1800, True), usual_name(3, 2000, False)
    ('checkpoint-3.h5', 'checkpoint-3-step-2000.h5')
    """
    return f"checkpoint-{epoch}.h5" if whole else f"checkpoint-{epoch}-step-{step}.h5"


class KerasRun(BaseRun):
    """One run of a workload. Made on all ranks together, when models and optimizers are as they shall be at the start;
    then all ranks have rank 0's.

    Args:
        options: The workload's.
        plan: ``options.plan(samples, hvd.size())``.
        models: A compiled model, or several by name.
        optimizers: By name; those of the models unless given. Their rates are set to the plan's before every step.
        compiled: The models whose steps use them; those of ``models`` unless given.
        facts: What else must be the same on all ranks, such as ``classes``; told if it is not.
        generated: Whether the data is, which the run says.
        best: The metric by which a checkpoint is the best; ``highest`` or lowest.
        quiet: The workload prints lines of its own; the run prints nothing about steps and epochs.

    Attributes:
        callback: for ``model.fit``, after all others.
        epoch, step_number, samples_seen: where it is, over the whole run.
        steps_per_epoch, steps_left, batches_left: of the epoch; batches are those of this process.
        lr, step_s, data_s: of the step under way; of the last one, in seconds.
        best, improved: the best validation so far; whether it is the last one.
        extra: the workload's own state, plain data, kept in checkpoints.
        loaded: the checkpoint that it continued from, without weights; {} if none.
    """

    framework = "keras"

    def __init__(
        self,
        options: WorkloadOptions,
        plan: LearningRatePlan,
        models: Any,
        *,
        optimizers: Mapping[str, Any] | None = None,
        compiled: Iterable[Any] | None = None,
        facts: Mapping[str, Any] | None = None,
        generated: bool = False,
        best: str = "val_accuracy",
        highest: bool = True,
        quiet: bool = False,
    ) -> None:
        self._models: dict[str, Any] = dict(models) if isinstance(models, Mapping) else {"": models}
        own = {name: model.optimizer for name, model in self._models.items() if getattr(model, "optimizer", None)}
        self._optimizers: dict[str, Any] = dict(own if optimizers is None else optimizers)
        self._compiled = list(self._models.values() if compiled is None else compiled)
        self._steps_made: dict[tuple[int, bool], Any] = {}  # by model, and whether it rests
        self._resting = False
        for name, optimizer in self._optimizers.items():
            if not optimizer.built:
                optimizer.build(self._models[name].trainable_variables)
        self.callback = _Callback(self)
        self._statistics = [
            variable
            for layer in _layers(self._models.values())
            if isinstance(layer, keras.layers.BatchNormalization)
            for variable in (layer.moving_mean, layer.moving_variance)
        ]
        self._own: list[Array] | None = None  # this worker's statistics, while those of the model are the mean
        variables = {id(v): v for model in self._models.values() for v in model.variables}
        self._random = [v for v in variables.values() if str(v.name).startswith("seed_generator_state")]
        for number, variable in enumerate(self._random):
            seed = worker_seed(options.seed, hvd.rank(), number) % 2**31
            variable.assign(np.array([seed, 0], to_numpy(variable).dtype))
        self._stream = TorchStream(worker_seed(options.seed, hvd.rank())) if on_torch() else None
        self._rate: float | None = None  # of the optimizers, if it is known
        self._came: list[float] = []  # when the batches of this epoch were there
        self._failed: HoraError | None = None  # what went wrong with the next
        self._looks_at_loss = session.engine().settings.nonfinite == "stop"
        self._share()
        here = hvd.rank()
        super().__init__(
            options, plan, hvd.size(), range(here, here + 1), generated=generated, best=best, highest=highest,
            facts={"KERAS_BACKEND": keras.config.backend(), **dict(facts or {})}, quiet=quiet,
            names=usual_name,
        )  # fmt: skip
        if self.loaded:
            self._share()

    def _share(self) -> None:
        """Give all ranks rank 0's variables."""
        for name, model in self._models.items():
            hvd.broadcast_variables(model.variables, 0, name=f"hora.model.{name}")
        for name, optimizer in self._optimizers.items():
            hvd.broadcast_variables(optimizer.variables, 0, name=f"hora.optimizer.{name}")

    # ---- the loop ----

    @property
    def steps_left(self) -> int:
        return self._order.steps_left

    @property
    def batches_left(self) -> int:
        return self._order.steps_left * self.options.accumulate

    def batches(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches for ``model.fit``, as they are: of each is noted when it came, which may be ahead of its use.

        What goes wrong with one is raised when those before it are used up. TensorFlow would make an error of its own
        of it, and might not end.
        """
        self._came.clear()
        try:
            for batch in batches:
                self._came.append(time.perf_counter())
                yield batch
        except HoraError as error:
            if not self._came:
                raise
            self._failed = error

    def steps(self, batches: Iterable[T]) -> Iterator[list[T]]:
        """The batches of each step that is left of this epoch, for a loop without ``model.fit``: one, or several
        accumulated. Sets the learning rate; at the end BN statistics are the mean of all workers'."""
        for taken in self._steps(batches, self.options.accumulate):
            self._begin_batch()
            yield taken

    def step(self) -> None:
        """A step is done, on all ranks: note it, tell it, and leave with a checkpoint if the job was asked to end."""
        self._end_batch()
        if self._looks_at_loss and not (self._turns is not None and self._turns.alone):
            self._look_at_loss()
        super().step()

    def evaluate(self, model: Any, batches: Iterable[tuple[Any, ...]]) -> dict[str, float]:
        """The loss and the metrics that the model was compiled with, over the samples of all ranks: each calls it, with
        batches of its own, with none if there are too few. A metric must be a mean over samples."""
        means = Means()
        for batch in batches:
            means.add(len(batch[1]), _numbers(model.test_on_batch(*batch, return_dict=True)))
        return means.reduced()

    def _put_rate(self) -> None:
        """Keras folds the rate into the velocity of SGD; make that follow the rate, as torch's does."""
        if self.lr != self._rate:
            self._rate = self.lr
            self._attach()
            for optimizer in map(innermost, self._optimizers.values()):
                before = float(to_numpy(optimizer.learning_rate))
                optimizer.learning_rate = self.lr
                if before:
                    scale_velocity(optimizer, float(to_numpy(optimizer.learning_rate)) / before)

    def _rest(self, resting: bool) -> None:
        """A compiled step has in it what it communicates, so there are two of each."""
        if resting == self._resting:
            return
        for optimizer in self._optimizers.values():
            optimizer.rest(resting)
        for number, model in enumerate(self._compiled):
            self._steps_made[number, self._resting] = model.train_function
            model.train_function = self._steps_made.get((number, resting))
            if model.train_function is None:
                _make_anew(model)
        self._resting = resting

    def _begin_batch(self) -> None:
        if self._stream is not None:
            self._stream.begin()

    def _end_batch(self) -> None:
        if self._stream is not None:
            self._stream.end()

    def _look_at_loss(self) -> None:
        """Every rank must leave at this step: the loss of one is nan before those of the others are."""
        bad = [f"{name} is {value}" for name, value in self._now.local().items() if not math.isfinite(value)]
        flag = np.array([len(bad)], np.int32)
        if session.size() > 1:
            (flag,) = host.allreduce([flag], Reduction(ReduceOp.SUM), "hora.finite", global_process_set).wait()
        if flag[0]:
            told = enumerate(allgather_object(bad, name="hora.not_finite"))
            what = "; ".join(f"{', '.join(words)} on rank {rank}" for rank, words in told if words)
            raise NonFiniteError(
                f"step {self.step_number + 1}: {what}. It has changed the parameters, but no checkpoint; the run ends "
                "here (HORA_NONFINITE=stop). Lower the learning rate, clip gradients, or look at the data."
            )

    def _attach(self) -> None:
        """On JAX, ``fit`` keeps the variables to itself; have it put them back into the models, to be looked at."""
        for model in self._models.values():
            if hasattr(model, "jax_state_sync"):
                model.jax_state_sync()

    # ---- keeping ----

    def _average(self) -> None:
        if not self._statistics or self._own is not None or session.size() == 1:
            return
        self._attach()
        self._own = [to_numpy(variable).copy() for variable in self._statistics]
        how = Reduction(ReduceOp.AVERAGE)
        means = host.allreduce(self._own, how, "hora.statistics", global_process_set, grouped=True).wait()
        self._put(means)

    def _separate(self) -> None:
        if self._own is not None:
            self._put(self._own)
            self._own = None

    def _put(self, statistics: Iterable[Array]) -> None:
        for variable, value in zip(self._statistics, statistics, strict=True):
            variable.assign(value)

    def _gathered(self) -> dict[str, Any]:
        self._attach()
        own = {
            "random": [to_numpy(variable).copy() for variable in self._random],
            "stream": self._stream.state if self._stream is not None else [],
            "statistics": self._own or [to_numpy(variable).copy() for variable in self._statistics],
        }
        return {"workers": allgather_object(own, name="hora.workers")}

    def _put_down(self, content: dict[str, Any], file: BinaryIO) -> None:
        workers = content.pop("workers")
        memory = io.BytesIO()
        with h5py.File(memory, "w") as whole:
            if "" in self._models:
                legacy_h5_format.save_model_to_hdf5(self._models[""], whole)
            else:
                for name in {**self._models, **self._optimizers}:
                    place = whole.create_group(name)
                    if name in self._models:
                        group = place.create_group("model_weights")
                        legacy_h5_format.save_weights_to_hdf5_group(group, self._models[name])
                    if name in self._optimizers:
                        legacy_h5_format.save_optimizer_weights_to_hdf5_group(place, self._optimizers[name])
            whole.attrs[_OURS] = msgspec.json.encode({**content, "framework": self.framework}).decode()
            for rank, worker in enumerate(workers):
                for kind, values in worker.items():
                    group = whole.create_group(f"{_OURS}/{rank}/{kind}")
                    for number, array in enumerate(values):
                        group.create_dataset(str(number), data=array)
        file.write(memory.getbuffer())

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            with _opened(path) as file:
                content: dict[str, Any] = msgspec.json.decode(file.attrs.get(_OURS, "{}"))
                ours = file.get(_OURS, {})
                workers = [
                    {
                        kind: [np.asarray(group[str(number)]) for number in range(len(group))]
                        for kind, group in ours[str(rank)].items()
                    }
                    for rank in range(len(ours))
                ]
        except (KeyError, msgspec.DecodeError) as error:
            raise DamagedCheckpoint(f"{path} is incomplete: {error}. Give another checkpoint.") from None
        if not content:  # somebody else's: Keras's, of whose number we take the epoch
            named = re.search(r"(\d+)\.(h5|hdf5)$", path.name)
            content = {"epoch": int(named[1]) if named else 0}
        with fitting(content, path, self.options.workload):
            self._load(path)
        return {**content, "workers": workers}

    def _load(self, path: Path) -> None:
        """Put a file's weights and optimizer states into ours. The other ranks get them by a broadcast."""
        with _opened(path) as file:
            for name, model in self._models.items():
                place = file[name] if name else file
                legacy_h5_format.load_weights_from_hdf5_group(place["model_weights"], model)
            for name, optimizer in self._optimizers.items():
                place = file[name] if name else file
                if "optimizer_weights" not in place:
                    continue
                found = legacy_h5_format.load_optimizer_weights_from_hdf5_group(place)
                for variable, value in zip(optimizer.variables, found, strict=True):
                    variable.assign(np.asarray(value))

    def _put_back(self, content: dict[str, Any]) -> bool:
        self.loaded = {name: value for name, value in content.items() if name != "workers"}
        workers = content.get("workers", [])
        if len(workers) != session.size():
            return False
        mine = workers[session.rank()]
        for variable, state in zip(self._random, mine["random"], strict=True):
            variable.assign(state.astype(to_numpy(variable).dtype))
        if self._stream is not None and mine["stream"]:
            self._stream.state = mine["stream"]
        if session.size() > 1:
            self._own = mine["statistics"]  # what was saved, and is in the model now, is the mean
        return True

    def _threads(self) -> int:
        if on_torch():
            import torch

            return torch.get_num_threads()
        return threads_wanted() or len(os.sched_getaffinity(0))


class _Callback(keras.callbacks.Callback):
    """Drives a run from ``model.fit``."""

    def __init__(self, run: KerasRun) -> None:
        super().__init__()
        self._run = run
        self._batch = self._samples = 0  # of this call of fit
        self._sums: dict[str, float] = {}
        self._ended = 0.0  # when the last batch was done

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._batch, self._samples, self._sums = 0, 0, {}
        self._run._separate()  # not before: others broadcast when training begins
        self._run._clock.start()
        self._ended = time.perf_counter()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._run._begin_batch()
        if self._batch % self._run.options.accumulate == 0:
            self._run._set_rate()
            self._run.data_s = 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        run = self._run
        run._end_batch()
        if self._batch < len(run._came):
            run.data_s += max(0.0, run._came[self._batch] - self._ended)
        self._batch += 1
        if self._batch % run.options.accumulate == 0:
            self._count(run, logs or {})
            run.step()
            if not run.steps_left:
                self.model.stop_training = True  # the time may be up
        self._ended = time.perf_counter()

    def _count(self, run: KerasRun, logs: Mapping[str, Any]) -> None:
        """Keras's metrics are means over the epoch so far; of two such means the step's own follow."""
        samples = run._order.next_samples // session.size()
        self._samples += samples
        sums = {name: value * self._samples for name, value in _numbers(logs).items()}
        run.count(samples, **{name: (total - self._sums.get(name, 0.0)) / samples for name, total in sums.items()})
        self._sums = sums

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._run._failed is not None:
            raise self._run._failed
        if self._run.steps_left:
            left = self._run.steps_left
            raise UsageError(f"the data ended with {left} steps of epoch {epoch + 1} left. Give model.fit all of them.")

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._run._average()


def _make_anew(model: Any) -> None:
    """Have a model's step compiled when it is next called. Of the same function JAX would take what it has compiled."""
    step = model.train_step
    model.train_step = lambda *state: step(*state)
    model.make_train_function(force=True)
    del model.train_step


def _numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """What Keras measured, the loss first.

    >>> _numbers({"accuracy": 1, "loss": np.float32(0.5)})
    {'loss': 0.5, 'accuracy': 1.0}
    """
    return {name: float(logs[name]) for name in sorted(logs, key=lambda name: name != "loss")}


def _layers(models: Iterable[Any]) -> Iterator[Any]:
    """All layers, also those of layers, each once."""
    seen: set[int] = set()
    for model in models:
        for layer in model._flatten_layers():
            if id(layer) not in seen:
                seen.add(id(layer))
                yield layer


def _opened(path: Path) -> Any:
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        if not path.is_file() or h5py.is_hdf5(path):
            raise UsageError(f"{path} cannot be read: {error}. Give another checkpoint.") from None
        if path.read_bytes()[:2] == b"PK":
            raise UsageError(
                f"{path} is a checkpoint of --framework torch. Continue with that, or give another one."
            ) from None
        raise DamagedCheckpoint(f"{path} is not a checkpoint of Keras, which is HDF5. Give another one.") from None
