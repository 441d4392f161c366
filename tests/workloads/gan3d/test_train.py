"""The whole workload on a few events, in real workers: what it prints and writes, that an interrupted run ends with the
same bits, and that emulated workers compute what real ones do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.launch.jobs import run_hora

import hora.torch as hvd
from hora.data.generated import mark_generated
from hora.data.showers import write_showers
from hora.workloads.gan3d.model import Discriminator, Generator
from hora.workloads.gan3d.options import Options
from hora.workloads.gan3d.train import train as train_here
from hora.workloads.gan3d.weights import load_weights

STEPS = 4  # two epochs of two


def write_blobs(folder: Path) -> Path:
    """Four events to train on and eight to test with, blobs of cells that hold what the fit says."""
    folder.mkdir(parents=True, exist_ok=True)
    x, y, z = np.meshgrid(*[np.arange(25)] * 3, indexing="ij")
    for number, energy in enumerate(
        [[50.0, 150.0, 250.0, 350.0], [99.0, 101.0, 198.0, 202.0, 301.0, 303.0, 400.0, 404.0]]
    ):
        hundreds = np.array(energy) / 100
        deep = (8 + hundreds)[:, None, None, None]
        blob = np.exp(-np.hypot(x - 12, y - 12)[None] / 2 - ((z[None] - deep) / 4) ** 2)
        deposited = hundreds * np.polyval([0.0018, -0.023, 0.11, -0.28, 2.21], hundreds)
        cells = blob * (deposited / blob.sum((1, 2, 3)))[:, None, None, None]
        write_showers(folder / f"EleEscan_{number}.h5", cells.astype(np.float32), np.array(energy, np.float32))
    mark_generated(folder, generator="blobs")
    return folder


@pytest.fixture(scope="module")
def showers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_blobs(tmp_path_factory.mktemp("showers"))


SMALL = {"batch": 1, "epochs": 2.0, "test_events": 2, "analysis": True}


def train(showers: Path, out: Path, *flags: str | float) -> str:
    """`hora train gan3d`, small, with two workers; what it printed."""
    given = {"data": showers, "out": out, "json": out / "result.json", **SMALL, "threads_per_worker": 1}
    small = [f"--{k.replace('_', '-')}" + (f"={v}" if v is not True else "") for k, v in given.items()]
    done = run_hora("train", "gan3d", "-np", "2", *small, *map(str, flags), timeout_s=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def last(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(out / "epoch-0002.pt", weights_only=True)
    return content


@pytest.fixture(scope="module")
def straight(showers: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Two workers, both epochs at once, with a checkpoint after every step."""
    out = tmp_path_factory.mktemp("straight")
    return out, train(showers, out, "--save-every", 0.5, "--keep", 0)


def test_prints_what_upstream_prints(straight: tuple[Path, str]) -> None:
    printed, number = straight[1], r"\d+\.\d+"
    table = (
        rf"component .*\n-{{65}}\n(?:(?:generator|discriminator) \((?:train|test)\) +(?:\| ?{number} *){{4}}\n){{4}}"
    )
    epoch = "".join(
        rf"Epoch {e + 1} of 2\nprocessed 1/2 batches in {number}\nprocessed 2/2 batches in {number}\n"
        rf"saving weights of gen\nsaving weights of disc\nThe {e} epoch took {number} seconds\n\n"
        rf"Testing for epoch {e + 1}:\n{table}"
        rf"Analysing\.{{12}}\nResult =  \[{number}(?:e[+-]\d+)?, {number}, {number}(?:e[+-]\d+)?\]\n"
        for e in range(2)
    )
    rank_0 = "".join(line for line in printed.splitlines(keepends=True) if not line.startswith("[1]<stdout>:"))
    assert re.search(epoch, rank_0), printed
    assert printed.count("Global batch size is: 2 / batch size is: 1") == 2  # every rank's
    assert printed.count("After init using") == 2
    assert "Total Training batches = 2 with 4 events" in printed
    assert "the data is generated" in printed


