"""The C core's reductions against numpy's, bit by bit, for every type, operation and factor."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.native.simulator import NATIVE

from hora.transport import arithmetic, shm
from hora.transport.kernels import reduce_parts
from hora.types import DType, ReduceOp

OPS = [ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT]


@pytest.fixture(autouse=True)
def core() -> None:
    if not shm.available():
        pytest.skip(shm.why_not())


@given(
    dtype=st.sampled_from(list(DType)),
    op=st.sampled_from(OPS),
    ranks=st.integers(1, 5),
    count=st.sampled_from([0, 1, 7, 33, 1000]),
    scales=st.sampled_from([(1.0, 1.0), (0.5, 3.0)]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_same_bits(
    dtype: DType, op: ReduceOp, ranks: int, count: int, scales: tuple[float, float], seed: int
) -> None:
    generator = np.random.default_rng(seed)
    small = generator.integers(0, 8, (ranks, count))  # products of small integers are exact in every type
    if dtype is DType.BFLOAT16:
        parts = [(row.astype("float32").view("uint32") >> 16).astype("uint16") for row in small]
    else:
        parts = [row.astype(dtype.numpy) for row in small]
    expected = arithmetic.reduce_parts(parts, dtype, op, *scales, ranks)
    np.testing.assert_array_equal(reduce_parts(parts, dtype, op, *scales, ranks), expected)


def test_parts_with_gaps_are_summed_too() -> None:
    wide = np.arange(12, dtype="float32").reshape(6, 2)
    found = reduce_parts([wide[:, 0], wide[:, 1]], DType.FLOAT32, ReduceOp.SUM, 1.0, 1.0, 1)
    np.testing.assert_array_equal(found, wide.sum(axis=1))


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
def test_without_what_only_some_processors_have(tmp_path: Path) -> None:
    """Halves, as a processor without instructions for them computes: every half, and floats between any two."""
    sources = [str(path) for path in sorted(NATIVE.glob("*.c"))]
    command = ["cc", "-O0", "-std=gnu11", "-fPIC", "-shared", "-ffp-contract=off", "-DHORA_PORTABLE", f"-I{NATIVE}"]
    subprocess.run([*command, *sources, "-o", tmp_path / "core.so", "-lm", "-ldl"], check=True, timeout=300)
    lib = shm.Library(tmp_path / "core.so")
    halves = np.arange(1 << 16, dtype="uint16").view("float16")
    wide = np.full(halves.size + 1, 7, "float32")
    lib.widen(wide.ctypes.data, halves.ctypes.data, halves.size, DType.FLOAT16)
    np.testing.assert_array_equal(wide[:-1], halves.astype("float32"))
    with np.errstate(all="ignore"):
        floats = np.concatenate([wide[:-1], np.nextafter(wide[:-1], np.float32(0)), wide[:-1] * np.float32(1.0003)])
    narrow = np.full(floats.size + 1, 7, "float16")
    lib.narrow(narrow.ctypes.data, floats.ctypes.data, floats.size, DType.FLOAT16)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(narrow[:-1], floats.astype("float16"))
    assert (wide[-1], narrow[-1]) == (7, 7)  # and nothing behind them is touched
    parts = [np.arange(33, dtype="float16"), np.arange(33, dtype="float16") / 2]
    addresses = (ctypes.c_void_p * 2)(*(part.ctypes.data for part in parts))
    out = np.full(34, 7, "float16")
    lib.reduce(out.ctypes.data, addresses, 2, 33, DType.FLOAT16, ReduceOp.SUM, 1.0, 1.0, 1.0)
    np.testing.assert_array_equal(out, np.append(parts[0] + parts[1], np.float16(7)))
