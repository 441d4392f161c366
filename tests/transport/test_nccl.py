"""The mover for GPUs on the stand-in device and with what plays NCCL: values, what goes through the host, the order of
streams and of NCCL's calls. It runs in a process of its own (``nccl_bodies``): a device cannot be taken away again."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
from tests.device.need import needs_standin  # noqa: E402

from hora.transport import device  # noqa: E402
from hora.transport.gloo import GlooMover  # noqa: E402
from hora.transport.nccl import NcclMover  # noqa: E402
from hora.types import Buffer, DType, ReduceOp  # noqa: E402

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("nccl_bodies.py")
BODIES = [
    node.name
    for node in ast.parse(SOURCE.read_text()).body
    if isinstance(node, ast.FunctionDef)
    if any(isinstance(mark, ast.Name) and mark.id == "body" for mark in node.decorator_list)
]


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.transport.nccl_bodies"], cwd=ROOT, capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@needs_standin
@pytest.mark.parametrize("name", BODIES)
def test_on_the_stand_in(said: dict[str, str], name: str) -> None:
    assert said[name] == "", said[name]


def test_the_calls_are_those_of_this_torch() -> None:
    """Torch binds them for all backends alike; what plays NCCL makes each of them on Gloo, but for this one."""
    signature = str(dist.ProcessGroupGloo._reduce_scatter_base.__doc__)
    assert "outputTensor: torch.Tensor, inputTensor: torch.Tensor, opts: " in signature
    assert "ReduceScatterOptions" in signature
    assert hasattr(dist.ReduceScatterOptions(), "reduceOp") and hasattr(dist.AllreduceOptions(), "reduceOp")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="hardware: no GPU")
def test_on_a_real_gpu_a_group_of_one_reduces_and_ends() -> None:
    from tests.transport.test_gloo import Store

    store, values = Store(), torch.arange(5.0, device="cuda")
    mover = NcclMover(0, GlooMover(0, store), store)
    ready = device.mark(values.device)
    buffer = Buffer(values.data_ptr(), DType.FLOAT32, (5,), values, "cuda", ready)
    mover.allreduce(
        [buffer], [buffer], op=ReduceOp.SUM, prescale=1.0, postscale=1.0, members=(0,), contributors=(0,), divisor=1
    )
    device.follow(mover.mark(), values.device)
    assert values.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    mover.close()
