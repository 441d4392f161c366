"""What is printed and saved after each epoch: the loss table, and the history of the whole run in files.

``history.json`` and upstream's two pickles have plain lists and dictionaries only. Upstream's analysis file held the
last epoch alone, with the two errors under each other's names; here it holds all, under their own.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hora.files import json_text, replacing
from hora.workloads.gan3d.analysis import Errors
from hora.workloads.gan3d.losses import PARTS

__all__ = ["COLUMNS", "Losses", "loss_table", "noted", "write_history", "write_shapes"]

COLUMNS = ("loss", *PARTS)
NETWORKS = ("generator", "discriminator")

Losses = Mapping[str, Sequence[float]]  # by network: the four columns

_HEADS = ("component", "loss", "generation_loss", "auxiliary_loss", "ecal loss")
_HEAD = "{:<22s} | {:<4s} | {:<15s} | {:<5s}| {:<5s}"
_ROW = "{:<22s} | {:<4.2f} | {:<15.2f} | {:<5.2f}| {:<5.2f}"


def loss_table(train: Losses, test: Losses) -> str:
    """Upstream's table.

    >>> print(loss_table({"generator": [9.5, 0.7, 12, 15], "discriminator": [8, 0.5, 10, 20]},
    ...                  {"generator": [9.25, 0.75, 12, 15], "discriminator": [8, 0.5, 10, 0]}))
    component              | loss | generation_loss | auxiliary_loss| ecal loss
    -----------------------------------------------------------------
    generator (train)      | 9.50 | 0.70            | 12.00| 15.00
    generator (test)       | 9.25 | 0.75            | 12.00| 15.00
    discriminator (train)  | 8.00 | 0.50            | 10.00| 20.00
    discriminator (test)   | 8.00 | 0.50            | 10.00| 0.00
    """
    rows = [
        _ROW.format(f"{network} ({name})", *losses[network])
        for network in NETWORKS
        for name, losses in (("train", train), ("test", test))
    ]
    return "\n".join([_HEAD.format(*_HEADS), "-" * 65, *rows])


def noted(history: Mapping[str, Any], epoch: int, train: Losses, test: Losses, errors: Errors | None) -> dict[str, Any]:
    """The history up to this epoch, from 0: every list has an entry for each. One that was there already, because a run
    ended in the middle of the epoch and continued, is replaced.

    >>> losses = {"generator": [1.0, 2.0, 3.0, 4.0], "discriminator": [5.0, 6.0, 7.0, 8.0]}
    >>> noted({}, 0, losses, losses, Errors(0.75, 0.25, 0.5))["analysis"]
    {'total': [0.75], 'moment': [0.25], 'energy': [0.5]}
    """

    def then(name: str, values: Mapping[str, Any]) -> dict[str, list[Any]]:
        before = {key: [*history.get(name, {}).get(key, []), *[None] * epoch] for key in values}
        return {key: [*before[key][:epoch], value] for key, value in values.items()}

    found = {"train": then("train", train), "test": then("test", test)}
    if errors is None:
        return {**found, "analysis": {key: values[:epoch] for key, values in history.get("analysis", {}).items()}}
    keys = {"total": errors.total, "moment": errors.moment, "energy": errors.profile}  # upstream's
    return {**found, "analysis": then("analysis", keys)}


def write_history(folder: Path, history: Mapping[str, Any]) -> None:
    """Write the history's files, each whole or as it was."""
    os.makedirs(folder, exist_ok=True)
    losses = {name: history[name] for name in ("train", "test")}
    contents = {
        "history.json": json_text({"columns": COLUMNS, **history}),
        "3dgan_history.pkl": pickle.dumps(losses),
    }
    if history["analysis"]:
        contents["3dgan_analysis.pkl"] = pickle.dumps({"results": history["analysis"]})
    for name, content in contents.items():
        with replacing(folder / name) as file:
            file.write(content)


def write_shapes(folder: Path, shapes: Sequence[Any]) -> None:
    """Write ``showers.json``: what real and generated showers look like on average, after the last epoch."""
    os.makedirs(folder, exist_ok=True)
    with replacing(folder / "showers.json") as file:
        file.write(json_text(shapes))
