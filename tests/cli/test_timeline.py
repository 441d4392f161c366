"""`hora timeline` on real jobs with planted bottlenecks, and on what is no timeline."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.launch.jobs import run_hora
from tests.light import LIGHT_TORCH
from tests.timeline import planted, traces


@pytest.mark.parametrize(
    ("plant", "kind", "operations", "bytes_each"),
    [("slow-rank", "straggler", 10, 4000), ("tiny", "tiny operations", 150, 400), ("large", "bandwidth", 1, 48 << 20)],
)
def test_a_planted_bottleneck_is_named(tmp_path: Path, plant: str, kind: str, operations: int, bytes_each: int) -> None:
    """What was planted is in the numbers. Which of the findings comes first is up to the machine too: a rank that
    another process takes the core from is late indeed. The verdict on given times is tested in tests/timeline."""
    file, merged, numbers = tmp_path / "t.json", tmp_path / "merged.json", tmp_path / "numbers.json"
    worker = [sys.executable, str(Path(planted.__file__)), plant]
    done = run_hora("run", "-np", "2", "--timeline-filename", file, *worker, timeout_s=100)
    assert done.returncode == 0, done.stderr
    done = run_hora("timeline", file, tmp_path / "t.rank1.json", "--merge", merged, "--json", numbers)
    assert done.returncode == 0, done.stderr
    found = json.loads(numbers.read_text())
    assert found["findings"][0]["kind"] in {kind, "straggler", "imbalance"}, done.stdout
    fusion = found["numbers"]["fusion"]
    assert fusion["operations"] == (planted.STEPS - 2) * operations
    assert fusion["bytes"] == (planted.STEPS - 2) * operations * bytes_each  # the first and last step are left out
    assert f"Bottleneck: {found['findings'][0]['title']}." in done.stdout
    assert [time["all_steps"] for time in found["numbers"]["ranks"]] == [planted.STEPS] * 2
    rows = json.loads(merged.read_text())["traceEvents"]
    assert traces.check_nesting(rows) >= 2 * 2 * found["numbers"]["fusion"]["operations"]
    assert {row["pid"] for row in rows} == {0, 1}


TRAINING = """
import torch, hora.torch as hvd
hvd.init()
hvd.barrier()
model = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(3)])
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-3), model.named_parameters())
for step in range(12):
    optimizer.zero_grad()
    model(torch.ones(4, 200)).sum().backward()
    optimizer.step()
    if step % 4 == 3:
        hvd.allreduce(torch.ones(1), name="loss")
for name in ("one", "two"):
    hvd.allgather_object(name, name="after")
hvd.shutdown()
"""


def test_a_healthy_run_has_as_many_steps_as_were_trained_and_nothing_that_never_ended(tmp_path: Path) -> None:
    """Its first step has other names than those after it; before and after the steps there are other operations."""
    script, file, numbers = tmp_path / "train.py", tmp_path / "t.json", tmp_path / "numbers.json"
    script.write_text(LIGHT_TORCH + TRAINING)
    done = run_hora("run", "-np", "2", "--timeline-filename", file, sys.executable, script, timeout_s=100)
    assert done.returncode == 0, done.stderr
    done = run_hora("timeline", file, tmp_path / "t.rank1.json", "--json", numbers)
    assert done.returncode == 0 and "in 12 steps" in " ".join(done.stdout.split()), done.stdout
    assert "Never ended" not in done.stdout
    found = json.loads(numbers.read_text())["numbers"]
    assert [time["all_steps"] for time in found["ranks"]] == [12, 12]
    assert {tensor["count"] for tensor in found["tensors"]} <= {2, 10}  # of the ten in the middle; loss came twice
    assert found["fusion"]["per_step"] == pytest.approx(found["fusion"]["batches"] / 10)


def test_bad_files_exit_with_2_and_the_rest_is_reported(tmp_path: Path) -> None:
    ops = [traces.op("g", [t, t + 40_000], t + 40_000, t + 45_000) for t in range(0, 1_000_000, 100_000)]
    good = traces.hora(tmp_path / "t.json", ops)
    done = run_hora("timeline", good, tmp_path / "t.rank1.json")
    assert done.returncode == 2
    assert "rank 1 is late" in done.stdout and "t.rank1.json" in done.stderr and "Traceback" not in done.stderr
    (tmp_path / "empty.json").write_text("")
    done = run_hora("timeline", tmp_path / "empty.json")
    assert done.returncode == 2 and "is empty" in done.stderr and done.stdout == ""
    done = run_hora("timeline")
    assert done.returncode == 2 and "FILE" in done.stderr
