"""Handles: what was synchronized, what never was one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import hora.torch as hvd
from hora.errors import UsageError


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def test_a_handle_has_one_result() -> None:
    handle = hvd.allreduce_async(torch.ones(2), name="x")
    assert hvd.synchronize(handle).tolist() == [1.0, 1.0]
    assert hvd.synchronize(handle) is None and hvd.poll(handle)  # as Horovod has it


@pytest.mark.parametrize("wrong", [0, -1, 1 << 40, "x", 1.5, None])
@pytest.mark.parametrize("call", [hvd.synchronize, hvd.poll])
def test_what_never_was_one_is_refused(call: object, wrong: object) -> None:
    with pytest.raises(UsageError, match=r"is not a handle\. Pass what an \*_async function returned"):
        call(wrong)  # type: ignore[operator]
