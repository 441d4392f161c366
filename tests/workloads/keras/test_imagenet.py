"""ImageNet with Keras: a run in two workers, and what is refused before one starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.workloads.imagenet.conftest import write_pictures
from tests.workloads.keras.conftest import Jobs, cases

from hora.data.generated import mark_generated
from hora.errors import UsageError
from hora.workloads.imagenet.options import Options


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    folder = tmp_path_factory.mktemp("imagenet")
    write_pictures(folder / "data" / "train", 16, seed=1)
    write_pictures(folder / "data" / "val", 3, seed=2)
    (folder / "data" / "val" / "n00000003" / "2.JPEG").unlink()  # so that two workers cannot divide them evenly
    mark_generated(folder / "data", generator="stripes", seed=1)
    yield Jobs("tests.workloads.keras.bodies_imagenet", folder / "data", folder, timeout_s=200)


@pytest.mark.timeout(220)  # on a busy machine; a quiet one needs 20
@pytest.mark.parametrize(("backend", "workers", "body"), cases(Path(__file__).with_name("bodies_imagenet.py")))
def test_body(jobs: Jobs, backend: str, workers: int, body: str) -> None:
    jobs.check(backend, workers, body)


def test_what_keras_does_not_have_is_refused() -> None:
    for given in ({"optimizer": "lars"}, {"schedule": "lars"}):
        with pytest.raises(UsageError, match=rf"--{next(iter(given))} lars with --framework keras: Keras has no LARS"):
            Options.of({"framework": "keras", **given})
    assert Options.of({"framework": "keras", "schedule": "goyal"}).batch == 32
