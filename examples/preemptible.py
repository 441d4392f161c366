"""A job that can be interrupted at any time and goes on where it was: for queues that take nodes back.

    hora run -np 2 python examples/preemptible.py --steps 2000
    hora submit --scheduler slurm --nodes 2 --tasks-per-node 2 --time 1h --requeue python examples/preemptible.py

After SIGUSR1 or SIGTERM it finishes the step, saves, and exits with 75, which a job script written by `hora submit
--requeue` answers by putting the job back into the queue. The three lines that do it are marked ``# preemption``.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
from torch import nn

import hora.torch as hvd

parser = argparse.ArgumentParser(description="fit a function, step by step, surviving preemption")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--every", type=int, default=100, help="steps between two checkpoints")
parser.add_argument("--checkpoint", type=Path, default=Path("preemptible.pt"))
args = parser.parse_args()

hvd.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = hvd.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=0.003), named_parameters=model.named_parameters()
)


def save(step: int) -> None:
    """Rank 0 writes beside the old checkpoint and then replaces it: there is always a whole one."""
    if hvd.rank() == 0:
        new = args.checkpoint.with_suffix(".new")
        with new.open("wb") as file:
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(args.checkpoint)
    hvd.barrier()  # nobody leaves before it is written


first = 0
if hvd.rank() == 0 and args.checkpoint.exists():
    saved = torch.load(args.checkpoint, weights_only=True)
    first = saved["step"]
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
first = hvd.broadcast_object(first, root_rank=0)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
if hvd.rank() == 0:
    print(f"starting at step {first}", flush=True)

for step in range(first, args.steps):
    # A batch is made from its step and rank, so that it is the same whether the job was interrupted or not.
    generator = torch.Generator().manual_seed(step * hvd.size() + hvd.rank())
    batch = torch.randn(64, 8, generator=generator)
    loss = nn.functional.mse_loss(model(batch), batch.square().mean(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

    if hvd.preempted():  # preemption: the same answer on all ranks
        save(step + 1)  # preemption
        print(f"rank {hvd.rank()} leaves after step {step + 1}", flush=True)
        sys.exit(hvd.PREEMPTED_EXIT_CODE)  # preemption: "start me again"
    if (step + 1) % args.every == 0:
        save(step + 1)

total = sum(parameter.double().sum().item() for parameter in model.parameters())
if hvd.rank() == 0:
    print(f"finished {args.steps} steps, loss {loss.item():.6f}, sum of parameters {total!r}", flush=True)
hvd.shutdown()
