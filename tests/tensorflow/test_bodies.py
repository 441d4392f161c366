"""Every body of ``tests/tensorflow/bodies``, at all sizes: each a test of its own. No TensorFlow in this process."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
from tests.multi.crew import Crew
from tests.multi.serve import names_in
from tests.tensorflow.worker import SUBJECTS

START_TIMEOUT_S = 200.0  # importing TensorFlow takes seconds, on a busy machine many
# Which subjects are tried where: all of them with two workers, others where the number or the transport matters.
LAYOUTS: dict[tuple[str, int], tuple[str, ...]] = {
    ("shm", 1): ("collectives", "surface"),
    ("shm", 2): SUBJECTS,
    ("shm", 3): ("collectives", "graphs"),
    ("gloo", 2): ("collectives",),
}

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
    pytest.mark.timeout(300),  # the first body of a layout waits for its crew
]


class Crews:
    """The crew at work now; another replaces it when another layout is asked for, or when it is unfit."""

    def __init__(self) -> None:
        self._crew: Crew | None = None

    def get(self, transport: str, size: int) -> Crew:
        crew = self._crew
        if crew is None or not crew.fit or (crew.transport, crew.size) != (transport, size):
            self.close()
            crew = self._crew = Crew(size, transport, "tests.tensorflow.worker", START_TIMEOUT_S).__enter__()
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


# What takes long, and is tried with two workers in shared memory as well.
LONG = {f"{layout}-collectives.every_collective_on_every_type" for layout in ("shm-3", "gloo-2")}


def _case(transport: str, size: int, name: str) -> Any:
    case = f"{transport}-{size}-{name}"
    return pytest.param(transport, size, name, id=case, marks=[pytest.mark.long] if case in LONG else [])


CASES = [
    _case(transport, size, name)
    for (transport, size), subjects in LAYOUTS.items()
    for subject in subjects
    for name in names_in(f"tests.tensorflow.bodies.{subject}")
]


@pytest.mark.parametrize(("transport", "size", "name"), CASES)
def test_body(crews: Crews, transport: str, size: int, name: str) -> None:
    crews.get(transport, size).run(name)
