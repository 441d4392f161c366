"""What two ranks do together with Keras on one backend: ``python -m tests.keras.bodies REPORT`` under ``hora run``.

Every body is a function ``f(place)`` that all ranks run; one job runs all of them, because importing TensorFlow takes
longer than they do. Each rank writes REPORT.<rank>, a JSON object of body -> traceback, empty where it went well; again
with every body, so that one that ends the process takes only itself and what was to follow with it.
What is expected is computed by plain Keras in this process, or by numpy.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np

import hora.keras as hvd

SAMPLES, BATCH, FEATURES, LABELS = 32, 4, 6, 3
BODIES: dict[str, Callable[[Path], None]] = {}
BACKEND = keras.config.backend()


def body(function: Callable[[Path], None]) -> Callable[[Path], None]:
    BODIES[function.__name__] = function
    return function


def body_once(function: Callable[[Path], None]) -> Callable[[Path], None]:
    """A body to which the backend cannot matter: on one of them."""
    return body(function) if BACKEND == "torch" else function


# --- models and data --------------------------------------------------------------------------------------------------


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(7)
    inputs = rng.normal(size=(SAMPLES, FEATURES)).astype("float32")
    return inputs, np.tanh(inputs @ rng.normal(size=(FEATURES, LABELS))).astype("float32")


def share(array: Any, batch: int = BATCH) -> Any:
    """This rank's part of every global batch."""
    return array.reshape(-1, hvd.size(), batch, *array.shape[1:])[:, hvd.rank()].reshape(-1, *array.shape[1:])


def network(seed: int, **options: Any) -> Any:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(LABELS)]
    return keras.Sequential([keras.Input((FEATURES,)), *layers], **options)


def begin(seed: int = 1) -> Any:
    """A model that is another on every rank, until it is broadcast."""
    return network(seed + 10 * hvd.rank())


def fit(model: Any, inputs: Any, labels: Any, batch: int, epochs: int = 2, callbacks: Any = None) -> Any:
    return model.fit(inputs, labels, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)


def distance(one: Any, other: Any) -> float:
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return max(float(np.abs(a.astype("float64") - b).max()) for a, b in pairs)


def velocity(model: Any) -> list[Any]:
    return [keras.ops.convert_to_numpy(v) for v in model.optimizer.variables[2:]]


PLAIN: dict[str, Any] = {}


def alone(make: Callable[[], Any], batches: int) -> Any:
    """The model that plain Keras makes of all data, so many of our batches a step; each is trained once."""
    optimizer = make()
    key = f"{type(optimizer).__name__} {batches} {optimizer.get_config() | {'name': ''}}"
    if key not in PLAIN:
        PLAIN[key] = network(1)
        PLAIN[key].compile(optimizer, loss="mse")
        fit(PLAIN[key], *data(), BATCH * batches)
    return PLAIN[key]


def as_one(make: Callable[[], Any], tolerance: float = 1e-5, **options: Any) -> None:
    """Two workers compute what one does on their batches together."""
    inputs, labels = data()
    model = begin()
    model.compile(hvd.DistributedOptimizer(make(), **options), loss="mse")
    fit(model, share(inputs), share(labels), BATCH, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    plain = alone(make, hvd.size())
    assert distance(plain, model) < tolerance, distance(plain, model)


# --- the optimizer ----------------------------------------------------------------------------------------------------


@body
def sgd_is_as_one(place: Path) -> None:
    as_one(lambda: keras.optimizers.SGD(0.1))


@body_once
def momentum_is_as_one(place: Path) -> None:
    as_one(lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01))


@body
def adam_is_as_one(place: Path) -> None:
    as_one(lambda: keras.optimizers.Adam(0.01))


@body
def gradients_are_clipped_after_they_are_averaged(place: Path) -> None:
    as_one(lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.05))


