"""Tapes, optimizers, variables and batch normalisation: N workers do what one would do on all data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tests import coarse
from tests.tensorflow.data import check, raises

WORDS, WIDTH, BATCH = 7, 3, 4


class _Model:
    """An embedding, whose gradients are slices, and a dense layer."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.table = tf.Variable(random.normal(size=(WORDS, WIDTH)).astype("float32"))
        self.weight = tf.Variable(random.normal(size=(WIDTH, 2)).astype("float32"))
        self.unused = tf.Variable(tf.zeros([2]))
        self.variables = [self.table, self.weight, self.unused]

    def loss(self, words: Any, targets: Any) -> Any:
        hidden = tf.reduce_mean(tf.gather(self.table, words), 1)
        return tf.reduce_mean(tf.square(hidden @ self.weight - targets))


def _data(size: int) -> tuple[Any, Any]:
    random = np.random.default_rng(11)
    words = random.integers(0, WORDS, (5, size * BATCH, 2))
    return words.astype("int32"), random.normal(size=(5, size * BATCH, 2)).astype("float32")


def _alone(size: int) -> list[Any]:
    """What one process makes of the batches of all ranks together."""
    model = _Model(0)
    for words, targets in zip(*_data(size), strict=True):
        with tf.GradientTape() as tape:
            loss = model.loss(words, targets)
        for variable, gradient in zip(model.variables, tape.gradient(loss, model.variables), strict=True):
            if gradient is not None:
                variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
    return [variable.numpy() for variable in model.variables]


def _own(array: Any, rank: int) -> Any:
    return tf.constant(array[rank * BATCH : (rank + 1) * BATCH])


def tapes_as_one_worker_on_all_data(hvd: Any, rank: int, size: int) -> None:
    expected = _alone(size)
    options: list[dict[str, Any]] = [
        {},
        {"sparse_as_dense": True},
        {"gradient_predivide_factor": 2.0},
        {"compression": hvd.Compression.fp16},
        {"compression": hvd.Compression.bf16},
    ]
    for wrapped in (False, True):
        for given in options:
            model = _Model(rank)
            hvd.broadcast_variables(model.variables, root_rank=0)

            def step(words: Any, targets: Any, model: Any = model, given: Any = given) -> None:
                with tf.GradientTape() as tape:
                    loss = model.loss(words, targets)
                tape = hvd.DistributedGradientTape(tape, **given)
                gradients = tape.gradient(loss, model.variables)
                assert gradients[2] is None
                assert isinstance(gradients[0], tf.IndexedSlices) == ("sparse_as_dense" not in given)
                for variable, gradient in zip(model.variables[:2], gradients[:2], strict=True):
                    variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))

            run = tf.function(step) if wrapped else step
            for words, targets in zip(*_data(size), strict=True):
                run(_own(words, rank), _own(targets, rank))
            tolerance = 0.05 if "compression" in given else 1e-5
            for variable, wanted in zip(model.variables, expected, strict=True):
                np.testing.assert_allclose(variable.numpy(), wanted, tolerance, tolerance, err_msg=f"{wrapped} {given}")


def one_group_a_step(hvd: Any, rank: int, size: int) -> None:
    """However many variables there are: one operation for the dense gradients, one for the sparse."""
    from hora.engine import session

    engine, names = session.engine(), []
    prepare = engine.prepare

    def watch(spec: Any) -> Any:
        names.append(spec.name)
        return prepare(spec)

    models = [_Model(0), _Model(0)]

    def step(model: Any) -> None:
        with tf.GradientTape(persistent=True) as tape:
            loss = model.loss(tf.constant([[1, 2]]), tf.zeros([1, 2])) + tf.reduce_sum(model.unused)
        hvd.DistributedGradientTape(tape).gradient(loss, model.variables)
        hvd.DistributedGradientTape(tape).gradient(loss, {"one": model.weight})

    engine.prepare = watch  # type: ignore[method-assign]
    try:
        for model in models:
            step(model)
        tf.function(step)(models[0])
    finally:
        del engine.prepare  # type: ignore[method-assign]
    if size > 1:
        assert len(names) == 9 and len(set(names)) == 3, names


def local_sources(hvd: Any, rank: int, size: int) -> None:
    shared, own = tf.Variable(1.0), tf.Variable(1.0)

    def gradients(**options: Any) -> list[float]:
        with tf.GradientTape() as tape:
            loss = (shared + own) * float(rank + 1)
        tape = hvd.DistributedGradientTape(tape, **options)
        tape.register_local_source(own)
        return [float(g) for g in tape.gradient(loss, [shared, own])]

    mean = sum(range(1, size + 1)) / size
    np.testing.assert_allclose(gradients(), [mean, (rank + 1) / size], 1e-6)
    np.testing.assert_allclose(gradients(scale_local_gradients=False), [mean, rank + 1.0], 1e-6)

    layer, other = keras.layers.Dense(1, use_bias=False), keras.layers.Dense(1, use_bias=False)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.ones([1, 2])) + other(tf.ones([1, 2]))) * float(rank + 1)
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=[layer], scale_local_gradients=False)
    of_layer, of_other = tape.gradient(loss, [layer.trainable_weights[0].value, other.trainable_weights[0].value])
    np.testing.assert_allclose(of_layer.numpy(), np.full((2, 1), rank + 1.0), 1e-6)
    np.testing.assert_allclose(of_other.numpy(), np.full((2, 1), mean), 1e-6)


