"""``hora train cifar10 --framework keras``, killed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tests.launch.jobs import run_hora, start_hora
from tests.workloads.keras.conftest import surroundings

from hora.data.cifar import TEST_FILE, TRAIN_FILES
from hora.data.generated import mark_generated

TIMEOUT_S = 150.0


def write_noise(folder: Path) -> Path:
    """Photographs of nothing."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    for name, count in ((TRAIN_FILES[0], 256), (TEST_FILE, 30)):
        records = random.integers(0, 256, (count, 3073)).astype(np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())
    mark_generated(folder, generator="noise", seed=1)
    return folder


def values(file: Path) -> list[np.ndarray[Any, Any]]:
    """Weights and the optimizer's state."""
    found: list[np.ndarray[Any, Any]] = []
    with h5py.File(file, "r") as content:
        for part in ("model_weights", "optimizer_weights"):
            content[part].visititems(lambda _, item: found.append(item[()]) if isinstance(item, h5py.Dataset) else None)
    return found


@pytest.mark.long
@pytest.mark.timeout(3 * TIMEOUT_S)
def test_killed_it_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """kill -9 in an epoch, with batch normalisation, augmentation and the course's warm-up."""
    data = write_noise(tmp_path / "data")
    train = [
        "train", "cifar10", "--framework", "keras", "--network", "v1", "--depth", "8", "--batch", "16", "--epochs", "3",
        "--save-every", "0.25", "--keep", "2", "--log-every", "1", "--data", data,
    ]  # fmt: skip
    around = surroundings("tensorflow")

    process = start_hora(*train, "--out", tmp_path / "killed", **around)
    assert process.stdout is not None
    try:
        for line in process.stdout:  # ends with the process
            if "epoch 2/3  step 10/16" in line:
                break
        process.send_signal(signal.SIGKILL)
        assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert "checkpoint-1-step-24.h5" in {path.name for path in (tmp_path / "killed").iterdir()}

    for name in ("killed", "whole"):
        done = run_hora(*train, "--out", tmp_path / name, "--resume", "auto", timeout_s=TIMEOUT_S, **around)
        assert done.returncode == 0, done.stdout + done.stderr
        assert ("resuming from" in done.stdout) == (name == "killed")
    found, expected = (values(tmp_path / name / "checkpoint-3.h5") for name in ("killed", "whole"))
    assert len(found) == len(expected) > 50
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert not list((tmp_path / "killed").glob("*.part"))