def test_writes_weights_history_and_result(straight: tuple[Path, str]) -> None:
    out, content = straight[0], last(straight[0])
    names = [f"{who}_params_generator_epoch_{e:03}.hdf5" for who in ("discriminator", "generator") for e in (0, 1)]
    assert sorted(path.name for path in (out / "weights2D").iterdir()) == names
    for name, network in (("generator", Generator()), ("discriminator", Discriminator())):
        load_weights(out / "weights2D" / f"{name}_params_generator_epoch_001.hdf5", network)  # type: ignore[arg-type]
        for key, tensor in network.state_dict().items():
            if tensor.is_floating_point():
                assert torch.equal(tensor, content["model"][f"{name}.{key}"]), key
    result, history = (json.loads((out / name).read_text()) for name in ("result.json", "history.json"))
    assert [len(values) for values in history["analysis"].values()] == [2, 2, 2]
    assert result["val_loss"] == history["test"]["generator"][1][0]
    assert result["val_profile_error"] == history["analysis"]["energy"][1]
    assert (result["steps"], result["samples"], result["workers"], result["peak_lr"]) == (STEPS, 8, 2, 0.002)
    assert result["generated_data"] is True
    total, *parts = history["test"]["discriminator"][0]
    assert total == pytest.approx(np.dot(parts, Options().loss_weights), rel=1e-6)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "images_per_s" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert all(line["loss"] == line["generator_loss"] and line["discriminator_loss"] > 0 for line in steps)


def test_every_worker_has_its_own_events_noise_and_statistics(straight: tuple[Path, str]) -> None:
    first, second = (worker["statistics"] for worker in last(straight[0])["workers"])
    moved = [name for name in first if name.endswith("running_mean")]
    assert len(moved) == 5 and not any(torch.equal(first[name], second[name]) for name in moved)
    model = last(straight[0])["model"]
    for name in moved:
        torch.testing.assert_close(model[name], (first[name] + second[name]) / 2)
    counts = {int(first[name]) for name in first if name.endswith("num_batches_tracked")}
    assert counts == {2 * STEPS}  # two updates a step of each network; a frozen discriminator does not count


def test_only_steps_if_only_their_speed_is_wanted(showers: Path, tmp_path: Path) -> None:
    printed = train(showers, tmp_path, "--max-steps", 1, "--no-validate", "--no-save")
    assert "Testing" not in printed and "saving weights" not in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "result.json", "run.json"]


def test_an_interrupted_run_ends_with_the_same_bits(straight: tuple[Path, str], showers: Path, tmp_path: Path) -> None:
    halfway = straight[0] / "step-00000003.pt"  # through the second epoch
    assert f"resuming from {halfway}, after step 3" in train(showers, tmp_path, "--resume", str(halfway))
    assert_same(last(straight[0]), last(tmp_path))
    whole, resumed = (json.loads((out / "history.json").read_text()) for out in (straight[0], tmp_path))
    assert resumed["test"] == whole["test"] and resumed["analysis"] == whole["analysis"]
    for name in ("generator", "discriminator"):
        np.testing.assert_allclose(resumed["train"][name], whole["train"][name], rtol=1e-12)


def test_emulated_workers_compute_what_real_ones_do(straight: tuple[Path, str], showers: Path, tmp_path: Path) -> None:
    places = {"data": str(showers), "out": str(tmp_path)}
    options = Options.of({**SMALL, **places, "emulate_workers": 2, "loaders": 1})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the workers have: sums in the same order
    try:
        train_here(options)  # in this process, which is alone
    finally:
        hvd.shutdown()
        torch.set_num_threads(threads)
    real, emulated = last(straight[0]), last(tmp_path)
    for name, tensor in real["model"].items():
        torch.testing.assert_close(emulated["model"][name], tensor, rtol=1e-4, atol=1e-5, msg=name)
    whole, other = (json.loads((out / "history.json").read_text()) for out in (straight[0], tmp_path))
    np.testing.assert_allclose(other["train"]["generator"], whole["train"]["generator"], rtol=1e-3)
    np.testing.assert_allclose(other["test"]["generator"], whole["test"]["generator"], rtol=1e-3)


def test_ddp_learns_what_hora_does(straight: tuple[Path, str], showers: Path, tmp_path: Path) -> None:
    train(showers, tmp_path, "--strategy", "ddp")
    by_hora, by_ddp = last(straight[0]), last(tmp_path)
    for name, tensor in by_hora["model"].items():
        torch.testing.assert_close(by_ddp["model"][name], tensor, rtol=1e-4, atol=1e-5, msg=name)


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Model, optimizers and workers, to the bit."""
    for part in ("model", "optimizer", "workers"):
        ones, others = leaves(one[part]), leaves(other[part])
        assert ones.keys() == others.keys()
        for name, value in ones.items():
            same = torch.equal(value, others[name]) if isinstance(value, torch.Tensor) else value == others[name]
            assert same, f"{part}{name}"


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    """Everything in nested dictionaries and lists, by its path."""
    if isinstance(tree, dict):
        return {k: v for key, value in tree.items() for k, v in leaves(value, f"{path}.{key}").items()}
    if isinstance(tree, list | tuple):
        return {k: v for key, value in enumerate(tree) for k, v in leaves(value, f"{path}[{key}]").items()}
    return {path: tree}