@body
def compression_and_predivision(place: Path) -> None:
    as_one(lambda: keras.optimizers.SGD(0.1), gradient_predivide_factor=2.0, groups=2, name="mine")
    as_one(lambda: keras.optimizers.SGD(0.1), 1e-2, compression=hvd.Compression.fp16)


@body
def accumulated_gradients_are_as_one(place: Path) -> None:
    """Two batches on each of two ranks are one of four times the size; and so they are by Keras's own argument."""
    inputs, labels = data()
    rows = np.arange(SAMPLES).reshape(-1, 2, hvd.size(), BATCH).transpose(0, 2, 1, 3)  # a rank's batches in a row

    def check(make: Callable[[], Any], plain_rate: float) -> None:
        plain = alone(lambda: keras.optimizers.SGD(plain_rate, momentum=0.9), 2 * hvd.size())
        model = begin()
        model.compile(make(), loss="mse")
        mine = rows[:, hvd.rank()].reshape(-1)
        fit(model, inputs[mine], labels[mine], BATCH, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
        assert distance(plain, model) < 1e-5, distance(plain, model)

    def optimizer(**options: Any) -> Any:
        return keras.optimizers.SGD(0.1, momentum=0.9, **options)

    own = hvd.DistributedOptimizer
    check(lambda: own(optimizer(gradient_accumulation_steps=2)), 0.1)
    check(lambda: own(optimizer(), backward_passes_per_step=2), 0.2)  # summed
    if BACKEND == "torch":  # the only one that compiles nothing
        check(lambda: own(optimizer(), backward_passes_per_step=2, average_aggregated_gradients=True), 0.1)


@body
def sums_process_sets_and_steps_by_hand(place: Path) -> None:
    def step(**options: Any) -> Any:
        variable = keras.Variable(np.zeros(2, "float32"))
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
        optimizer.apply([keras.ops.convert_to_tensor(np.array([1.0, 2.0], "float32") * (hvd.rank() + 1))], [variable])
        return keras.ops.convert_to_numpy(variable).tolist()

    assert step() == [-1.5, -3.0]
    assert step(op=hvd.Sum) == [-3.0, -6.0]
    only = hvd.add_process_set(hvd.ProcessSet([0]))
    assert step(process_set=only) == [-1.0 - hvd.rank(), -2.0 - 2 * hvd.rank()]


@body
def a_rank_keeps_its_local_layers(place: Path) -> None:
    inputs, labels = data()
    model = network(1)
    first, last = model.layers
    before = keras.ops.convert_to_numpy(last.kernel).copy()
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=last)
    optimizer.register_local_var(first.bias)
    model.compile(optimizer, loss="mse")
    fit(model, share(inputs)[:BATCH], share(labels)[:BATCH], BATCH, epochs=1)

    single = network(1)  # one step on this rank's batch, of which a local layer takes half
    single.compile(keras.optimizers.SGD(0.1), loss="mse")
    fit(single, share(inputs)[:BATCH], share(labels)[:BATCH], BATCH, epochs=1)
    here, there = (keras.ops.convert_to_numpy(m.layers[-1].kernel) for m in (model, single))
    np.testing.assert_allclose(here - before, (there - before) / 2, atol=1e-6)
    same = [hvd.allgather_object(keras.ops.convert_to_numpy(v).tolist()) for v in (first.kernel, first.bias)]
    assert same[0][0] == same[0][1] and same[1][0] != same[1][1]


