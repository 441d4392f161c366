"""Trains a small network on MNIST with Keras: ``plain.py`` in one process, ``scaled.py`` on many.

    KERAS_BACKEND=tensorflow python examples/keras/plain.py
    KERAS_BACKEND=tensorflow hora run -np 2 python examples/keras/scaled.py

Five lines differ, and the backend may be torch or jax as well. Nothing is downloaded: with ``--data`` it trains on
MNIST as Keras has it in a file, without it on ten patterns of MNIST's size, in noise.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np

import hora.keras as hvd

parser = argparse.ArgumentParser()
parser.add_argument("--data", help="Keras's mnist.npz; without it, images are made here")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--images", type=int, default=60_000, help="images to train on, at most")
parser.add_argument("--lr", type=float, default=0.01)
args = parser.parse_args()
BATCH = 64  # images that one process takes in a step

hvd.init()
if args.data:
    mnist = np.load(args.data)
    images, labels = mnist["x_train"][: args.images, :, :, None] / 255.0, mnist["y_train"][: args.images]
    test_images, test_labels = mnist["x_test"][:, :, :, None] / 255.0, mnist["y_test"]
else:
    print("no --data file: training on patterns that are made here instead of MNIST", flush=True)
    random = np.random.default_rng(1)
    labels = random.integers(10, size=args.images + 2_000)
    patterns = random.random((10, 7, 7, 1)).repeat(4, 1).repeat(4, 2)
    images = patterns[labels] + random.normal(scale=0.3, size=(len(labels), 28, 28, 1))
    test_images, test_labels, images, labels = images[:2_000], labels[:2_000], images[2_000:], labels[2_000:]
images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]

model = keras.Sequential([
    keras.Input((28, 28, 1)),
    keras.layers.Conv2D(10, 5, activation="relu"), keras.layers.MaxPooling2D(),
    keras.layers.Conv2D(20, 5, activation="relu"), keras.layers.MaxPooling2D(),
    keras.layers.Flatten(), keras.layers.Dense(50, activation="relu"), keras.layers.Dropout(0.5),
    keras.layers.Dense(10),
])  # fmt: skip
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(args.lr * hvd.size(), momentum=0.5))
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]

model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(images, labels, batch_size=BATCH, epochs=args.epochs, callbacks=callbacks, verbose=2)
loss, accuracy = model.evaluate(test_images, test_labels, verbose=0)
print(f"Test loss: {loss:.4f}\nTest accuracy: {accuracy:.4%}", flush=True)
