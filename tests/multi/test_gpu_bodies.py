"""Every body with tensors that are taken for a GPU's (``tests.transport.fake_cuda``), through both backends at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.multi.body import all_bodies
from tests.multi.crew import ROOT, Crew

# Gradients are not born in shared memory there, and NCCL adds in whatever order is fastest.
NOT_FOR_GPUS = ("optimizer_uneven.gradients_born_in_shared_memory", "allreduce.sums_run_in_rank_order")
ALSO_AT_THREE = ("gather", "joining")


class GpuCrew(Crew):
    """Workers that believe in their GPUs."""

    def _start(self, path: str) -> None:
        self._job = subprocess.Popen(
            [sys.executable, "-m", "hora.cli.main", "run", "-np", str(self.size), sys.executable, "-m",
             "tests.multi.gpu_worker", path],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "HORA_DYNAMIC_PROCESS_SETS": "1",
                 "OMP_NUM_THREADS": "1"},
        )  # fmt: skip


@pytest.fixture(scope="module")
def crews() -> Iterator[dict[int, GpuCrew]]:
    crews: dict[int, GpuCrew] = {}
    yield crews
    for crew in crews.values():
        crew.__exit__()


CASES = [
    pytest.param(name, size, id=f"{size}-{name}")
    for size in (2, 3)
    for name, body in all_bodies().items()
    if size in body.sizes and not body.once and name not in NOT_FOR_GPUS
    if size == 2 or name.startswith(ALSO_AT_THREE)
]


@pytest.mark.parametrize(("name", "size"), CASES)
def test_body(crews: dict[int, GpuCrew], name: str, size: int) -> None:
    if size not in crews or not crews[size].fit:
        for old in crews.values():
            old.__exit__()
        crews.clear()
        crews[size] = GpuCrew(size, "auto").__enter__()
    crews[size].run(name)
