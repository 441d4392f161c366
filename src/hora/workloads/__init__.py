"""Training jobs that this field measures itself by, each to be read top to bottom and copied.

A workload is a folder: ``options.py`` (what can be set; imports no framework), ``model.py``, ``data.py`` and
``train.py`` with ``train(options)``, the loop; ``keras_model.py`` and ``keras_train.py`` are the same in Keras. What
the loops share is beside them: ``options`` (flags that all have), ``workers`` (those that a process plays), ``run`` and
``keras_run`` (a run's position, what it saves and prints) and what these are made of.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from hora.errors import EnvironmentUnfit, UsageError
from hora.workloads.options import WorkloadOptions

__all__ = ["WORKLOADS", "WorkloadOptions", "options_of", "train_of"]

WORKLOADS = {
    "mnist": "Handwritten digits: TensorFlow's official CNN, or Horovod's small one.",
    "cifar10": "Small photographs: ResNet-56, version 2 or 1, with the course's schedule.",
    "imagenet": "Photographs of 1000 classes: ResNet-50, with the reference study's or Goyal's schedule.",
    "gan3d": "Calorimeter showers: 3DGAN.",
    "synthetic": "Any of the models on random data, to measure speed.",
}


def options_of(name: str) -> type[WorkloadOptions]:
    """The options of a workload. Imports no framework. Raises UsageError if there is none of that name.

    >>> options_of("mnist").of({}).batch
    100
    """
    if name not in WORKLOADS:
        raise UsageError(f"there is no workload {name!r}. It can be {', '.join(WORKLOADS)}.")
    found: type[WorkloadOptions] = importlib.import_module(f"hora.workloads.{name}.options").Options
    return found


def train_of(name: str, framework: str = "torch") -> Callable[[Any], dict[str, Any]]:
    """The function that trains a workload, given its options; returns the final metrics."""
    module = "train"
    if framework == "keras":
        module = "keras_train"
        try:
            importlib.import_module("hora.keras")
        except ImportError as error:
            raise EnvironmentUnfit(f"--framework keras: {error}") from None
    found: Callable[[Any], dict[str, Any]] = importlib.import_module(f"hora.workloads.{name}.{module}").train
    return found
