"""Buffers in a row and back again."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hora.transport.scratch import Scratch, unpack
from hora.types import Buffer, DType


def buffers(arrays: list[np.ndarray]) -> list[Buffer]:
    return [Buffer(array.ctypes.data, DType.UINT8, array.shape, array) for array in arrays]


@given(st.lists(st.binary(max_size=20), max_size=6), st.integers(0, 64))
def test_what_is_packed_is_unpacked(parts: list[bytes], padded: int) -> None:
    scratch = Scratch()
    scratch.take("packed", 64)[:] = 255  # what was there before does not show
    sources = [np.frombuffer(part, "uint8").copy() for part in parts]
    packed = scratch.pack(buffers(sources), padded)
    assert bytes(packed) == b"".join(parts).ljust(padded, b"\0")
    targets = [np.zeros_like(source) for source in sources]
    unpack(packed, buffers(targets))
    assert [bytes(target) for target in targets] == parts
