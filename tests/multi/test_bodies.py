"""Every body, at all its sizes and on all its transports: each a test of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.multi.body import SIZES, all_bodies
from tests.multi.crew import Crew

from hora.transport.fabric import library

TRANSPORTS = ("shm", "gloo", "shm+tcp", "shm+ucx", "shm+gloo")
BODIES = all_bodies()


class Crews:
    """The crew at work now; another replaces it when another size or transport is asked for, or when it is unfit."""

    def __init__(self) -> None:
        self._crew: Crew | None = None

    def get(self, size: int, transport: str) -> Crew:
        crew = self._crew
        if crew is None or not crew.fit or (crew.size, crew.transport) != (size, transport):
            self.close()
            crew = self._crew = Crew(size, transport).__enter__()
        return crew

    def close(self) -> None:
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.__exit__()


@pytest.fixture(scope="module")
def crews() -> Iterator[Crews]:
    crews = Crews()
    yield crews
    crews.close()


# What takes long, and is tried with fewer ranks as well.
LONG = {
    "shm-4-allreduce.every_dtype_and_op",
    "gloo-3-allreduce.every_dtype_and_op",
}


def _case(name: str, size: int, transport: str) -> Any:
    case = f"{transport}-{size}-{name}"
    return pytest.param(name, size, transport, id=case, marks=[pytest.mark.long] if case in LONG else [])


CASES = [
    _case(name, size, transport)
    for transport in TRANSPORTS
    for size in SIZES
    for name, body in BODIES.items()
    if body.runs(transport, size)
]


@pytest.mark.parametrize(("name", "size", "transport"), CASES)
def test_body(crews: Crews, name: str, size: int, transport: str) -> None:
    if transport == "shm+ucx" and not library():
        pytest.skip("UCX is not installed")
    crews.get(size, transport).run(name)
