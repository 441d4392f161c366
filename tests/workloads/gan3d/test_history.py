"""The loss table is upstream's to the character; the history is kept whole, under the right names."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

from hora.workloads.gan3d.analysis import Errors
from hora.workloads.gan3d.history import loss_table, noted, write_history

TRAIN = {"generator": [12.345, 0.6789, 23.0, 1234.5], "discriminator": [5.0, 0.25, 10.126, 0.004]}
TEST = {"generator": [1.0, 2.0, 3.0, 4.0], "discriminator": [5.0, 6.0, 7.0, 8.0]}


def test_rows_have_upstreams_format() -> None:
    upstreams = "{:<22s} | {:<4.2f} | {:<15.2f} | {:<5.2f}| {:<5.2f}"
    lines = loss_table(TRAIN, TEST).splitlines()
    assert lines[1] == "-" * 65
    assert lines[2:] == [
        upstreams.format("generator (train)", *TRAIN["generator"]),
        upstreams.format("generator (test)", *TEST["generator"]),
        upstreams.format("discriminator (train)", *TRAIN["discriminator"]),
        upstreams.format("discriminator (test)", *TEST["discriminator"]),
    ]
    assert [head.strip() for head in lines[0].split("|")] == [
        "component", "loss", "generation_loss", "auxiliary_loss", "ecal loss",
    ]  # fmt: skip


def test_history_keeps_every_epoch_in_three_files(tmp_path: Path) -> None:
    history = noted({}, 0, TRAIN, TEST, Errors(3.0, 1.0, 2.0))
    history = noted(history, 1, TEST, TRAIN, Errors(1.5, 0.5, 1.0))
    write_history(tmp_path / "run", history)
    kept = json.loads((tmp_path / "run" / "history.json").read_text())
    assert kept["columns"] == ["loss", "generation_loss", "auxiliary_loss", "ecal_loss"]
    assert kept["train"]["generator"] == [TRAIN["generator"], TEST["generator"]]
    losses = pickle.loads((tmp_path / "run" / "3dgan_history.pkl").read_bytes())
    assert losses["test"]["discriminator"] == [TEST["discriminator"], TRAIN["discriminator"]]
    found = pickle.loads((tmp_path / "run" / "3dgan_analysis.pkl").read_bytes())["results"]
    assert found == {"total": [3.0, 1.5], "moment": [1.0, 0.5], "energy": [2.0, 1.0]}  # energy: of the profile
    assert len(list((tmp_path / "run").iterdir())) == 3


def test_an_epoch_that_was_noted_half_done_is_replaced() -> None:
    half = noted(noted({}, 0, TRAIN, TEST, None), 1, TRAIN, TRAIN, None)
    whole = noted(half, 1, TRAIN, TEST, Errors(3.0, 1.0, 2.0))
    assert whole["test"]["generator"] == [TEST["generator"]] * 2
    assert whole["analysis"] == {"total": [None, 3.0], "moment": [None, 1.0], "energy": [None, 2.0]}
