"""A world of one rank."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hora.torch as hvd


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()
