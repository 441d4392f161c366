"""A pytest plugin that notes which functions of ours each test calls: those tests a mutant meets first.

``HORA_MUTANT_CALLS`` is the file for it: a JSON line a test. What other processes call is not seen.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType

import pytest

_OURS = f"{Path(__file__).resolve().parents[2] / 'src'}{os.sep}"
_names: dict[CodeType, str] = {}
_called: set[str] = set()


def named(file: str, qualname: str) -> str:
    """A function as ``in_python`` names it.

    >>> named("a.py", "C.f.<locals>.g.<locals>.<lambda>")
    'a.py C.f.g'
    """
    words = qualname.replace(".<locals>", "").split(".")
    kept = next((at for at, word in enumerate(words) if word.startswith("<")), len(words))
    return f"{file} {'.'.join(words[:kept])}"


def _note(frame: FrameType, event: str, _: object) -> None:
    code = frame.f_code
    name = _names.get(code)
    if name is None:
        ours = code.co_filename.startswith(_OURS)
        name = _names[code] = named(code.co_filename[len(_OURS) - 4 :], code.co_qualname) if ours else ""
    if name:
        _called.add(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _called.clear()
    began = time.monotonic()
    threading.settrace(_note)
    sys.settrace(_note)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        told = {"test": item.nodeid, "seconds": time.monotonic() - began, "calls": sorted(_called)}
        with open(os.environ["HORA_MUTANT_CALLS"], "a") as file:
            file.write(json.dumps(told) + "\n")
