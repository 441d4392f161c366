"""Trains a small network with TensorFlow: ``plain.py`` in one process, ``scaled.py`` on many.

    python examples/tensorflow/plain.py
    hora run -np 2 python examples/tensorflow/scaled.py

Six lines differ. The data is made here: ten patterns of 28x28 pixels, in noise.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hora.tensorflow as hvd

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--images", type=int, default=20_000, help="images to train on")
parser.add_argument("--lr", type=float, default=0.01)
args = parser.parse_args()
BATCH = 64  # images that one process takes in a step

hvd.init()
tf.config.threading.set_intra_op_parallelism_threads(1)  # one core a process, so that one and many compare fairly
random = np.random.default_rng(1)
labels = random.integers(10, size=args.images + 2_000)
images = random.random((10, 28, 28, 1))[labels] + random.normal(scale=0.3, size=(len(labels), 28, 28, 1))
held_out = images[:2_000].astype("float32"), labels[:2_000]
train = tf.data.Dataset.from_tensor_slices((images[2_000:].astype("float32"), labels[2_000:]))
train = train.shard(hvd.size(), hvd.rank()).shuffle(args.images, seed=1).batch(BATCH)

model = keras.Sequential([
    keras.Input((28, 28, 1)),
    keras.layers.Conv2D(10, 5, activation="relu"), keras.layers.MaxPooling2D(),
    keras.layers.Conv2D(20, 5, activation="relu"), keras.layers.MaxPooling2D(),
    keras.layers.Flatten(), keras.layers.Dense(50, activation="relu"), keras.layers.Dense(10),
])  # fmt: skip
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.SGD(args.lr * hvd.size(), momentum=0.5)
hvd.broadcast_variables(model.variables, root_rank=0)


@tf.function
def step(images: Any, labels: Any) -> None:
    with tf.GradientTape() as tape:
        value = loss(labels, model(images, training=True))
    gradients = hvd.DistributedGradientTape(tape).gradient(value, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


for epoch in range(args.epochs):
    started = time.perf_counter()
    for batch in train:
        step(*batch)
    speed = len(train) * BATCH / (time.perf_counter() - started)
    accuracy = np.mean(np.argmax(model(held_out[0]), 1) == held_out[1])
    print(f"epoch {epoch + 1}  accuracy {accuracy:.2%}  {speed:,.0f} images/s", flush=True)
