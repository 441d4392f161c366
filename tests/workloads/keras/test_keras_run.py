"""Keras's workloads in real workers: each body of ``bodies`` is a test, all of a backend and a number of workers one
job. And what can be found out without Keras."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.workloads import tiny
from tests.workloads.keras.conftest import TIMEOUT_S, Jobs, cases

from hora.errors import UsageError
from hora.workloads import options_of

TOGETHER = "workers_together_are_one_with_a_larger_batch"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Iterator[Jobs]:
    yield Jobs("tests.workloads.keras.bodies", digits, tmp_path_factory.mktemp("keras"))


@pytest.mark.parametrize(("backend", "workers", "body"), cases(Path(__file__).with_name("bodies.py")))
def test_body(jobs: Jobs, backend: str, workers: int, body: str) -> None:
    jobs.check(backend, workers, body)


@pytest.mark.long
@pytest.mark.timeout(2 * TIMEOUT_S + 30)
def test_two_workers_are_one_with_twice_the_batch(jobs: Jobs) -> None:
    one, two = (np.load(jobs.folder("tensorflow", number) / TOGETHER / "state.npz") for number in (1, 2))
    assert one.files == two.files
    for name in one.files:
        np.testing.assert_allclose(two[name], one[name], rtol=1e-4, atol=1e-5)


def test_what_keras_does_not_do_is_refused() -> None:
    with pytest.raises(UsageError, match="--emulate-workers 4 with --framework keras"):
        options_of("mnist").of({"framework": "keras", "emulate_workers": 4})
    with pytest.raises(UsageError, match="the synthetic workload is of torch"):
        options_of("synthetic").of({"framework": "keras"})


def test_torchs_run_tells_a_checkpoint_of_keras(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-1.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    with pytest.raises(UsageError, match=r"checkpoint-1\.h5 is a checkpoint of --framework keras"):
        tiny.train(tiny.Options.of({"out": str(tmp_path / "out"), "resume": str(tmp_path / "checkpoint-1.h5")}))
