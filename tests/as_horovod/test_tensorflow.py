"""TensorFlow scripts in the shape of Horovod's published examples run under ``hora run --as-horovod``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from tests.launch.jobs import run_hora

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")

# First as the examples for TensorFlow 2 say it, then as those for sessions do.
SCRIPT = """
import numpy as np
import tensorflow as tf
import horovod
import horovod.tensorflow as hvd
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import broadcast_object
from horovod.tensorflow.mpi_ops import Sum, handle_average_backwards_compatibility, rank_op
from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
from horovod.tensorflow.util import _executing_eagerly

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

rng = np.random.default_rng(hvd.rank())
images, labels = rng.random((64, 8, 8, 1), "float32"), rng.integers(0, 4, 64)
dataset = tf.data.Dataset.from_tensor_slices((images, tf.cast(labels, tf.int64))).repeat().shuffle(64).batch(8)
model = tf.keras.Sequential([
    tf.keras.layers.Conv2D(4, [3, 3], activation="relu"), SyncBatchNormalization(), tf.keras.layers.Flatten(),
    tf.keras.layers.Dropout(0.25), tf.keras.layers.Dense(4, activation="softmax"),
])
loss = tf.losses.SparseCategoricalCrossentropy()
opt = tf.optimizers.Adam(0.001 * hvd.size())
checkpoint = tf.train.Checkpoint(model=model, optimizer=opt)


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = model(images, training=True)
        loss_value = loss(labels, probs)
    tape = hvd.DistributedGradientTape(tape, compression=Compression.fp16)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables(), root_rank=0)
    return loss_value


for batch, (images, labels) in enumerate(dataset.take(8 // hvd.size())):
    loss_value = training_step(images, labels, batch == 0)
if hvd.rank() == 0:
    checkpoint.save("./checkpoints")
sums = hvd.allgather(tf.stack([tf.reduce_sum(v) for v in model.trainable_variables])[None]).numpy()
assert (sums[0] == sums[1]).all(), sums
assert broadcast_object({"rank": hvd.rank()}, root_rank=1) == {"rank": 1}
assert hvd.allreduce(tf.ones([2]), average=False).numpy().tolist() == [2.0, 2.0]
assert handle_average_backwards_compatibility(None, False) == Sum and int(rank_op()) == hvd.rank()

assert _executing_eagerly() and hvd._executing_eagerly() and not hvd.sycl_built()
assert not hasattr(tf, "ConfigProto") and not hasattr(tf, "Session")  # which is how scripts tell TensorFlow 1 from 2
with tf.Graph().as_default():
    assert not _executing_eagerly()
    weight = tf.compat.v1.get_variable("weight", initializer=float(hvd.rank() + 1))
    global_step = tf.compat.v1.train.get_or_create_global_step()
    opt = hvd.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer(0.001 * hvd.size()), op=hvd.Average)
    train_op = opt.minimize(weight * weight * (hvd.rank() + 1), global_step=global_step)
    hooks = [
        hvd.BroadcastGlobalVariablesHook(0),
        tf.compat.v1.train.StopAtStepHook(last_step=8 // hvd.size()),
        tf.compat.v1.train.LoggingTensorHook(tensors={"step": global_step}, every_n_iter=10),
    ]
    config = tf.compat.v1.ConfigProto()
    config.gpu_options.allow_growth = True
    folder = "./session" if hvd.rank() == 0 else None
    with tf.compat.v1.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks, config=config) as session:
        while not session.should_stop():
            _, value = session.run([train_op, weight])
assert len(set(hvd.allgather_object(float(value)))) == 1
print("fine", hvd.rank(), hvd.size())
"""


@pytest.mark.timeout(240)
def test_published_examples_shapes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = ["run", "-np", "2", "--as-horovod", sys.executable, script]
    done = run_hora(*command, timeout_s=200, cwd=tmp_path, TF_CPP_MIN_LOG_LEVEL="3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fine 0 2" in done.stdout and "fine 1 2" in done.stdout
    assert (tmp_path / "checkpoints-1.index").exists() and (tmp_path / "session" / "checkpoint").exists()
