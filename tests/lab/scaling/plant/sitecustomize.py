"""Plants a bottleneck in the workers of a trial. Python imports it at its start if this folder is in PYTHONPATH.

PLANT says what, as ``what:milliseconds[:rank]``:

- ``load``    every batch of MNIST takes so much longer to come, waiting
- ``decode``  the same, computing
- ``slow``    every step of one rank takes so much longer, waiting
- ``busy``    the same, computing
- ``delay``   whatever Gloo moves arrives so much later: a link with latency
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable
from typing import Any

# What each changes: a module, a class in it and a method.
PLACES = {
    "load": ("hora.workloads.mnist.data", "Digits", "batch"),
    "decode": ("hora.workloads.mnist.data", "Digits", "batch"),
    "slow": ("hora.workloads.synthetic.model", "Benchmark", "loss"),
    "busy": ("hora.workloads.synthetic.model", "Benchmark", "loss"),
    "delay": ("hora.transport.gloo", "GlooMover", "_finish"),
}


def spend(what: str, seconds: float) -> None:
    if what in ("decode", "busy"):
        end = time.thread_time() + seconds  # of the processor, however long others hold it
        while time.thread_time() < end:
            pass
    else:
        time.sleep(seconds)


class Planter(importlib.abc.MetaPathFinder):
    """Changes one method when its module is imported."""

    def __init__(self, what: str, seconds: float) -> None:
        self.what, self.seconds = what, seconds
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
            kind = getattr(module, self.kind)
            setattr(kind, self.method, self.slower(getattr(kind, self.method)))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def slower(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def planted(*args: Any, **kwargs: Any) -> Any:
            spend(self.what, self.seconds)
            return method(*args, **kwargs)

        return planted


if wanted := os.environ.get("PLANT"):
    what, amount, *rank = wanted.split(":")
    if not rank or os.environ.get("HORA_RANK") == rank[0]:
        sys.meta_path.insert(0, Planter(what, float(amount) / 1e3))