@body
def embeddings_are_as_one(place: Path) -> None:
    """Whose gradients are sparse on TensorFlow."""
    rng = np.random.default_rng(3)
    words, labels = rng.integers(0, 20, (SAMPLES, 3)), rng.normal(size=(SAMPLES, 2)).astype("float32")

    def reader(seed: int) -> Any:
        keras.utils.set_random_seed(seed)
        layers = [keras.layers.Embedding(20, 4), keras.layers.Flatten(), keras.layers.Dense(2)]
        return keras.Sequential([keras.Input((3,), dtype="int32"), *layers])

    for as_dense in (False, True) if BACKEND == "tensorflow" else (False,):
        plain = reader(1)
        plain.compile(keras.optimizers.SGD(0.5), loss="mse")
        fit(plain, words, labels, BATCH * hvd.size())
        model = reader(1 + hvd.rank())
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), sparse_as_dense=as_dense), loss="mse")
        fit(model, share(words), share(labels), BATCH, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
        assert distance(plain, model) < 1e-5, (as_dense, distance(plain, model))


@body
def an_overflow_on_one_rank_is_one_on_all(place: Path) -> None:
    """``compile`` scales the loss of a float16 model by itself; a user may have said so before."""
    inputs, labels = data()
    for explicit in (False, True):
        model = _half(1)
        optimizer = keras.optimizers.SGD(0.1)
        if explicit:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=256.0)
        model.compile(hvd.DistributedOptimizer(optimizer), loss="mse")
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        hvd.broadcast_model(model, 0)
        fit(model, share(inputs), share(labels), BATCH, epochs=1)
        scale, weights = _scale(model), model.get_weights()
        huge = share(inputs) * (1e30 if hvd.rank() == 1 else 1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's, of the overflow
            model.fit(huge[:BATCH].astype("float32"), share(labels)[:BATCH], batch_size=BATCH, verbose=0)
        assert _scale(model) == scale / 2, (_scale(model), scale)
        assert all(np.array_equal(a, b) for a, b in zip(weights, model.get_weights(), strict=True))
        together = hvd.allgather_object([w.tolist() for w in weights])
        assert together[0] == together[1]


def _half(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        layers = [keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(LABELS)]
        return keras.Sequential([keras.Input((FEATURES,)), *layers])
    finally:
        keras.config.set_dtype_policy("float32")


def _scale(model: Any) -> float:
    return float(keras.ops.convert_to_numpy(model.optimizer.dynamic_scale))


@body_once
def several_optimizers_in_one(place: Path) -> None:
    inputs, labels = data()

    def make() -> Any:
        others = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1))
        others[".*bias"] = keras.optimizers.Adam(0.01)
        return keras.optimizers.MultiOptimizer(others)

    if hasattr(keras.optimizers, "MultiOptimizer"):
        plain, model = network(1), network(1)
        plain.compile(make(), loss="mse")
        fit(plain, inputs, labels, BATCH * hvd.size())
        model.compile(hvd.DistributedOptimizer(make()), loss="mse")
        fit(model, share(inputs), share(labels), BATCH)
        assert distance(plain, model) < 1e-5, distance(plain, model)


@body
def on_tensorflow_a_gpu_does_not_bring_xla(place: Path) -> None:
    if BACKEND != "tensorflow":
        return
    import tensorflow as tf

    found = tf.config.list_physical_devices
    tf.config.list_physical_devices = lambda *args: [SimpleNamespace(device_type="GPU")]
    try:
        plain, model = network(1), network(1)
        plain.compile(keras.optimizers.SGD(0.1), loss="mse")
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    finally:
        tf.config.list_physical_devices = found
    assert plain.jit_compile is True and model.jit_compile is False


# --- files ------------------------------------------------------------------------------------------------------------


