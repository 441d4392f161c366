"""The command that a person would type: short, and it gives the same run."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec
import pytest

from hora.cli.main import parse
from hora.cli.train import read_options
from hora.lab.records.typed import typed_command
from hora.workloads import options_of
from hora.workloads.folder import RunFile


@pytest.mark.parametrize(
    ("workload", "given", "workers", "expected"),
    [
        ("mnist", {}, 1, "hora train mnist"),
        ("mnist", {"epochs": 2.5, "out": "runs/my run"}, 2, "hora train mnist -np 2 --epochs 2.5 --out 'runs/my run'"),
        ("mnist", {"network": "horovod"}, 1, "hora train mnist --network horovod"),  # brings its own batch and rate
        ("mnist", {"tensorboard": True, "overwrite": True}, 4, "hora train mnist -np 4 --tensorboard"),
        ("gan3d", {"analysis": True, "batch": 8}, 1, "hora train gan3d --batch 8 --analysis"),
    ],
)
def test_it_is_short_and_gives_the_same_run(workload: str, given: dict[str, Any], workers: int, expected: str) -> None:
    options = msgspec.to_builtins(options_of(workload).of(given))
    file = RunFile(workload=workload, options=options, plan={}, workers=workers)
    assert shlex.join(typed_command(file)) == expected
    _, read = parse(typed_command(file)[1:])
    same = msgspec.to_builtins(read_options(workload, read))
    assert same | {"overwrite": False} == options | {"overwrite": False}


def test_a_record_of_something_else_is_no_error() -> None:
    file = RunFile(workload="mine", options={"x": 1}, plan={}, workers=2)
    assert typed_command(file) == ["hora", "train", "mine", "-np", "2"]
