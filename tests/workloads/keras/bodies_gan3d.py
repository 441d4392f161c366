"""A run on showers with Keras, in two workers. See ``ranks``."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from tests.workloads.keras.ranks import main, on

import hora.keras as hvd
from hora.files import json_text
from hora.workloads.gan3d.keras_train import train
from hora.workloads.gan3d.options import Options

SMALL: dict[str, Any] = {
    "framework": "keras", "batch": 1, "epochs": 0.5, "test_events": 2, "analysis": True, "loaders": 0, "latent": 8,
}  # fmt: skip


def train_on_showers(data: Path, out: Path, **more: Any) -> dict[str, Any]:
    """The final metrics of a run of its own."""
    hvd.shutdown()  # as if it were another process
    options: Any = Options.of({**SMALL, "data": str(data), "out": str(out), **more})
    return train(options)


@on(2)
def one_step(data: Path, folder: Path) -> None:
    """What it printed and wrote is looked at by ``test_gan3d``."""
    with open(folder / f"printed-{hvd.rank()}", "w") as printed, contextlib.redirect_stdout(printed):
        result = train_on_showers(data, folder / "out")
    if hvd.rank() == 0:
        (folder / "result.json").write_bytes(json_text(result))


if __name__ == "__main__":
    main()