@body
def what_is_saved_is_plain(place: Path) -> None:
    inputs, labels = data()
    model = begin()
    loss = keras.losses.MeanSquaredError()  # Keras's h5 files do not know "mse"
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)), loss)
    fit(model, share(inputs), share(labels), BATCH, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    for ending in (".keras", ".h5"):
        file = place / f"{BACKEND}{hvd.rank()}{ending}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # h5 is "legacy"
            model.save(file)
            plain = keras.models.load_model(file)
            again = hvd.load_model(file)
        assert plain.optimizer.get_config() == model.optimizer.get_config() == again.optimizer.get_config()
        saved = keras.saving.serialize_keras_object(model.optimizer)
        assert saved["module"] == "keras.optimizers" and saved["class_name"] == "SGD"
        assert not hasattr(plain.optimizer, "register_local_var") and hasattr(again.optimizer, "register_local_var")
        for loaded in (plain, again) if ending == ".keras" else (again,):  # from h5, Keras restores no optimizer
            pairs = list(zip(velocity(loaded), velocity(model), strict=True))
            assert pairs and all(np.array_equal(a, b) and np.abs(a).max() > 0 for a, b in pairs)
        assert distance(plain, model) == distance(again, model) == 0
        fit(again, share(inputs), share(labels), BATCH, epochs=1)  # it goes on, and reduces
        if ending == ".keras":
            fit(plain, inputs, labels, BATCH * hvd.size(), epochs=1)
            assert distance(plain, again) < 1e-5
            went_on = plain
        assert distance(went_on, again) < 1e-5


@body_once
def an_optimizer_keeps_what_it_has(place: Path) -> None:
    inputs, labels = data()
    plain = network(1)
    plain.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss="mse")
    fit(plain, inputs, labels, BATCH * hvd.size(), epochs=1)
    before = velocity(plain)
    optimizer = plain.optimizer
    config = optimizer.get_config()
    assert hvd.DistributedOptimizer(optimizer) is optimizer and optimizer.get_config() == config
    assert all(np.array_equal(a, b) for a, b in zip(before, velocity(plain), strict=True))
    copy = type(optimizer).from_config(config)
    assert type(copy) is type(optimizer) and copy.get_config() == config
    with contextlib.suppress(hvd.UsageError):
        hvd.DistributedOptimizer(optimizer)
        raise AssertionError("a distributed optimizer was made distributed")


# --- callbacks --------------------------------------------------------------------------------------------------------


@body
def a_model_without_variables_is_broadcast_when_it_has_some(place: Path) -> None:
    inputs, labels = data()
    plain = alone(lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01), hvd.size())
    keras.utils.set_random_seed(1 + hvd.rank())
    model = keras.Sequential([keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(LABELS)])
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01)
    model.compile(hvd.DistributedOptimizer(optimizer), loss="mse")
    fit(model, share(inputs), share(labels), BATCH, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert distance(plain, model) < 1e-5, distance(plain, model)


@body_once
def ranks_with_different_models_are_told(place: Path) -> None:
    model = network(1)
    variables = model.variables[: 4 - hvd.rank()]
    try:
        hvd.broadcast_variables(variables, 0)
    except hvd.MismatchError as error:
        assert "rank 0: 4\n  rank 1: 3" in str(error), error
    else:
        raise AssertionError("nobody noticed")


@body_once
def metrics_are_averages(place: Path) -> None:
    inputs, labels = data()
    model = network(1)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), loss="mse", metrics=["mae"])
    seen: list[dict[str, float]] = []
    look = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(dict(logs)))
    mine = share(inputs), share(labels)
    history = model.fit(
        *mine,
        validation_data=mine,
        batch_size=BATCH,
        verbose=0,
        callbacks=[hvd.callbacks.MetricAverageCallback(), look],
    )
    expected = dict(zip(("loss", "mae"), model.evaluate(inputs, labels, verbose=0), strict=True))
    for name, value in expected.items():
        for found in (seen[0][name], seen[0][f"val_{name}"], history.history[name][0]):
            assert abs(found - value) < 1e-5, (name, found, value)


