"""Where a worker computes: on the stand-in device the same is learned as on the CPU; a device that is not there is
refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from tests.device.need import needs_standin
from tests.launch.jobs import run_hora
from tests.workloads.conftest import write_digits

import hora.torch as hvd
from hora.errors import EnvironmentUnfit
from hora.workloads import devices
from hora.workloads.mnist.options import Options

ROOT = Path(__file__).parents[2]
LEARNED = ("val_loss", "val_accuracy")


@needs_standin
def test_training_on_a_device_learns_what_the_cpu_learns(tmp_path: Path) -> None:
    """Two workers and four that they play, without dropout: metrics, and parameters in a checkpoint."""
    found, said = [], []
    for device in ("cpu", "auto"):
        options = Options(
            data=str(write_digits(tmp_path / "digits", 256, 64)), out=str(tmp_path / device), device=device,
            network="horovod", batch=16, emulate_workers=4, json=str(tmp_path / f"{device}.json"), seed=3, epochs=1,
        )  # fmt: skip
        program = (sys.executable, "-m", "tests.workloads.on_standin", "mnist", msgspec.json.encode(options).decode())
        path = f"{ROOT / 'src'}:{ROOT}"
        done = run_hora("run", "-np", "2", *program, timeout_s=180, PYTHONPATH=path, STANDIN_DEVICES="2")
        assert done.returncode == 0, done.stdout + done.stderr
        said.append({line.split(":", 1)[1] for line in done.stdout.splitlines() if line.endswith(("True", "False"))})
        found.append(json.loads((tmp_path / f"{device}.json").read_text()))
    assert said == [{"0 False False"}, {"0 True False", "1 True False"}]  # each has taken its own
    assert found[0].keys() == found[1].keys()
    for name in LEARNED:
        assert found[1][name] == pytest.approx(found[0][name], rel=1e-4), name
    states = [
        torch.load(next((tmp_path / device).glob("**/*.pt")), map_location="cpu", weights_only=False)
        for device in ("cpu", "auto")
    ]
    assert states[0].keys() == states[1].keys()
    for name, values in states[0]["model"].items():
        torch.testing.assert_close(states[1]["model"][name], values, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="hardware: there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfit, match="nothing to compute on"):
        devices.check("cuda")
    folder = write_digits(tmp_path / "digits", 64, 32)
    for how in ((), ("-np", "2")):
        done = run_hora("train", "mnist", *how, "--device", "cuda", "--data", folder, "--out", tmp_path / "out")
        assert done.returncode == 3, done.stdout + done.stderr
        assert done.stderr.count("--device cuda: torch") == 1 and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize(("local_rank", "visible", "place"), [(1, 2, 1), (3, 1, 0), (5, 4, 1)])
def test_gpus_are_shared_where_a_worker_sees_fewer_than_there_are_workers(
    monkeypatch: pytest.MonkeyPatch, local_rank: int, visible: int, place: int
) -> None:
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(hvd, "local_rank", lambda: local_rank)
    assert devices.of_this_worker() == torch.device("cuda", place)
    assert taken == [torch.device("cuda", place)]
