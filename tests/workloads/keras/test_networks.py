"""ImageNet's and 3DGAN's networks in Keras: each body of ``bodies_networks`` is a test, all of a backend one job. Those
of MNIST and CIFAR-10 are tried in ``test_keras_run``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.workloads.keras.conftest import Jobs, cases


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    folder = tmp_path_factory.mktemp("networks")
    yield Jobs("tests.workloads.keras.bodies_networks", folder, folder, timeout_s=200)


@pytest.mark.long
@pytest.mark.timeout(220)  # on a busy machine; a quiet one needs 35
@pytest.mark.parametrize(("backend", "workers", "body"), cases(Path(__file__).with_name("bodies_networks.py")))
def test_body(jobs: Jobs, backend: str, workers: int, body: str) -> None:
    jobs.check(backend, workers, body)