class Rates(keras.callbacks.Callback):
    """Notes the rate that every batch is trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))


@body
def the_rate_warms_up_and_falls(place: Path) -> None:
    inputs, labels = share(data()[0]), share(data()[1])
    steps, size, peak = len(inputs) // BATCH, hvd.size(), 0.4
    model = network(1)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(peak)), loss="mse")
    rates, schedule = Rates(), hvd.callbacks.LearningRateScheduleCallback
    warmup = hvd.callbacks.LearningRateWarmupCallback(initial_lr=peak, warmup_epochs=2, verbose=1)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        history = fit(
            model, inputs, labels, BATCH, epochs=9,
            callbacks=[
                warmup,
                schedule(peak, multiplier=1.0, start_epoch=2, end_epoch=4),
                schedule(initial_lr=peak, multiplier=0.1, start_epoch=4, end_epoch=6),
                schedule(peak, lambda epoch: 0.5 / epoch, start_epoch=6, end_epoch=7, staircase=False),
                schedule(peak, 0.1, start_epoch=7, compound=True),
                rates,
            ],
        )  # fmt: skip
    ramp = [peak / size * ((i + 1) / steps * (size - 1) / 2 + 1) for i in range(2 * steps)]
    curve = [peak * 0.5 / (6 + i / steps) for i in range(steps)]
    flat = [peak] * (2 * steps) + [peak * 0.1] * (2 * steps)
    expected = [*ramp, *flat, *curve, *[peak] * steps, *[peak * 0.1] * steps]
    np.testing.assert_allclose(rates.rates, expected, rtol=1e-5)
    assert abs(history.history["lr"][4] - peak * 0.1) < 1e-6
    over = "\nEpoch 2: finished gradual learning rate warmup to 0.4.\n"
    assert said.getvalue() == (over if hvd.rank() == 0 else "")


@body
def the_velocity_follows_the_rate(place: Path) -> None:
    """v <- m (new/old) v - new g, computed by numpy on one weight with the gradient 1."""

    def train(correct: bool) -> float:
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((1,)), layer])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), loss=lambda y, p: p)
        schedule = hvd.callbacks.LearningRateScheduleCallback(
            0.1, lambda epoch: 1.0 if epoch < 2 else 5.0, momentum_correction=correct
        )
        fit(model, np.ones((2, 1), "float32"), np.ones((2, 1), "float32"), 2, epochs=4, callbacks=[schedule])
        return float(model.get_weights()[0][0, 0])

    for correct in (True, False):
        weight = speed = 0.0
        for rate, jump in ((0.1, 1.0), (0.1, 1.0), (0.5, 5.0), (0.5, 1.0)):
            speed = 0.9 * (jump if correct else 1.0) * speed - rate
            weight += speed
        assert abs(train(correct) - weight) < 1e-5, (correct, train(correct), weight)


@body_once
def the_best_model_is_kept_once(place: Path) -> None:
    inputs, labels = share(data()[0]), share(data()[1])
    model = network(1)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    file = place / f"best{hvd.rank()}.keras"
    best = hvd.callbacks.BestModelCheckpoint(file, monitor="loss")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(), best]
    history = fit(model, inputs, labels, BATCH, epochs=3, callbacks=callbacks)
    assert file.exists() == (hvd.rank() == 0)
    if hvd.rank() == 0:
        assert abs(best.best - min(history.history["loss"])) < 1e-7
        assert distance(keras.models.load_model(file), model) == 0  # the last epoch was the best
    model.stop_training = False
    with contextlib.suppress(hvd.UsageError):
        fit(model, inputs, labels, BATCH, callbacks=[hvd.callbacks.BestModelCheckpoint()])
        raise AssertionError("saved nowhere")


@body_once
def states_are_kept_up_to_date(place: Path) -> None:
    inputs, labels = share(data()[0]), share(data()[1])
    steps = len(inputs) // BATCH
    commits: list[tuple[int, int]] = []
    state = SimpleNamespace(batch=0, epoch=0, commit=lambda: commits.append((state.epoch, state.batch)))
    model = network(1)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    callbacks = [
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=3),
    ]
    fit(model, inputs, labels, BATCH, epochs=2, callbacks=callbacks)
    assert steps == 4 and commits == [(0, 3), (1, 0), (1, 2), (2, 0)], commits
    fit(model, inputs, labels, BATCH, epochs=1, callbacks=callbacks)  # counts from 0 again
    assert state.epoch == 3
    model.fit(inputs, labels, batch_size=BATCH, initial_epoch=3, epochs=5, verbose=0, callbacks=callbacks)
    assert state.epoch == 5 and state.batch == 0


# --- values -----------------------------------------------------------------------------------------------------------


@body
def values_of_every_kind(place: Path) -> None:
    rank, size = hvd.rank(), hvd.size()
    assert hvd.allreduce([1.0, rank], name="a").tolist() == [1.0, (size - 1) / 2]
    assert hvd.allreduce(rank + 1, op=hvd.Sum) == 3 and hvd.allreduce(2.0 * rank, average=False) == 2.0
    assert hvd.allreduce(np.array([rank]), op=hvd.Max, name="m").tolist() == [1]
    assert hvd.allreduce([1.0], prescale_factor=0.5, postscale_factor=4.0).tolist() == [2.0]
    assert abs(hvd.allreduce([0.1], compression=hvd.Compression.fp16)[0] - 0.1) < 1e-3
    epoch = hvd.broadcast(3 * rank, 1, name="resume_from_epoch")
    assert epoch == 3 and list(range(epoch)) == [0, 1, 2] and f"{epoch}" == "3"
    assert hvd.allgather([[rank]] * (rank + 1)).tolist() == [[0], [1], [1]]
    assert hvd.reducescatter(np.arange(3.0), op=hvd.Sum).tolist() == [[0.0, 2.0], [4.0]][rank]
    tensor = hvd.allreduce(keras.ops.convert_to_tensor([1.0, 3.0]))
    assert keras.ops.is_tensor(tensor) and keras.ops.convert_to_numpy(tensor).tolist() == [1.0, 3.0]
    assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1} and hvd.allgather_object(rank) == [0, 1]
    hvd.barrier()


@body
def random_states_stay(place: Path) -> None:
    keras.utils.set_random_seed(1 + hvd.rank())
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dropout(0.5)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    state = next(v for v in model.variables if "seed" in v.name)
    before = keras.ops.convert_to_numpy(state).tolist()
    hvd.broadcast_global_variables(0, model)
    assert keras.ops.convert_to_numpy(state).tolist() == before
    kernels = hvd.allgather_object(keras.ops.convert_to_numpy(model.layers[0].kernel).tolist())
    assert kernels[0] == kernels[1]


@body_once
def mistakes_are_named(place: Path) -> None:
    plain = keras.optimizers.SGD
    for wrong, text in (
        (lambda: hvd.DistributedOptimizer("sgd"), "takes an optimizer of Keras"),
        (lambda: hvd.DistributedOptimizer(plain(), op=hvd.Adasum), "op=Adasum"),
        (lambda: hvd.DistributedOptimizer(plain(), op=hvd.Sum, gradient_predivide_factor=2.0), "predivide_factor"),
        (lambda: hvd.DistributedOptimizer(plain(), backward_passes_per_step=0), "must be > 0"),
        (lambda: hvd.PartialDistributedOptimizer(plain(), local_layers=[3]), "local_layers has a int"),
        (lambda: hvd.broadcast_global_variables(0), "without a model"),
        (lambda: hvd.callbacks.LearningRateScheduleCallback(0.1), "without a multiplier"),
    ):
        try:
            wrong()
        except hvd.UsageError as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"{text!r} was not said")


def main(report: str, *only: str) -> None:
    hvd.init()
    failures: dict[str, str] = {}

    def told(name: str, how: str) -> None:
        failures[name] = how
        Path(f"{report}.{hvd.rank()}").write_text(json.dumps(failures))

    with tempfile.TemporaryDirectory(prefix="keras-") as folder:
        for name, function in BODIES.items():
            if only and name not in only:
                continue
            before_s = time.process_time()
            told(name, "the process ended in it")
            try:
                function(Path(folder))
                told(name, "")
            except BaseException:
                told(name, traceback.format_exc())
            if hvd.rank() == 0:
                print(f"{time.process_time() - before_s:6.2f} s {name}", flush=True)
            hvd.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
