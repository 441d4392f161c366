"""GPUs, as nvidia-smi and torch would tell of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.lab.doctor.fakes import FakeMachine

from hora.lab.doctor import gpus

CARDS = "NVIDIA A100-SXM4-40GB, 550.54.15, 40960, 3\nNVIDIA A100-SXM4-40GB, 550.54.15, 40960, {used}\n"


def with_gpus(root: Path, np: int = 2, used: int = 3, **facts: object) -> FakeMachine:
    machine = FakeMachine(root, np)
    machine.programs.add("nvidia-smi")
    machine.answer("nvidia-smi", 0, CARDS.format(used=used))
    told = {"count": 2, "built": "12.4", "nccl": "2.21.5", "no_peer": [], **facts}
    machine.answer("device_count", 0, f"FACTS{json.dumps(told)}\n")
    return machine


def test_none(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    assert [check.look(machine).status for check in gpus.CHECKS] == ["not here"] * 2  # type: ignore[union-attr]


def test_two(tmp_path: Path) -> None:
    machine = with_gpus(tmp_path)
    assert gpus.driver(machine).told == "2 x NVIDIA A100-SXM4-40GB, driver 550.54.15, 40 GB each"
    assert gpus.cuda(machine).told == "torch sees 2 (CUDA 12.4, NCCL 2.21.5)"
    assert gpus.cuda(machine).figures == {"count": 2}


@pytest.mark.parametrize(
    ("facts", "np", "status", "named"),
    [
        ({"no_peer": [[0, 1], [1, 0]]}, 2, "note", "without peer access: 0-1"),
        ({"count": 0, "built": ""}, 2, "problem", "built without CUDA"),
        ({"count": 0}, 2, "problem", "CUDA_VISIBLE_DEVICES"),
        ({}, 8, "note", "8 workers would share them"),
    ],
)
def test_torch_and_gpus(tmp_path: Path, facts: dict[str, object], np: int, status: str, named: str) -> None:
    found = gpus.cuda(with_gpus(tmp_path, np, **facts))
    assert found.status == status and named in found.told


def test_busy_and_broken(tmp_path: Path) -> None:
    assert "GPU 1 is in use" in gpus.driver(with_gpus(tmp_path, used=30000)).told
    machine = FakeMachine(tmp_path)
    machine.put("/dev/nvidia0", "")
    machine.answer("nvidia-smi", 9, "Failed to initialize NVML: Driver/library version mismatch")
    assert gpus.driver(machine).status == "problem" and "version mismatch" in gpus.driver(machine).told
