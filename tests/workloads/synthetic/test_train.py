"""Both forms of the benchmark, run: every line is where it belongs, and the figures are those of the JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from tests.launch.jobs import run_hora

from hora.errors import UsageError
from hora.workloads.start import train_here
from hora.workloads.synthetic.model import benchmark, random_batch
from hora.workloads.synthetic.options import ModelName, Options

NUMBER = r"\d+\.\d"


def test_tf_cnn_benchmarks_form_with_two_workers(tmp_path: Path) -> None:
    done = run_hora(
        "train", "synthetic", "-np", "2", "--model", "mnist_horovod", "--form", "tf", "--num-batches", "12",
        "--display-every", "5", "--warmup-batches", "2", "--json", tmp_path / "final.json", timeout_s=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    final = json.loads((tmp_path / "final.json").read_text())
    line = rf"\timages/sec: {NUMBER} \+/- {NUMBER} \(jitter = {NUMBER}\)\t\d+\.\d{{3}}"
    expected = [
        rf"PyTorch:     {re.escape(torch.__version__)}", r"Model:       mnist_horovod",
        r"Dataset:     mnist \(synthetic\)", r"Mode:        BenchmarkMode\.TRAIN", r"SingleSess:  False",
        r"Batch size:  128 global",
        r"             64\.0 per device", r"Num batches: 12", r"Num epochs:  0\.03",
        r"Devices:     \['horovod/cpu:0', 'horovod/cpu:1'\]", r"Data format: NCHW", r"Optimizer:   sgd",
        r"Variables:   horovod", r"==========", r"Generating training model", r"Initializing graph", r"Running warm up",
        r"Done warm up", r"Step\tImg/sec\ttotal_loss", rf"1{line}", rf"5{line}", rf"10{line}", r"-{64}",
        rf"total images/sec: {re.escape(format(final['images_per_s'], '.2f'))}", r"-{64}",
    ]  # fmt: skip
    printed = done.stdout.splitlines()
    assert len(printed) == len(expected)
    for text, pattern in zip(printed, expected, strict=True):
        assert re.fullmatch(pattern, text), text
    assert final["samples"] == 2 * 12 * 64 and final["workers"] == 2 and final["generated_data"]
    assert final["images_per_s"] < 2.2 * final["images_per_s_per_worker"]


def test_horovods_form(tmp_path: Path, capfd: Any) -> None:
    options = Options.of(
        {"model": "mnist_horovod", "batch": 8, "iters": 3, "batches_per_iter": 2, "warmup_batches": 1,
         "json": str(tmp_path / "final.json")}
    )  # fmt: skip
    assert train_here(options) == 0
    final = json.loads((tmp_path / "final.json").read_text())
    speeds = final["iterations"]
    assert capfd.readouterr().out.splitlines() == [
        "Model: mnist_horovod", "Batch size: 8", "Number of CPUs: 1", "Running warmup...", "Running benchmark...",
        *(f"Iter #{number}: {speed:.1f} img/sec per CPU" for number, speed in enumerate(speeds)),
        f"Img/sec per CPU: {final['images_per_s']:.1f} +-{final['images_per_s_interval']:.1f}",
        f"Total img/sec on 1 CPU(s): {final['images_per_s']:.1f} +-{final['images_per_s_interval']:.1f}",
    ]  # fmt: skip
    assert final["images_per_s"] == pytest.approx(sum(speeds) / 3)
    assert final["peak_lr"] == 0.01 * 8 / 32 and final["first_batch_s"] <= final["seconds"]


@pytest.mark.parametrize("name", get_args(ModelName))
def test_every_model_has_a_gradient_for_every_parameter(name: ModelName) -> None:
    size = 32 if name.startswith("resnet") else 0
    chosen = benchmark(name, size)
    with torch.device("meta"):  # shapes only: nothing is computed
        model = chosen.make()
        images, labels = random_batch(chosen, Options(model=name, batch=2), 0, torch.device("meta"))
        chosen.loss(model(images), labels).backward()
    assert images.shape == (2, *chosen.shape) and all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"emulate_workers": 4}, "--emulate-workers 4"),
        ({"accumulate": 2}, "--accumulate 2"),
        ({"resume": "auto"}, "--resume auto"),
        ({"image_size": 16}, "--image-size 16 is too small"),
        ({"model": "mnist", "image_size": 64}, "mnist takes one size only"),
        ({"form": "caffe"}, "--form caffe"),
    ],
)
def test_what_is_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Options.of(given)
