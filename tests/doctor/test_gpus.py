"""`hora doctor --gpus`: what workers tell of each path, and the paths themselves on the stand-in device."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.device.need import needs_standin
from tests.doctor.fakes import FakeMachine
from tests.doctor.test_hardware import with_gpus
from tests.launch.jobs import run_hora

from hora.doctor import gpus
from hora.doctor.machine import CommandResult

ROOT = Path(__file__).parents[2]


def path(name: str, *wrong: str) -> str:
    told = json.dumps({"name": name, "tried": f"tried {name}", "wrong": wrong})
    return f"[0]<stdout>:hora-gpus:{told}\n"


@pytest.mark.parametrize(
    ("ran", "code", "lines"),
    [
        (CommandResult(0, path("sums") + path("rows"), "", 1.0), 0,
         ["ok     sums           tried sums", "ok     rows           tried rows",
          "All 2 paths work, with the right values."]),
        (CommandResult(0, path("sums", "rank 1: element 0 is 2.0, not 3.0"), "", 1.0), 3,
         ["WRONG  sums           rank 1: element 0 is 2.0, not 3.0",
          "1 of 1 paths do not work: sums. See what NCCL does: NCCL_DEBUG=INFO."]),
        (CommandResult(None, path("sums"), "", 300.0), 3,
         ["ok     sums           tried sums", "The job did not end within 300 s, after 'sums'"]),
        (CommandResult(1, "", "NCCL error: no", 1.0), 3, ["The job failed, before the first path: NCCL error: no."]),
    ],
)  # fmt: skip
def test_what_workers_tell_of_each_path(ran: CommandResult, code: int, lines: list[str]) -> None:
    said: list[str] = []
    assert gpus.judge(ran, said.append) == code
    assert len(said) == len(lines) and all(found.startswith(line) for found, line in zip(said, lines, strict=True)), (
        said
    )


def test_one_worker_for_each_gpu_confirms(tmp_path: Path) -> None:
    machine = with_gpus(tmp_path)
    machine.answer("gpu_paths", 0, path("sums"))
    said: list[str] = []
    assert gpus.confirm(machine, None, said.append) == 0
    assert said[0] == "torch sees 2 (CUDA 12.4, NCCL 2.21.5); 2 workers"
    assert any("-np 2" in command and command.endswith("hora.doctor.gpu_paths cuda") for command in machine.commands)


def test_without_a_gpu_there_is_one_sentence(tmp_path: Path) -> None:
    said: list[str] = []
    assert gpus.confirm(FakeMachine(tmp_path), None, said.append) == 3
    [sentence] = said
    assert sentence.startswith("hora: no GPU can be tried here: no NVIDIA GPU")
    assert gpus.confirm(with_gpus(tmp_path, count=0), None, said.append) == 3
    assert "torch sees none" in said[-1]


@needs_standin
def test_every_path_is_right_on_the_stand_in(tmp_path: Path) -> None:
    """The same program that `hora doctor --gpus` runs."""
    program = (
        "from tests.device import nccl, faults; nccl.install(); from hora.doctor import gpu_paths;"
        "gpu_paths.main('standin'); assert not faults()"
    )
    variables = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "STANDIN_DEVICES": "2", "OMP_NUM_THREADS": "1"}
    done = run_hora("run", "-np", "2", sys.executable, "-c", program, timeout_s=180, **variables)
    said: list[str] = []
    assert gpus.judge(CommandResult(done.returncode, done.stdout, done.stderr, 1.0), said.append) == 0, said
    assert said[-1] == "All 13 paths work, with the right values."


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="hardware: there is a GPU")
def test_the_command_without_a_gpu() -> None:
    command = [sys.executable, "-m", "hora.cli.main", "doctor", "--gpus"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ})
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (3, 1, ""), done
