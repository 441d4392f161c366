"""`hora bench --device`: on the stand-in device every contender gives the right sums; without a GPU it is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from tests.device.need import needs_standin
from tests.launch.jobs import run_hora

from hora.bench.plan import BenchPlan

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from tests.device import faults, nccl
nccl.install()
from hora.bench import worker
worker.main(*sys.argv[1:])
assert not faults()
"""


@needs_standin
@pytest.mark.parametrize(
    "plan",
    [
        BenchPlan(bench="allreduce", contenders=("hora", "nccl"), sizes=(4096,), rounds=2, device="standin"),
        BenchPlan(bench="train", contenders=("limit", "in_step", "hora"), models=("mnist",), rounds=1, round_s=0.01,
             device="standin"),
    ],
    ids=lambda plan: plan.bench,
)  # fmt: skip
def test_on_the_stand_in(plan: BenchPlan, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(plan))
    variables = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "STANDIN_DEVICES": "2"}
    program = (sys.executable, "-c", PROGRAM, tmp_path / "plan.json", tmp_path)
    done = run_hora("run", "-np", "2", *program, timeout_s=180, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        [row] = json.loads((tmp_path / f"rank-{rank}.json").read_text())["seconds"].values()
        assert row.keys() == set(plan.contenders) and all(len(taken) == plan.rounds for taken in row.values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="hardware: there is a GPU")
@pytest.mark.parametrize("what", ["allreduce", "train"])
def test_without_a_gpu_it_is_refused(what: str) -> None:
    done = run_hora("bench", what, "--device", "cuda", timeout_s=60)
    assert done.returncode == 3 and done.stderr.startswith("hora: --device cuda: torch"), done.stderr
    assert done.stderr.count("\n") == 1
