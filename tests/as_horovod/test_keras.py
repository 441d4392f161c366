"""Keras scripts in the shape of Horovod's published examples run under ``hora run --as-horovod``."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.launch.jobs import python, run_hora

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("keras", "tensorflow")),
    reason="Keras or TensorFlow is not installed",
)

# First as the TensorFlow 2 examples say it, then as those for Keras 2 on TensorFlow 1 do.
SCRIPT = """
import os
import numpy as np
import tensorflow as tf
import horovod.tensorflow.keras as hvd
from tensorflow.keras.optimizers import legacy as optimizers

hvd.init()
assert not hvd.sycl_built() and not hasattr(tf, "ConfigProto")
gpus = tf.config.experimental.list_physical_devices("GPU")
rng = np.random.default_rng(hvd.rank())
images, labels = rng.random((64, 8, 8, 1), "float32"), rng.integers(0, 4, 64)
dataset = tf.data.Dataset.from_tensor_slices((images, tf.cast(labels, tf.int64))).repeat().shuffle(64).batch(8)
model = tf.keras.Sequential([
    tf.keras.layers.Conv2D(4, [3, 3], activation="relu"), tf.keras.layers.Flatten(), tf.keras.layers.Dropout(0.25),
    tf.keras.layers.Dense(4, activation="softmax"),
])
scaled_lr = 0.001 * hvd.size()
opt = hvd.DistributedOptimizer(optimizers.Adam(scaled_lr), backward_passes_per_step=1,
                               average_aggregated_gradients=True, compression=hvd.Compression.fp16)
model.compile(loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"],
              experimental_run_tf_function=False)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=1, verbose=1),
]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.h5"))
model.fit(dataset, steps_per_epoch=8 // hvd.size(), callbacks=callbacks, epochs=2,
          verbose=1 if hvd.rank() == 0 else 0)
together = hvd.allgather(np.stack([w.sum() for w in model.get_weights()])[None])
assert (together[0] == together[1]).all(), together

import keras
from keras import backend as K
from keras.preprocessing import image
import horovod.keras as hvd
from horovod.keras.callbacks import LearningRateScheduleCallback
from horovod.keras.elastic import CommitStateCallback, KerasState

config = tf.ConfigProto()
config.gpu_options.allow_growth = True
K.set_session(tf.Session(config=config))
resume_from_epoch = 0
for try_epoch in range(3, 0, -1):
    if hvd.rank() == 0 and os.path.exists("./checkpoint-{epoch}.h5".format(epoch=try_epoch)):
        resume_from_epoch = try_epoch
        break
resume_from_epoch = hvd.broadcast(resume_from_epoch, 0, name="resume_from_epoch")
assert resume_from_epoch == 2
initial_lr = 0.0125 * hvd.size()
if resume_from_epoch > 0 and hvd.rank() == 0:
    model = hvd.load_model("./checkpoint-{epoch}.h5".format(epoch=resume_from_epoch),
                           compression=hvd.Compression.none)
else:
    config = model.get_config()
    model = keras.models.Sequential.from_config(config)
    assert model.built  # from the shapes that the first fit has seen
    opt = hvd.DistributedOptimizer(keras.optimizers.Adam(lr=initial_lr), compression=hvd.Compression.none)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"])
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(warmup_epochs=2.0, initial_lr=initial_lr, verbose=0),
    LearningRateScheduleCallback(start_epoch=2.0, end_epoch=3, multiplier=1.0, initial_lr=initial_lr),
    LearningRateScheduleCallback(start_epoch=3, multiplier=1e-1, initial_lr=initial_lr),
]
arrays = image.ImageDataGenerator(zoom_range=(0.9, 0.9)).flow(images, labels, batch_size=8)
model.fit_generator(arrays, 2, callbacks=callbacks, epochs=4, verbose=0, workers=4,
                    initial_epoch=resume_from_epoch, validation_data=dataset, validation_steps=1)
assert abs(float(model.optimizer.lr) - 0.1 * initial_lr) < 1e-7
score = hvd.allreduce(model.evaluate_generator(dataset, 2, workers=4))
print("Test loss:", score[0])
together = hvd.allgather(np.stack([w.sum() for w in model.get_weights()])[None])
assert (together[0] == together[1]).all(), together
state = hvd.elastic.KerasState(model, batch=0, epoch=0)
before = model.get_weights()
state.commit()
model.set_weights([w * 0 for w in before])
state.restore()
print("restored", all((a == b).all() for a, b in zip(before, model.get_weights())))
"""


@pytest.mark.timeout(240)
def test_published_scripts_run(tmp_path: Path) -> None:
    surroundings = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    done = run_hora("run", "--as-horovod", "-np", "2", *python(SCRIPT), timeout_s=200, cwd=tmp_path, **surroundings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Test loss:") == done.stdout.count("restored True") == 2
    assert done.stdout.count("finished gradual learning rate warmup to 0.002.") == 1
    assert sorted(path.name for path in tmp_path.glob("*.h5")) == ["checkpoint-1.h5", "checkpoint-2.h5"]
