"""Bodies of tests, run on all ranks of a job: ``python -m tests.workloads.keras.bodies_… DATA FOLDER``.

FOLDER/rank-N.json has what went wrong in each, or nothing; ``conftest.Jobs`` starts such jobs and looks at it.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import hora.keras as hvd
from hora.engine import preempt
from hora.workloads import agree

Body = Callable[[Path, Path], None]
BODIES: dict[int, dict[str, Body]] = {1: {}, 2: {}}


def on(*numbers: int) -> Callable[[Body], Body]:
    """Run it with so many workers."""

    def note(body: Body) -> Body:
        for number in numbers:
            BODIES[number][body.__name__] = body
        return body

    return note


def main() -> None:
    """Run them all, each in a generation of its own."""
    data, folder = map(Path, sys.argv[1:])
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    found: dict[str, str] = {}

    def told(name: str, how: str) -> None:  # with every body: one that ends the process takes only itself with it
        found[name] = how
        (folder / f"rank-{rank}.json").write_text(json.dumps(found))

    for name, body in BODIES[size].items():
        told(name, "the process ended in it")
        try:
            (folder / name).mkdir(exist_ok=True)
            body(data, folder / name)
            told(name, "")
        except BaseException:
            told(name, traceback.format_exc())
        preempt._forget()
        hvd.shutdown()
        hvd.init()
        agree.everywhere(lambda: None)
    hvd.shutdown()
