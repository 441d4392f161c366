"""Every body of ``tests/jax/bodies``, each a test of its own. No JAX in this process."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from tests.jax.worker import EVERYWHERE, SUBJECTS
from tests.multi.crew import Crew
from tests.multi.serve import names_in

START_TIMEOUT_S = 100.0
CASES = [
    pytest.param(layout, name, id=f"{layout[0]}-{layout[1]}-{name}")
    for layout in EVERYWHERE
    for subject, layouts in SUBJECTS.items()
    if layout in layouts
    for name in names_in(f"tests.jax.bodies.{subject}")
]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")


class Crews:
    """The crew at work now; another replaces it when another layout is asked for, or when it is unfit."""

    def __init__(self) -> None:
        self._crew: Crew | None = None

    def get(self, transport: str, size: int) -> Crew:
        crew = self._crew
        if crew is None or not crew.fit or (crew.transport, crew.size) != (transport, size):
            self.close()
            crew = self._crew = Crew(size, transport, "tests.jax.worker", START_TIMEOUT_S).__enter__()
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


@pytest.mark.parametrize(("layout", "name"), CASES)
def test_body(crews: Crews, layout: tuple[str, int], name: str) -> None:
    crews.get(*layout).run(name)
