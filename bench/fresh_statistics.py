"""How much of a CIFAR-10 run's validation error is batch normalisation's running statistics lagging behind.

    python bench/fresh_statistics.py CHECKPOINT DATA

validates a checkpoint of `hora train cifar10` on the first test images as it is, and with statistics taken anew over
training images at the weights that it has.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

from hora.workloads.cifar10.data import Photographs, load
from hora.workloads.cifar10.model import network

BATCH = 256


def accuracy(model: nn.Module, photographs: Photographs, batches: int) -> float:
    """Over the first so many batches."""
    model.eval()
    right = 0
    for start in range(0, batches * BATCH, BATCH):
        images, labels = photographs.batch(np.arange(start, start + BATCH))
        right += int((model(images).argmax(1) == labels).sum())
    return right / (batches * BATCH)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--batches", type=int, default=12, help=f"of {BATCH} images, to take and to validate with")
    args = parser.parse_args()
    content = torch.load(args.checkpoint, map_location="cpu", weights_only=True)
    options = content["run"]["options"]
    model, data = network(options["network"], options["depth"]), load(args.data)
    model.load_state_dict(content["model"])
    print(f"as it is: {accuracy(model, data.test, args.batches):.1%}")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the mean of all batches from here on
            module.reset_running_stats()
    model.train()
    for start in range(0, args.batches * BATCH, BATCH):
        model(data.train.batch(np.arange(start, start + BATCH))[0])
    print(f"with fresh statistics: {accuracy(model, data.test, args.batches):.1%}")


if __name__ == "__main__":
    main()
