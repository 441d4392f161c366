"""How long trials are thought to take: from those before them, or from what the data and the options say."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from hora.data.generated import mark_generated
from hora.lab.trial import FILE, OutcomeState, Trial, TrialOutcome
from hora.lab.trial.cost import Costs, samples_in, steps_of
from hora.workloads import folder as run_folder
from hora.workloads import options_of


def put(place: Path, name: str, step_s: float, state: OutcomeState = "done", **options: Any) -> Trial:
    trial = Trial(name=name, workload="mnist", workers=2, options={"batch": 50, "max_steps": 20, **options})
    folder = place / "throughput-1" / "trials" / name
    found = TrialOutcome(trial=trial, state=state, folder="", step_s=[step_s] * 5, first_batch_s=3.0, seconds=5.0)
    run_folder.write_json(folder / FILE, found)
    return trial


def test_a_trial_takes_as_long_as_such_trials_did(tmp_path: Path) -> None:
    trial = put(tmp_path, "a", 0.1)
    put(tmp_path, "b", 0.3)
    put(tmp_path, "failed", 9.0, state="failed")
    put(tmp_path, "other", 9.0, network="horovod")
    (tmp_path / "throughput-1" / "trials" / "torn").mkdir()
    (tmp_path / "throughput-1" / "trials" / "torn" / FILE).write_text("{")
    costs = Costs(tmp_path)
    assert costs.speed(trial).basis == "as long as 2 such trials before"
    assert costs.expect(trial) == pytest.approx(3.0 + 20 * 0.2)
    assert costs.expect(Trial(name="c", workload="mnist", workers=1, options={"batch": 100, "max_steps": 20})) == (
        pytest.approx(3.0 + 20 * 2 * 0.2)
    )


def test_without_any_it_is_a_guess(tmp_path: Path) -> None:
    costs, trial = (
        Costs(tmp_path / "nowhere"),
        Trial(name="a", workload="mnist", options={"batch": 50, "max_steps": 20}),
    )
    assert "a guess: 6 s to start" in costs.speed(trial).basis
    assert costs.expect(trial) == pytest.approx(6.0 + 20 * 50 / 500)
    for workload in ("synthetic", "cifar10", "imagenet", "gan3d"):
        assert costs.expect(Trial(name="a", workload=workload, options={"max_steps": 5})) > 6.0


def test_emulated_workers_are_computed_by_the_processes_there_are(tmp_path: Path) -> None:
    costs, more = Costs(tmp_path), {"batch": 10, "max_steps": 20}
    one, many = (
        costs.expect(Trial(name="a", workload="mnist", options={**more, "emulate_workers": count})) for count in (0, 8)
    )
    assert many - 6.0 == pytest.approx(8 * (one - 6.0))


def test_samples_are_counted(tmp_path: Path) -> None:
    head = (2051).to_bytes(4, "big") + (1234).to_bytes(4, "big")
    with gzip.open(tmp_path / "train-images-idx3-ubyte.gz", "wb") as file:
        file.write(head)
    assert samples_in("mnist", tmp_path) == 1234
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(3 * 3073))
    assert samples_in("cifar10", tmp_path) == 3
    assert samples_in("imagenet", tmp_path) == 1_281_167
    mark_generated(tmp_path, generator="textures", samples=60)
    assert samples_in("imagenet", tmp_path) == samples_in("gan3d", tmp_path / "Ele*.h5") == 60
    small, usual = (
        Costs(tmp_path).speed(Trial(name="t", workload="imagenet", workers=1, options=options))
        for options in ({"image_size": 56}, {})
    )
    assert small.sample_s == pytest.approx(usual.sample_s / 16)
    options = options_of("mnist").of({"data": str(tmp_path), "epochs": 3, "batch": 100})
    assert steps_of(options, 2) == 3 * 6
