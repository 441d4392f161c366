"""One rank of a crew: runs the bodies it is told to and reports. No framework is imported here.

It is told which body to run, and reports the result, over a Unix socket of the test process and not through Hora, so
that a body that breaks a collective cannot take the reporting with it. One JSON object a line, both ways.
"""

from __future__ import annotations

import ast
import faulthandler
import importlib
import json
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]


def serve(
    path: str, hvd: Any, bodies: Mapping[str, Callable[[Any, int, int], None]], before: Callable[[int], object]
) -> None:
    """Run bodies until the line ends; ``before`` is called with the rank before each of them."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        lines = connection.makefile("rw", buffering=1)
        print(json.dumps({"rank": rank}), file=lines)
        for line in lines:
            task = json.loads(line)
            # A body that hangs must say where before the test process gives up on the crew.
            faulthandler.dump_traceback_later(task["timeout_s"], file=sys.stderr)
            failure = ""
            try:
                if not hvd.is_initialized():
                    hvd.init()
                before(rank)
                bodies[task["body"]](hvd, rank, size)
            except BaseException:
                failure = traceback.format_exc()
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps({"rank": rank, "failure": failure}), file=lines)
    hvd.shutdown()


def names_in(module: str) -> list[str]:
    """The bodies of a module, ``file.function``, found without importing it: the test process has no framework."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    functions = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    return [f"{path.stem}.{name}" for name in functions if not name.startswith("_")]


def bodies_in(*modules: str) -> dict[str, Callable[[Any, int, int], None]]:
    """The same, imported."""
    loaded: list[ModuleType] = [importlib.import_module(module) for module in modules]
    return {name: getattr(module, name.partition(".")[2]) for module in loaded for name in names_in(module.__name__)}
