"""3DGAN with Keras: a run in two workers. What it wrote is read by torch's networks, which find the same of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.workloads.gan3d.test_train import write_blobs
from tests.workloads.imagenet.conftest import write_pictures
from tests.workloads.keras.conftest import Jobs, cases

import hora.torch as hvd
from hora.workloads.gan3d.data import load
from hora.workloads.gan3d.evaluate import analyse, losses_on
from hora.workloads.gan3d.game import TorchGan
from hora.workloads.gan3d.model import Discriminator, Generator
from hora.workloads.gan3d.options import Options
from hora.workloads.gan3d.weights import load_weights


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    folder = tmp_path_factory.mktemp("gan3d")
    yield Jobs("tests.workloads.keras.bodies_gan3d", write_blobs(folder / "data"), folder, timeout_s=170)


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    folder = tmp_path_factory.mktemp("longer")
    write_blobs(folder / "data" / "showers")
    write_pictures(folder / "data" / "pictures" / "train", 16, seed=1)
    write_pictures(folder / "data" / "pictures" / "val", 3, seed=2)
    yield Jobs("tests.workloads.keras.bodies_longer", folder / "data", folder, timeout_s=500)


@pytest.mark.long
@pytest.mark.timeout(200)  # on a busy machine; a quiet one needs 25
def test_what_it_prints_and_writes(jobs: Jobs) -> None:
    jobs.check("tensorflow", 2, "one_step")
    place = jobs.folder("tensorflow", 2) / "one_step"
    number = r"-?\d+\.\d+(?:e[+-]\d+)?"
    row = rf"(?:generator|discriminator) \((?:train|test)\) +(?:\| ?{number} *){{4}}\n"
    expected = (
        rf"Epoch 1 of 1\nprocessed 1/2 batches in {number}\n"
        rf"saving weights of gen\nsaving weights of disc\nThe 0 epoch took {number} seconds\n\n"
        rf"Testing for epoch 1:\ncomponent .*\n-{{65}}\n(?:{row}){{4}}"
        rf"Analysing\.{{12}}\nResult =  \[{number}, {number}, {number}\]\n"
    )
    printed, other = ((place / f"printed-{rank}").read_text() for rank in range(2))
    assert re.search(expected, printed), printed
    assert re.fullmatch(r"Global batch size is: 2 / batch size is: 1\nOn hostname .* - After init using .*\n", other)

    names = [f"{name}_params_generator_epoch_000.hdf5" for name in ("discriminator", "generator")]
    assert sorted(path.name for path in (place / "out" / "weights2D").iterdir()) == names
    result, history = (json.loads((place / name).read_text()) for name in ("result.json", "out/history.json"))
    assert (result["steps"], result["samples"], result["workers"], result["peak_lr"]) == (1, 2, 2, 0.002)
    lines = [json.loads(line) for line in (place / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "images_per_s" in line] == [1]
    assert lines[0]["loss"] == lines[0]["generator_loss"] > 0 and lines[0]["discriminator_loss"] > 0

    # Torch's networks with these weights, in this process, find of all test events what Keras's found in two.
    generator, discriminator = Generator(8), Discriminator()
    for network, name in ((discriminator, names[0]), (generator, names[1])):
        load_weights(place / "out" / "weights2D" / name, network)  # type: ignore[arg-type]
    options: Any = Options.of({"latent": 8, "batch": 1, "test_events": 2})
    hvd.init()
    data = load(place.parents[1] / "data", options.events)
    game = TorchGan(generator, discriminator, options)
    tested, (errors, _) = losses_on(game, data.test, nullcontext()), analyse(game, data.test, nullcontext())
    for name, losses in tested.items():
        np.testing.assert_allclose(history["test"][name][0], losses, rtol=1e-3)
    assert errors is not None and history["analysis"]["total"][0] == pytest.approx(errors.total, rel=1e-3)
    assert result["val_loss"] == history["test"]["generator"][0][0]


# XLA takes minutes for the convolutions of showers on a processor.
LONGER = [case for case in cases(Path(__file__).with_name("bodies_longer.py")) if "jax" not in str(case.id)]


@pytest.mark.long
@pytest.mark.timeout(540)
@pytest.mark.parametrize(("backend", "workers", "body"), LONGER)
def test_body_of_those_that_take_longer(longer: Jobs, backend: str, workers: int, body: str) -> None:
    longer.check(backend, workers, body)