def variables_of_every_type(hvd: Any, rank: int, size: int) -> None:
    types = [tf.float32, tf.bfloat16, tf.float16, tf.float64, tf.int32, tf.uint8, tf.uint32, tf.bool, tf.complex64]
    root = size - 1

    def made() -> list[Any]:
        numbers = [tf.Variable(tf.cast(tf.constant([[rank, 1]]), dtype)) for dtype in types]
        return [*numbers, tf.Variable(float(rank)), tf.Variable(tf.complex(1.0, float(rank)))]

    eager, inside, in_place = made(), made(), made()
    hvd.broadcast_variables(eager, root_rank=root)
    tf.function(lambda: hvd.broadcast_variables(inside, root_rank=root))()
    values = hvd.broadcast_(in_place, root)
    wanted = [np.array([[root, 1]]).astype(dtype.as_numpy_dtype) for dtype in types]
    wanted += [np.float32(root), np.complex64(1 + root * 1j)]
    for found in (eager, inside, in_place, values):
        for variable, expected in zip(found, wanted, strict=True):
            assert variable.numpy().dtype == expected.dtype
            np.testing.assert_array_equal(variable.numpy(), expected)
    hvd.broadcast_variables([], root_rank=0)
    check(hvd.broadcast_(tf.Variable([float(rank)]), root), np.array([root], "float32"))

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, kernel_initializer="ones")])
    model.layers[0].kernel.assign(tf.fill([3, 2], float(rank)))
    hvd.broadcast_variables(model.variables, root_rank=root)
    check(model.layers[0].kernel.value, np.full((3, 2), root, "float32"))
    with raises(hvd.UsageError, "tf.Variable is needed"):
        hvd.broadcast_variables([tf.ones([2])], root_rank=0)


def objects(hvd: Any, rank: int, size: int) -> None:
    assert hvd.broadcast_object({"epoch": rank}, root_rank=size - 1) == {"epoch": size - 1}
    assert hvd.broadcast_object_fn(root_rank=0)([rank]) == [0]
    assert hvd.allgather_object(("rank", rank)) == [("rank", r) for r in range(size)]


def normalisation_over_uneven_batches(hvd: Any, rank: int, size: int) -> None:
    """Outputs, statistics and gradients are those of one process on all batches; the first rank's is empty."""
    random = np.random.default_rng(3)
    batches = [random.normal(5.0, 2.0, (2 * r, 3, 4)).astype("float32") for r in range(size)]
    if size == 1:
        batches = [random.normal(5.0, 2.0, (4, 3, 4)).astype("float32")]
    whole, weights = np.concatenate(batches), random.normal(size=(3, 4)).astype("float32")

    def run(make: Callable[[], Any], inputs: Any, wrapped: bool) -> tuple[Any, Any, Any]:
        layer = make()
        layer.build((None, 3, 4))

        def step(inputs: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = layer(inputs, training=True)
                loss = tf.reduce_sum(tf.square(outputs) * outputs * weights)
            return outputs, tape.gradient(loss, [inputs, layer.gamma.value])

        outputs, gradients = (tf.function(step) if wrapped else step)(tf.constant(inputs))
        return outputs.numpy(), layer, [g.numpy() for g in gradients]

    start = sum(len(batch) for batch in batches[:rank])
    mine = slice(start, start + len(batches[rank]))
    for options in ({}, {"axis": 1, "scale": True}):
        expected, plain, (by_input, by_gamma) = run(
            lambda o=options: keras.layers.BatchNormalization(**o), whole, False
        )
        for wrapped in (False, True):
            outputs, layer, gradients = run(lambda o=options: hvd.SyncBatchNormalization(**o), batches[rank], wrapped)
            np.testing.assert_allclose(outputs, expected[mine], 1e-3, 1e-4)
            np.testing.assert_allclose(gradients[0], by_input[mine], 1e-2, 2e-3)
            for name in ("moving_mean", "moving_variance"):
                np.testing.assert_allclose(getattr(layer, name).numpy(), getattr(plain, name).numpy(), 1e-4, 1e-4)
            total = hvd.allreduce(tf.constant(gradients[1]), op=hvd.Sum)
            np.testing.assert_allclose(total.numpy(), by_gamma, 1e-2, 1e-2)


def normalisation_with_masks_and_evaluation(hvd: Any, rank: int, size: int) -> None:
    batches = np.random.default_rng(4).normal(size=(size, 3, 5, 2)).astype("float32")
    masks = np.random.default_rng(5).integers(0, 2, (size, 3, 5)).astype(bool)
    masks[:, 0] = True
    layer, plain = hvd.SyncBatchNormalization(), keras.layers.BatchNormalization()
    found = layer(tf.constant(batches[rank]), training=True, mask=tf.constant(masks[rank]))
    whole = plain(batches.reshape(-1, 5, 2), training=True, mask=tf.constant(masks.reshape(-1, 5)))
    np.testing.assert_allclose(found.numpy(), whole.numpy()[rank * 3 : rank * 3 + 3], 1e-3, 1e-4)
    np.testing.assert_allclose(layer(batches[rank]).numpy(), plain(batches[rank]).numpy(), 1e-3, 1e-4)
    hvd.barrier()
    assert layer.get_config() == {**plain.get_config(), "name": layer.name}
    with raises(hvd.UsageError, "fused=True"):
        hvd.SyncBatchNormalization(fused=True)


def compressors_with_a_memory(hvd: Any, rank: int, size: int) -> None:
    """They get arrays on the host, from a graph too."""
    for wrapped in (False, True):
        compression = coarse.Coarse()
        weight = tf.Variable(tf.zeros((2, 3)))

        def step(values: Any, compression: Any = compression, weight: Any = weight) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weight * values)
            return hvd.DistributedGradientTape(tape, compression=compression).gradient(loss, weight)

        run = tf.function(step) if wrapped else step
        for number, expected in enumerate(coarse.averaged(size, 3)):
            np.testing.assert_allclose(run(tf.constant(coarse.gradient(rank, number))).numpy(), expected, rtol=1e-6)
        assert compression.raw_bytes == 3 * 24
