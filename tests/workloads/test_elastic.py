"""Elastic runs of real processes, killed and joined: the bits of the undisturbed run, and every sample once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tests.launch.jobs import SOURCE, clean_environment, hora
from tests.workloads.tiny import SAMPLES, Options, train

from hora.cli import train as cli_train
from hora.engine import session
from hora.transport import shm
from hora.workloads import folder
from hora.workloads.elastic import RunState
from hora.workloads.mnist import train as mnist
from hora.workloads.run import checksum

ROOT = SOURCE.parent
TIMEOUT_S = 200.0

pytestmark = pytest.mark.skipif(not shm.available(), reason="the C core is not built")


def run(flags: list[str], given: dict[str, Any], file: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor], str]:
    """What several processes learned, and what the launcher said."""
    command = hora("run", *flags, sys.executable, "-m", "tests.workloads.tiny", json.dumps(given), str(file))
    variables = clean_environment(OMP_NUM_THREADS="1", HORA_START_TIMEOUT="90", PYTHONPATH=f"{SOURCE}:{ROOT}")
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    found = torch.load(file, weights_only=True)
    return found["result"], found["state"], done.stderr


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_any_number_of_processes_computes_the_same_bits(size: int, tmp_path: Path) -> None:
    given = {"logical_workers": 3, "epochs": 1.5, "accumulate": 2, "batch": 4}
    expected, alone = train(Options.of({**given, "out": str(tmp_path / "alone")}))
    result, state, _ = run(["-np", str(size)], {**given, "out": str(tmp_path / "several")}, tmp_path / "a.pt")
    assert result["parameters_sha256"] == expected["parameters_sha256"] == checksum(alone) == checksum(state)
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("alone", "several")]
    losses = [[json.loads(line)["loss"] for line in each] for each in lines]
    assert losses[0] == losses[1] and len(losses[0]) > 10


def test_killed_and_joined_it_ends_with_the_bits_of_the_undisturbed_run(tmp_path: Path) -> None:
    given = {"logical_workers": 4, "epochs": 5, "optimizer": "adam", "lr": 0.01, "audit": True}
    expected, _ = train(Options.of({**given, "out": str(tmp_path / "alone")}))
    given["faults"] = "2:kill:1 7:wait 11:killed:0 12:kill:1 17:wait 20:kill:0"
    out = tmp_path / "elastic"
    result, _, said = run(["--min-np", "1", "--max-np", "3"], {**given, "out": str(out)}, tmp_path / "a.pt")
    assert said.count("was lost") == 4, said
    assert result["parameters_sha256"] == expected["parameters_sha256"]
    assert result["steps"] == expected["steps"] == 30
    note = folder.read(out)
    assert sum(len(each.left) for each in note.generations) >= 4
    assert {worker for each in note.generations for worker in each.came} > {0, 1, 2}
    costs = [each.without_steps_s for each in note.generations[1:]]
    assert all(cost is not None and 0 < cost < TIMEOUT_S for cost in costs), note.generations
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines() if "lr" in line]
    assert steps == list(range(1, 31))


@pytest.mark.long
@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.parametrize("seed", range(5))
def test_random_kills_and_arrivals_change_no_bit(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    given = {"logical_workers": chance.randint(3, 6), "epochs": 8, "batch": 4, "seed": seed, "accumulate": 1 + seed % 2}
    expected, _ = train(Options.of({**given, "out": str(tmp_path / "alone")}))
    steps = sorted(chance.sample(range(1, int(expected["steps"]) - 1), 6))
    faults = [  # a kill, then an arrival, and so on: at least two of three are there at every kill
        f"{step}:{chance.choice(['kill', 'killed'])}:{chance.randint(0, 1)}" if number % 2 == 0 else f"{step}:wait"
        for number, step in enumerate(steps)
    ]
    given["faults"] = " ".join(faults)
    flags = ["--min-np", "1", "--max-np", "3", "--blacklist-cooldown-range", "1", "1"]
    result, _, said = run(flags, {**given, "out": str(tmp_path / "elastic")}, tmp_path / "a.pt")
    assert said.count("was lost") == 3, (faults, said)
    assert result["parameters_sha256"] == expected["parameters_sha256"], faults


def test_commits_copy_nothing_after_a_few_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters change only in a step, so until then they are what was committed."""
    copied: list[bool] = []
    keep = RunState._keep

    def counted(state: RunState) -> None:
        keep(state)
        copied.append(not state._live)

    monkeypatch.setattr(session, "is_elastic", lambda: True)
    monkeypatch.setattr(session, "generation", lambda: 1)  # tests before this one have had some
    monkeypatch.setattr(RunState, "_keep", counted)
    for given in ({}, {"logical_workers": 2}):
        copied.clear()
        result, _ = train(Options.of({**given, "out": str(tmp_path / f"{len(given)}"), "epochs": 2}))
        each = result["steps_per_epoch"]
        assert len(copied) == 2 + 2 * (each + 1)  # when it is made, when it is synced, each step, each epoch
        assert not any(copied[2 + 3 : 2 + each]) and not any(copied[3 + each + 3 : 3 + 2 * each])


