"""Every body with its tensors on a stand-in device (``tests.device``), moved by what plays NCCL."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.device.need import needs_standin
from tests.multi.body import all_bodies
from tests.multi.crew import ROOT, Crew

pytestmark = needs_standin

# Gradients are not allocated in shared memory there, and NCCL adds in whatever order is fastest. The stand-in has no
# sparse
# tensors, and what scales losses in one body looks for them on the CPU. Five look at what the core finds.
NOT_FOR_DEVICES = (
    "optimizer_uneven.gradients_born_in_shared_memory",
    "allreduce.sums_run_in_rank_order",
    "allreduce.sparse",
    "mistakes.sparse_tensors_of_different_shapes",
    "mistakes.tensors_that_cannot_be_carried",
    "objects.broadcast_optimizer_state_of_every_optimizer",
    "optimizer_beside.scaled_losses",
    "optimizer_beside.too_many_passes",  # a gradient is written while it is reduced: an error of the stand-in first
    "optimizer_beside.zero_grad_too_early",  # as well
    "guards.found_after_a_join",
    "guards.in_process_sets",
    "guards.one_element_on_one_rank",
    "guards.several_ranks_and_skip",
    "optimizer_guarded.named_in_the_step_in_which_it_happens",
    "sync_batch_norm.sixteen_bits",  # compares with a kernel of the device's
    "optimizer_uneven.sparse_gradients",
    "optimizer_uneven.sparse_here_and_dense_there",
)
# The stand-in is slow: every operation is a copy to the host and back. What is not named here is for make test-long.
ALWAYS = (
    "allreduce.every_form", "allreduce.adasum", "allreduce.groups", "allreduce.tensors_that_are_not_contiguous",
    "allreduce.integer_averages", "gather.alltoall_uneven", "gather.broadcast_every_shape",
    "gather.reducescatter_groups", "gradients.allgather", "joining", "optimizer.accumulation", "optimizer.clipping",
    "optimizer.compressed", "optimizer_guarded.steps", "sync_batch_norm.a_whole_model",
)  # fmt: skip
ALSO_AT_THREE = ("gather", "joining")


class DeviceCrew(Crew):
    """Workers with a device each."""

    def _start(self, path: str) -> None:
        self._job = subprocess.Popen(
            [sys.executable, "-m", "hora.cli.main", "run", "-np", str(self.size), sys.executable, "-m",
             "tests.multi.device_worker", path],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1",
                 "STANDIN_DEVICES": str(self.size)},
        )  # fmt: skip


@pytest.fixture(scope="module")
def crews() -> Iterator[dict[int, DeviceCrew]]:
    crews: dict[int, DeviceCrew] = {}
    yield crews
    for crew in crews.values():
        crew.__exit__()


CASES = [
    pytest.param(name, size, id=f"{size}-{name}", marks=() if name.startswith(ALWAYS) else pytest.mark.long)
    for size in (2, 3)
    for name, body in all_bodies().items()
    if size in body.sizes and not body.once and name not in NOT_FOR_DEVICES
    if size == 2 or name.startswith(ALSO_AT_THREE)
]


@pytest.mark.parametrize(("name", "size"), CASES)
def test_body(crews: dict[int, DeviceCrew], name: str, size: int) -> None:
    if size not in crews or not crews[size].fit:
        for old in crews.values():
            old.__exit__()
        crews.clear()
        crews[size] = DeviceCrew(size, "auto").__enter__()
    crews[size].run(name)
