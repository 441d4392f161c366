"""Trains a small network with MXNet's Gluon: ``plain.py`` in one process, ``scaled.py`` on many.

    python examples/mxnet/plain.py
    hora run -np 2 python examples/mxnet/scaled.py

Five lines differ. The data is made here: ten patterns of 28x28 pixels, in noise.
"""

from __future__ import annotations

import argparse
import time

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import hora.mxnet as hvd

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--images", type=int, default=20_000, help="images to train on")
parser.add_argument("--lr", type=float, default=0.01)
args = parser.parse_args()
BATCH = 64  # images that one process takes in a step

hvd.init()
random = np.random.default_rng(1)
patterns = random.normal(size=(10, 784)).astype(np.float32)
labels = random.integers(10, size=args.images + 2_000)
images = patterns[labels] + random.normal(scale=8, size=(len(labels), 784)).astype(np.float32)
test_images, test_labels, images, labels = images[:2_000], labels[:2_000], images[2_000:], labels[2_000:]
images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]

model = gluon.nn.HybridSequential()
model.add(gluon.nn.Dense(100, activation="relu"), gluon.nn.Dense(10))
model.initialize(mx.init.Xavier())
parameters = model.collect_params()
hvd.broadcast_parameters(parameters, root_rank=0)
trainer = hvd.DistributedTrainer(parameters, "sgd", {"learning_rate": args.lr * hvd.size(), "momentum": 0.9})
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

for epoch in range(args.epochs):
    started = time.perf_counter()
    for i in range(0, len(images) - BATCH + 1, BATCH):
        with autograd.record():
            loss = loss_of(model(mx.nd.array(images[i : i + BATCH])), mx.nd.array(labels[i : i + BATCH]))
        loss.backward()
        trainer.step(BATCH)
    accuracy = np.mean(model(mx.nd.array(test_images)).asnumpy().argmax(axis=1) == test_labels)
    print(f"epoch {epoch + 1}  accuracy {accuracy:.2%}  {time.perf_counter() - started:.1f} s", flush=True)
