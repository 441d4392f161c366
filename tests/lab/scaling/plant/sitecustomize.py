"""Plants a bottleneck in the workers of a trial. Python imports it at its start if its folder is in PYTHONPATH.

The file ``planted`` beside it says what, as ``what:amount[:rank]``; the amount is in milliseconds, unless said:

- ``load``      every batch of MNIST takes so much longer to come, waiting
- ``decode``    the same, computing
- ``disk``      every batch of MNIST comes at so many KB/s
- ``slow``      every step of one rank takes so much longer, waiting
- ``busy``      the same, computing
- ``jitter``    every step takes longer by chance, by so much at most, waiting
- ``memory``    every step also copies so many MB, which no cache holds, through a memory that one core saturates: where
  the real one serves all cores, a lock makes it so. Who waits for it computes nothing and keeps its core, as then
- ``delay``     whatever Gloo moves arrives so much later: a link with latency
- ``save``      writing a checkpoint takes so much longer, waiting
- ``validate``  a validation takes so much longer, computing
"""

from __future__ import annotations

import fcntl
import importlib.abc
import importlib.machinery
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What each changes: a module, a class in it (or none) and a method.
PLACES = {
    "load": ("hora.workloads.mnist.data", "Digits", "batch"),
    "decode": ("hora.workloads.mnist.data", "Digits", "batch"),
    "disk": ("hora.workloads.mnist.data", "Digits", "batch"),
    "slow": ("hora.workloads.synthetic.model", "Benchmark", "loss"),
    "busy": ("hora.workloads.synthetic.model", "Benchmark", "loss"),
    "jitter": ("hora.workloads.synthetic.model", "Benchmark", "loss"),
    "memory": ("hora.workloads.synthetic.model", "Benchmark", "loss"),
    "delay": ("hora.transport.gloo", "GlooMover", "_finish"),
    "save": ("hora.workloads.run_checkpoints", "RunCheckpoints", "save"),
    "validate": ("hora.workloads.mnist.train", "", "evaluate"),
}
COPIED_MB = 16


def spend(what: str, amount: float, args: tuple[Any, ...]) -> None:
    if what in ("decode", "busy", "validate"):
        end = time.thread_time() + amount / 1e3  # of the processor, however long others hold it
        while time.thread_time() < end:
            pass
    elif what == "memory":
        copy_memory(amount)
    elif what == "disk":
        time.sleep(len(args[1]) * 784 / 1e3 / amount)
    elif what == "jitter":
        time.sleep(chance.uniform(0, amount) / 1e3)
    else:
        time.sleep(amount / 1e3)


def copy_memory(megabytes: float) -> None:
    import numpy as np

    if not buffers:
        buffers.extend(np.ones(COPIED_MB << 17) for _ in range(2))
    with open(Path(__file__).with_name("memory"), "w") as memory:
        for _ in range(round(megabytes / COPIED_MB)):
            while True:
                try:
                    fcntl.flock(memory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    pass
            np.copyto(buffers[1], buffers[0])
            fcntl.flock(memory, fcntl.LOCK_UN)


buffers: list[Any] = []
chance = random.Random(os.environ.get("HORA_RANK", ""))


class Planter(importlib.abc.MetaPathFinder):
    """Changes one method when its module is imported."""

    def __init__(self, what: str, amount: float) -> None:
        self.what, self.amount = what, amount
        self.module, self.kind, self.method = PLACES[what]

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            kind = getattr(module, self.kind) if self.kind else module
            setattr(kind, self.method, self.slower(getattr(kind, self.method)))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def slower(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def planted(*args: Any, **kwargs: Any) -> Any:
            spend(self.what, self.amount, args)
            return method(*args, **kwargs)

        return planted


wanted = Path(__file__).with_name("planted")
if wanted.exists():
    what, amount, *rank = wanted.read_text().split(":")
    if not rank or os.environ.get("HORA_RANK") == rank[0]:
        sys.meta_path.insert(0, Planter(what, float(amount)))
