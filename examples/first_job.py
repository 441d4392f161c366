"""A first job: learn to read the digits of a seven-segment display, shifted, dim and noisy, on any number of workers.

    python examples/first_job.py                    one process, no launcher
    hora run -np 2 python examples/first_job.py     two workers, the same script

Reads top to bottom: settings, data, model, loop. The lines that make it distributed are marked ``# hora``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import hora.torch as hvd  # hora

parser = argparse.ArgumentParser(description="learn to read seven-segment digits")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch", type=int, default=64, help="images in a batch of one worker")
parser.add_argument("--images", type=int, default=12_288, help="images to train on, shared out between the workers")
parser.add_argument("--lr", type=float, default=0.03, help="learning rate of one worker; scaled by their number")
parser.add_argument("--json", type=Path, help="where rank 0 writes what it measured")
parser.add_argument("--quiet", action="store_true", help="no lines per epoch")
args = parser.parse_args()

hvd.init()  # hora
torch.set_num_threads(1)  # one core a worker, so that one worker and two are compared fairly
torch.manual_seed(1)

# ---- data: every image is made from its seed, so the workers agree on the set without sending anything

SEGMENTS = {  # of each digit: top, top left, top right, middle, bottom left, bottom right, bottom
    0: "1110111", 1: "0010010", 2: "1011101", 3: "1011011", 4: "0111010",
    5: "1101011", 6: "1101111", 7: "1010010", 8: "1111111", 9: "1111011",
}  # fmt: skip
BARS = ((2, 5, 3, 10), (3, 8, 4, 5), (3, 8, 10, 11), (8, 9, 5, 10), (9, 14, 4, 5), (9, 14, 10, 11), (14, 15, 5, 10))


def digits(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``count`` images of 18x16 with their labels: a digit, shifted by up to two pixels, dimmed, under strong noise."""
    generator = torch.Generator().manual_seed(seed)
    glyphs = torch.zeros(10, 18, 16)
    for digit, lit in SEGMENTS.items():
        for on, (top, bottom, left, right) in zip(lit, BARS, strict=True):
            if on == "1":
                glyphs[digit, top:bottom, left:right] = 1
    labels = torch.randint(10, (count,), generator=generator)
    shifts = torch.randint(-2, 3, (count, 2), generator=generator)
    images = torch.stack([glyphs[n].roll(s, (0, 1)) for n, s in zip(labels.tolist(), shifts.tolist(), strict=True)])
    images *= 0.5 + torch.rand(count, 1, 1, generator=generator)
    images += 0.4 * torch.randn(images.shape, generator=generator)
    return images.unsqueeze(1), labels


images, labels = digits(args.images, seed=7)
images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]  # hora: this worker's share
held_out_images, held_out_labels = digits(2_048, seed=8)

# ---- model

model = nn.Sequential(
    nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
)  # fmt: skip
hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # hora: all workers start from the same weights
learning_rate = args.lr * hvd.size()  # hora: together they take a larger batch, so a larger step
optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)

# ---- loop

epochs: list[dict[str, float]] = []
steps = len(images) // args.batch
for epoch in range(args.epochs):
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
    total_loss = torch.zeros(())
    started = time.perf_counter()
    for batch in order[: steps * args.batch].split(args.batch):
        loss = functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        hvd.grouped_allreduce_(gradients, name="gradients", op=hvd.Average)  # hora: every worker gets the mean
        optimizer.step()
        total_loss += loss.detach()
    seconds = time.perf_counter() - started

    mean_loss = hvd.allreduce(total_loss / steps, name="loss", op=hvd.Average).item()  # hora
    with torch.no_grad():
        accuracy = (model(held_out_images).argmax(1) == held_out_labels).double().mean().item()
    epochs.append({"loss": mean_loss, "accuracy": accuracy, "images_per_s": steps * args.batch * hvd.size() / seconds})
    if hvd.rank() == 0 and not args.quiet:
        print(
            f"epoch {epoch + 1}/{args.epochs}  loss {mean_loss:.4f}  accuracy {accuracy:6.2%}  "
            f"{epochs[-1]['images_per_s']:,.0f} images/s",
            flush=True,
        )

if hvd.rank() == 0 and args.json:
    args.json.write_text(json.dumps({"workers": hvd.size(), "batch": args.batch, "epochs": epochs}, indent=1))
hvd.shutdown()  # hora
