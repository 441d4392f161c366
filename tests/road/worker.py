"""One worker that trains with DistributedOptimizer and says which functions its gradients passed.

``python -m tests.road.worker LIBRARY`` prints a line of JSON: by phase, (file, function) to when it was first called
and when it first returned, on the monotonic clock of the host. In the phase "prepared" buckets are made; in "steady"
one gradient is computed, sent and waited for.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from tests.light import light_torch

if __name__ == "__main__":
    light_torch()

import torch

import hora
from hora.transport import shm

_PACKAGE = os.fspath(Path(hora.__file__).parent) + os.sep
_PLACES = 4096


class Recorder:
    """Python's functions by ``sys.setprofile``, the core's by what ``passed.c`` in it has noted."""

    def __init__(self, library: str) -> None:
        self._core = ctypes.CDLL(library)
        listed = subprocess.run(["nm", "--defined-only", library], check=True, capture_output=True, text=True).stdout
        fields = [line.split() for line in listed.splitlines()]
        self._names = {int(at, 16): name.partition(".")[0] for at, kind, name in fields if kind in "tT"}
        self.phases: dict[str, dict[str, tuple[int, int]]] = {}
        self._seen: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> Recorder:
        self._seen = {}
        self._core.passed_take((ctypes.c_uint64 * (2 * _PLACES))())
        self._core.passed_record(1)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        self._core.passed_record(0)
        found = (ctypes.c_uint64 * (2 * _PLACES))()
        for i in range(self._core.passed_take(found)):
            name = self._names.get(found[2 * i], "?")
            self._seen[f"native: {name}"] = (found[2 * i + 1], 0)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event in ("call", "return") and file.startswith(_PACKAGE):
            key = f"src/hora/{file.removeprefix(_PACKAGE)}: {frame.f_code.co_name}"
            called, returned = self._seen.get(key, (0, 0))
            now = time.monotonic_ns()
            self._seen[key] = (called or now, returned or (now if event == "return" else 0))

    def end(self, phase: str) -> None:
        self.phases[phase] = self._seen


def main(library: str) -> None:
    shm._LIBRARY = Path(library)
    import hora.torch as hvd

    hvd.init()
    recorder = Recorder(library)
    model = torch.nn.Linear(256, 64)  # 64 KB: more than rides along with an arrival
    torch.nn.init.zeros_(model.weight)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    inputs = torch.full((1, 256), 1.0 + hvd.rank())

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

    with recorder:  # gradients travel alone, and are then put into buckets
        step()
    recorder.end("prepared")
    step()
    hvd.barrier()
    with recorder:
        step()
    recorder.end("steady")
    assert bool((model.weight == -3 * 0.5 * (1 + hvd.size()) / 2).all())  # three steps of half the mean of 1, 2, …
    os.write(1, f"PASSED {json.dumps([hvd.rank(), recorder.phases])}\n".encode())  # in one: others write there too
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
