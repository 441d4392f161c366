"""What Python and the core must agree on: numbers are written by native/numbers.py, widths and calls compared here."""

from __future__ import annotations

import ctypes
import re
import runpy
from pathlib import Path

from hora.transport import shm
from hora.types import DType, Kind

NATIVE = Path(__file__).parents[2] / "native"
NUMBERS = runpy.run_path(str(NATIVE / "numbers.py"))


def test_numbers_are_those_of_the_header() -> None:
    assert NUMBERS["main"](check=True) == []


def test_a_number_that_differs_is_rewritten() -> None:
    constants, enums = NUMBERS["read_header"]()
    assert constants["HORA_ABI"] == str(shm.ABI) and list(enums["kind"]) == [kind.name for kind in Kind]
    text = "A = 1  # core.h: MAX_HERE; why\n\n    # core.h: enum trace TRACE_\n    BEGIN = 9  # began\n    OLD = 1\n\n"
    assert NUMBERS["rewrite"](text, constants, enums) == (
        "A = 512  # core.h: MAX_HERE; why\n\n    # core.h: enum trace TRACE_\n    SUBMITTED = 0\n    ARRIVED = 1\n"
        "    AGREED = 2\n    BEGIN = 3  # began\n    END = 4\n\n"
    )


def test_widths_of_element_types() -> None:
    sources = "".join(path.read_text() for path in sorted(NATIVE.glob("*.c")))
    (listed,) = re.findall(r"item_bytes\[DTYPES\] = \{([\d, ]+)\}", sources)
    assert [int(width) for width in listed.split(",")] == [dtype.itemsize for dtype in DType]


def test_calls() -> None:
    """Every function of hora.h, with what it takes and gives; pointers of all kinds are one."""
    kinds = {
        "int": ctypes.c_int, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64, "uint32_t": ctypes.c_uint32,
        "double": ctypes.c_double, "void": None,
    }  # fmt: skip
    header = re.sub(r"/\*.*?\*/", "", (NATIVE / "hora.h").read_text(), flags=re.S)
    there = {}
    for result, name, arguments in re.findall(r"^API ([\w\s*]+?)hora_(\w+)\((.*?)\);", header, re.M | re.S):
        listed = [] if arguments.strip() == "void" else arguments.split(",")
        there[name] = (_kind(result, kinds), tuple(_kind(part, kinds) for part in listed))
    here = {
        name: (_plain(result), tuple(map(_plain, arguments))) for name, (result, arguments) in shm._FUNCTIONS.items()
    }
    assert there == here


def _kind(text: str, kinds: dict[str, object]) -> object:
    return "pointer" if "*" in text else kinds[text.replace("const", "").split()[0]]


def _plain(kind: object) -> object:
    return "pointer" if kind in (ctypes.c_void_p, ctypes.c_char_p) else kind
