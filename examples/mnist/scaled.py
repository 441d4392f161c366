"""Trains the small network of Horovod's MNIST example: ``plain.py`` in one process, ``scaled.py`` on many.

    python examples/mnist/plain.py
    hora run -np 2 python examples/mnist/scaled.py

Five lines differ. With ``--data`` and a folder it trains on MNIST's own files, without it on digits that it draws.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from digits import load
from torch import nn
from torch.utils import data

import hora.torch as hvd

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path, help="folder with MNIST's four IDX files; without it, digits are drawn")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--images", type=int, default=60_000, help="images to train on, at most")
parser.add_argument("--lr", type=float, default=0.01)
args = parser.parse_args()
BATCH = 64  # images that one process takes in a step

hvd.init()
torch.manual_seed(1)
torch.set_num_threads(1)  # one core a process, so that one and many compare fairly
train, test = load(args.data, args.images)

model = nn.Sequential(
    nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(),
    nn.Conv2d(10, 20, 5), nn.Dropout2d(), nn.MaxPool2d(2), nn.ReLU(),
    nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Dropout(), nn.Linear(50, 10),
)  # fmt: skip
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.5))

for epoch in range(args.epochs):
    model.train()
    started = time.perf_counter()
    loader = data.DataLoader(train, BATCH, sampler=data.DistributedSampler(train, hvd.size(), hvd.rank(), seed=epoch))
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    speed = len(loader) * BATCH / (time.perf_counter() - started)

    model.eval()
    with torch.no_grad():
        accuracy = (model(test.tensors[0]).argmax(1) == test.tensors[1]).double().mean().item()
    print(f"epoch {epoch + 1}  accuracy {accuracy:.4%}  {speed:,.0f} images/s", flush=True)
