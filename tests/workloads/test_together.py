"""Several real workers: what they find out together, and that emulated ones compute what they do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.launch.jobs import SOURCE, clean_environment, hora
from tests.workloads.tiny import Options, train
from tests.workloads.together import CHECKS, DDP_CHECKS

ROOT = SOURCE.parent
TIMEOUT_S = 100.0


def run(workers: int, module: str, *arguments: str | Path, **environment: str) -> None:
    command = hora("run", "-np", str(workers), sys.executable, "-m", module, *arguments)
    variables = clean_environment(OMP_NUM_THREADS="1", HORA_START_TIMEOUT="90", **environment)
    variables["PYTHONPATH"] = f"{SOURCE}:{ROOT}"
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    """The folder that two workers have left."""
    folder = tmp_path_factory.mktemp("together")
    run(2, "tests.workloads.together", digits, folder, HORA_NONFINITE="stop")
    return folder


@pytest.fixture(scope="module")
def by_ddp(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    folder = tmp_path_factory.mktemp("ddp")
    run(2, "tests.workloads.together", digits, folder, "ddp")
    return folder


@pytest.mark.parametrize("name", CHECKS)
def test_two_workers_find(two: Path, name: str) -> None:
    assert_right(two, name)


@pytest.mark.parametrize("name", DDP_CHECKS)
def test_two_workers_by_ddp_find(by_ddp: Path, name: str) -> None:
    assert_right(by_ddp, name)


def assert_right(folder: Path, name: str) -> None:
    for rank in (0, 1):
        went_wrong = json.loads((folder / f"rank-{rank}.json").read_text())[name]
        assert not went_wrong, f"rank {rank}: {went_wrong}"


def test_emulated_workers_compute_what_real_ones_do(two: Path, tmp_path: Path) -> None:
    """Four real workers; four emulated by two; four by one: the same up to rounding, with BN and dropout."""
    given = {"epochs": 3, "out": str(tmp_path / "real")}
    run(4, "tests.workloads.tiny", json.dumps(given), tmp_path / "real.pt")
    real = torch.load(tmp_path / "real.pt", weights_only=True)
    result, by_one = train(Options.of({**given, "out": str(tmp_path / "one"), "emulate_workers": 4}))
    by_two = torch.load(two / "four.pt", weights_only=True)
    for found in (by_one, by_two):
        for name, expected in real["state"].items():
            torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-6)
    assert result["val_loss"] == pytest.approx(real["result"]["val_loss"], rel=1e-5)
    steps = [[json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
             for name in ("real", "one")]  # fmt: skip
    for theirs, ours in zip(*steps, strict=True):
        assert theirs.get("lr") == ours.get("lr") and theirs["samples"] == ours["samples"]
    epochs = [[line["loss"] for line in each if "val_loss" in line] for each in steps]
    assert epochs[0] == pytest.approx(epochs[1], rel=1e-5)
    # and it matters: one worker with the batch of four is something else
    _, other = train(Options.of({**given, "out": str(tmp_path / "other"), "batch": 32}))
    assert (other["fc1.weight"] - real["state"]["fc1.weight"]).abs().max() > 1e-3