def test_real_workers_take_every_sample_once_whoever_is_lost(tmp_path: Path) -> None:
    """Without logical workers the size of a step changes with the number of them."""
    given = {"epochs": 3, "audit": True, "last": "keep", "faults": "3:kill:2 8:wait 13:killed:0 20:kill:0"}
    out = tmp_path / "elastic"
    result, state, _ = run(["--min-np", "1", "--max-np", "3"], {**given, "out": str(out)}, tmp_path / "a.pt")
    kept = torch.load(result["checkpoint"], weights_only=True)["run"]
    taken = kept["extra"]["taken"]
    assert result["epochs"] == 3 and len(taken) == SAMPLES
    assert min(taken) == 3  # none was lost, none twice but to fill the last step of an epoch, one a worker at most
    assert sum(taken) - 3 * SAMPLES == result["samples"] - 3 * SAMPLES <= 3 * 2
    assert all(tensor.isfinite().all() for tensor in state.values() if tensor.is_floating_point())


@pytest.mark.long
@pytest.mark.timeout(2 * TIMEOUT_S)
def test_all_lost_at_once_it_goes_on_from_its_checkpoint(digits: Path, tmp_path: Path) -> None:
    given = {"data": str(digits), "network": "horovod", "batch": 10, "epochs": 8.0, "logical_workers": 2}
    expected = mnist.train(mnist.Options.of({**given, "out": str(tmp_path / "alone")}))
    out = tmp_path / "elastic"
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    variables = clean_environment(PYTHONPATH=str(SOURCE))
    command = hora("train", "mnist", "--elastic", "2", "--threads-per-worker", "1", "--out", str(out), *flags)
    with subprocess.Popen(
        command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as job:
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while not (out / "epoch-0001.pt").exists():
                assert time.monotonic() < deadline and job.poll() is None
                time.sleep(0.01)
            for _, _, pid in folder.read(out).generations[-1].members:
                os.kill(pid, signal.SIGKILL)
            said, _ = job.communicate(timeout=TIMEOUT_S)
        finally:
            job.terminate()
    assert job.returncode == 0, said
    assert "resuming from" in said
    assert folder.read(out).result["parameters_sha256"] == expected["parameters_sha256"]
    assert len(folder.read(out).generations) == 2


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["gan3d", "--elastic", "1:2"], "gan3d cannot be elastic yet"),
        (["mnist", "--elastic", "1:2", "--framework", "keras"], "--framework keras cannot be elastic here"),
        (["mnist", "--elastic", "2:1"], "--elastic 2:1: give the fewest and the most"),
        (["mnist", "--elastic", "1:4", "--logical-workers", "2"], "--logical-workers 2 for up to 4 processes"),
        (["mnist", "-np", "4", "--logical-workers", "2"], "--logical-workers 2 for 4 processes"),
        (["mnist", "-np", "2", "--logical-workers", "2", "--by-turns"], "--by-turns measures real workers"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(flags: list[str], expected: str) -> None:
    found = CliRunner().invoke(cli_train.train, flags, standalone_mode=False)
    assert expected in str(found.exception)
