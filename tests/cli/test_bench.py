"""`hora bench` on the command line: what is refused and how, then small runs of the real thing."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hora.cli.main import main

TIMEOUT_S = 100


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main(["bench", *arguments])
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert isinstance(stop.value.code, int)
    return stop.value.code, said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("allreduce", "--sizes", "4,banana"), "'banana' is not a size"),
        (("allreduce", "--sizes", "6"), "multiple of 4"),
        (("allreduce", "--against", "nccl"), "no peer 'nccl'"),
        (("gradients", "-np", "0"), "0 is not in the range"),
        (("train", "--models", "vgg16"), "no model 'vgg16'"),
        (("train", "--models", ","), "names nothing"),
        (("train", "--against", "gloo"), "no peer 'gloo'"),
        (("train", "--framework", "caffe"), "no framework 'caffe'"),
        (("elastic", "--against", "horovod"), "no peer 'horovod'"),
        (("elastic", "-np", "1"), "1 is not in the range"),
        (("train", "--framework", "jax", "--models", "gradients"), "no model 'gradients'"),
        (("train", "--framework", "jax", "--against", "ddp"), "train in PyTorch"),
        (("launch", "--rounds", "x"), "'x' is not a valid integer"),
        (("latency",), "No such command 'latency'"),
    ],
)
def test_wrong_usage_is_one_message_and_exit_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    code, said = refused(capsys, *arguments)
    assert code == 2 and told in said


def test_a_peer_that_was_asked_for_must_be_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hora.bench.drive.mpirun", lambda: None)
    code, said = refused(capsys, "allreduce", "--against", "gloo,mpi")
    assert code == 3 and "pip install" in said


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hora", "bench", *arguments], env={**os.environ, "NO_COLOR": "1"},
        capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.slow
def test_contenders_side_by_side(tmp_path: Path) -> None:
    if not (Path(sys.executable).with_name("mpirun").exists() or shutil.which("mpirun")):
        pytest.skip("there is no mpirun")
    file = tmp_path / "result.json"
    done = bench("allreduce", "--against", "gloo,mpi", "--sizes", "4,64K", "--rounds", "3", "--json", str(file))
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert [row["name"] for row in result["rows"]] == ["4 B", "64 KB"]
    expected = {"hora", "hora_shared", "memcpy", "gloo", "mpi"}
    for row in result["rows"]:
        assert set(row["cells"]) == expected
        assert all(0 < cell["low_us"] <= cell["median_us"] <= cell["high_us"] for cell in row["cells"].values())
    assert "4 B" in done.stdout and "Gloo" in done.stdout
    assert "1/2 4 B" in done.stderr  # progress goes to stderr, the table to stdout


@pytest.mark.slow
def test_gradients(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    done = bench("gradients", "--against", "none", "--rounds", "2", "--json", str(file))
    assert done.returncode == 0, done.stderr
    [row] = json.loads(file.read_text())["rows"]
    assert row["bytes"] == 4 * 25_557_032 and set(row["cells"]) == {"hora", "hora_shared", "memcpy"}


@pytest.mark.slow
def test_train(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    done = bench("train", "--models", "mnist,gradients", "--against", "ddp", "--rounds", "2", "--json", str(file))
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert [row["images"] for row in result["rows"]] == [64, 0]
    for row in result["rows"]:
        assert set(row["cells"]) == {"limit", "in_step", "hora", "ddp", "ddp_tuned"} and row["shares"]["limit"] == 1.0
        assert row["added_us"]["limit"] == 0.0 and all(share > 0 for share in row["shares"].values())
    assert "MNIST CNN" in done.stdout and "161 gradients" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("framework", ["tensorflow", "keras", "jax"])
def test_train_in_other_frameworks(tmp_path: Path, framework: str) -> None:
    """Each is found to take the step of the mean gradient before it is timed."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    file = tmp_path / "result.json"
    done = bench("train", "--framework", framework, "--models", "mnist", "--rounds", "1", "--json", str(file))
    assert done.returncode == 0, done.stderr
    [row] = json.loads(file.read_text())["rows"]
    assert set(row["cells"]) == {"limit", "in_step", "hora"} and row["shares"]["hora"] > 0


def test_horovod_must_be_there_if_it_was_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hora.bench.drive.importlib.util.find_spec", lambda name: None)
    code, said = refused(capsys, "train", "--against", "horovod")
    assert code == 3 and "not installed" in said


@pytest.mark.slow
def test_launch(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    done = bench("launch", "--rounds", "1", "--json", str(file))
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert [set(row["cells"]) for row in rows] == [{"bare", "hora", "added"}] * 2
