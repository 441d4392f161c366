"""The stand-in device itself: what is done in a wrong order is an error, what is right is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.device.need import needs_standin

ROOT = Path(__file__).parents[2]
PROGRAM = """
import torch
from tests.device import count, faults, load

load()
here, side = torch.accelerator.current_stream(), torch.Stream(device="standin")

def wrong(what, part):
    try:
        what()
    except RuntimeError as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"nothing was said of {part}")

# Read, and written, before the stream that writes it was waited for.
with side:
    made = torch.ones(5, device="standin")
wrong(lambda: made.sum().item(), "reading on stream 0 of device 0")
wrong(lambda: made.add_(1), "what stream 1 of device 0 writes")
here.wait_event(side.record_event())
assert made.add_(1).tolist() == [2.0] * 5

# Written while another stream reads it; parts that do not overlap may be.
side.wait_event(here.record_event())
with side:
    copy = made[:3] * 2
made[3:].zero_()
wrong(lambda: made[:3].zero_(), "writing on stream 0 of device 0")
side.synchronize()  # the host has waited: all that is put anywhere now comes later
assert (made[:3].zero_().sum() + copy.sum()).item() == 12.0

# Copies to pinned memory arrive when the host has waited, and what is copied from may not be changed before.
pinned = torch.zeros(5, pin_memory=True)
assert pinned.is_pinned() and not torch.zeros(5).is_pinned()
pinned.copy_(torch.full((5,), 7.0, device="standin"), non_blocking=True)
assert pinned.isnan().all()
here.synchronize()
assert pinned.tolist() == [7.0] * 5
there = pinned.to("standin", non_blocking=True)
pinned.zero_()
wrong(here.synchronize, "pinned memory was changed")
assert there.tolist() == [7.0] * 5 and count("from pinned") == 1

# Memory that is freed while another stream uses it.
assert len(faults()) == 4
for keep in (True, False):
    lent = torch.ones(5, device="standin")
    side.wait_event(here.record_event())
    with side:
        used = lent + 1
        if keep:
            lent.record_stream(side)
    del lent
    side.synchronize()
    assert len(faults()) == (0 if keep else 1)

# Gradients are computed by a thread of the device, which has streams of its own.
with side:
    weight = torch.ones(5, device="standin", requires_grad=True)
    (weight * 3).sum().backward()
    assert weight.grad.tolist() == [3.0] * 5

# Each device has its own random numbers, and those of a generator are the CPU's of the same seed.
torch.manual_seed(4)
first, second = (torch.rand(3, device=f"standin:{i}") for i in (0, 1))
assert torch.equal(first.cpu(), second.cpu()) and torch.equal(first.cpu(), torch.rand(3))
assert not faults()
"""


@needs_standin
def test_the_order_is_checked() -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
