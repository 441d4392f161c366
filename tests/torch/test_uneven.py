"""Ranks with different numbers of batches: the error says so, with the numbers and the way out."""

from __future__ import annotations

from pathlib import Path

from tests.launch.jobs import run_hora

SCRIPT = """
import torch
import hora.torch as hvd
hvd.init()
model = torch.nn.Linear(4, 2)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for batch in range(3 + hvd.rank()):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
"""


def test_it_names_the_steps_and_join(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = run_hora("run", "-np", "2", script)
    assert done.returncode == 1
    assert "rank 0 has shut Hora down without submitting it" in done.stderr and "hvd.join()" in done.stderr
    assert "All ranks have done 3 steps together; this rank was in step 4." in done.stderr
    assert "src/hora" not in done.stderr and done.stderr.count("Traceback") == 1
