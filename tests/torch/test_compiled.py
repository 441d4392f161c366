"""DistributedOptimizer with a model that torch.compile has turned into machine code."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from tests.launch.jobs import run_hora

PROGRAM = """
import copy
import torch
import hora.torch as hvd

hvd.init()
torch.manual_seed(1)
plain = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 2))
model = copy.deepcopy(plain)
compiled = torch.compile(model, backend="inductor")
reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for step in range(5):
    data = [torch.randn(4, 20, generator=torch.Generator().manual_seed(10 * step + r)) for r in range(hvd.size())]
    optimizer.zero_grad()
    compiled(data[hvd.rank()]).square().mean().backward()
    optimizer.step()
    reference.zero_grad()
    plain(torch.cat(data)).square().mean().backward()
    reference.step()
for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
    torch.testing.assert_close(ours, theirs)
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's inductor needs a C++ compiler")
def test_a_compiled_model_trains_as_one_that_is_not(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    done = run_hora(
        "run", "-np", "2", sys.executable, script, timeout_s=240, TORCHINDUCTOR_CACHE_DIR=str(tmp_path), CXX="g++",
        OMP_NUM_THREADS="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
