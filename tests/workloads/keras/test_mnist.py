"""``hora train mnist --framework keras`` as a user meets it: two workers, a signal, going on, and what is left."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.keras.surroundings import ROOT
from tests.launch.jobs import clean_environment, rest_of, run_hora, start_hora
from tests.workloads.conftest import write_digits
from tests.workloads.keras.conftest import surroundings

TIMEOUT_S = 100.0

# What somebody does who has Keras, a checkpoint and the data, and no Hora.
PLAIN = """
import sys
import keras, numpy as np
model = keras.models.load_model(sys.argv[1])
images = np.fromfile(sys.argv[2] + "/images", np.uint8).reshape(-1, 28, 28, 1) / 255.0
labels = np.fromfile(sys.argv[2] + "/labels", np.uint8)
loss, accuracy = model.evaluate(images, labels, verbose=0)
assert not [name for name in sys.modules if name.startswith("hora")]
print(float(loss), float(accuracy))
"""


@pytest.mark.long
@pytest.mark.timeout(4 * TIMEOUT_S)
def test_a_users_way(tmp_path: Path) -> None:
    """Trained by two workers, which are asked to leave in the middle and go on; the file is Keras's."""
    data, out = write_digits(tmp_path / "data"), tmp_path / "out"
    train = [
        "train", "mnist", "--framework", "keras", "-np", "2", "--data", data, "--out", out, "--batch", "10",
        "--base-batch", "20", "--lr", "0.002", "--epochs", "2", "--log-every", "5", "--keep", "0",
    ]  # fmt: skip
    around = surroundings("tensorflow")

    process = start_hora(*train, **around)
    assert process.stdout is not None
    try:
        for line in process.stdout:  # ends with the process, which --epochs ends
            if "step 10/30" in line:
                process.send_signal(signal.SIGTERM)
                break
        said = rest_of(process, TIMEOUT_S)
        assert process.wait(TIMEOUT_S) == 75, said
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert re.search(r"stopping as requested: saved .*checkpoint-0-step-\d+\.h5", said)

    done = run_hora(*train, "--resume", "auto", "--json", tmp_path / "end.json", timeout_s=TIMEOUT_S, **around)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resuming from" in done.stdout and done.stderr == ""
    result = json.loads((tmp_path / "end.json").read_text())
    assert (result["framework"], result["workers"], result["epochs"], result["steps"]) == ("keras", 2, 2.0, 60)
    loss, accuracy = re.findall(r"^Test (?:loss|accuracy): (\S+)$", done.stdout, re.MULTILINE)
    assert (float(loss), float(accuracy)) == (result["val_loss"], result["val_accuracy"])
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps if "val_loss" not in line] == list(range(1, 61))

    from hora.workloads.mnist.data import load

    test = load(data).test
    test.images.numpy().tofile(data / "images")
    test.labels.numpy().astype("uint8").tofile(data / "labels")
    plain = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PLAIN, out / "checkpoint-2.h5", data], capture_output=True, text=True,
        env=clean_environment(**{**around, "PYTHONPATH": ""}), timeout=TIMEOUT_S,
    )  # fmt: skip
    assert plain.returncode == 0, plain.stderr
    found = [float(word) for word in plain.stdout.split()]
    assert found == [pytest.approx(float(loss), rel=1e-4), pytest.approx(float(accuracy), abs=1e-6)]

    listed = run_hora("lab", "list", "--runs", tmp_path)
    assert listed.returncode == 0 and "mnist" in listed.stdout, listed.stdout + listed.stderr
    shown = run_hora("lab", "show", out)
    assert shown.returncode == 0 and "keras" in shown.stdout, shown.stdout + shown.stderr


def test_refused_before_anything_starts() -> None:
    done = run_hora("train", "mnist", "--framework", "keras", "-np", "2", "--emulate-workers", "4", cwd=ROOT)
    assert done.returncode == 2 and "--emulate-workers 4 with --framework keras" in done.stderr and not done.stdout
