"""MPI as a mover, in real processes started by Open MPI; every result against the same arithmetic done on the spot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch.jobs import clean_environment

from hora.errors import EnvironmentUnfit
from hora.transport.mpi import MpiMover

pytest.importorskip("mpi4py")
ROOT = Path(__file__).parents[2]
MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")

needs_mpirun = pytest.mark.skipif(MPIRUN is None, reason="there is no mpirun")


def run(body: str, size: int) -> tuple[int, list[list[object]], str]:
    """Exit code, what every rank said, and everything that was printed."""
    assert MPIRUN is not None
    done = subprocess.run(
        [MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(size),
         sys.executable, "-m", "tests.transport.mpi_bodies", body],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    said = sorted(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    return done.returncode, said, done.stdout + done.stderr


@needs_mpirun
@pytest.mark.parametrize(
    ("body", "size"),
    [
        ("reductions", 2),
        ("reductions", 3),
        ("movements", 2),
        ("movements", 4),
        ("in_pieces", 3),
        ("parts_of_the_world", 4),
    ],
)
def test_values(body: str, size: int) -> None:
    code, said, output = run(body, size)
    assert (code, said) == (0, [[rank, []] for rank in range(size)]), output


@needs_mpirun
def test_an_absent_rank_is_an_error_in_time_and_nothing_hangs() -> None:
    _, said, output = run("absence", 3)
    assert said == [[rank, []] for rank in range(3)], output


def test_a_process_that_no_mpi_started_is_refused() -> None:
    program = "from hora.transport.mpi import MpiMover; MpiMover(1, [0, 1])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert f"{EnvironmentUnfit.__name__}: MPI says that this process is number 0 of 1" in done.stderr
    assert MpiMover.__name__ in program


JOB = """
import json, os
import numpy as np
from mpi4py import MPI
from hora.engine import session
from hora.engine.process_set import ProcessSet
from hora.engine.request import OperationSpec, forms
from hora.ops.objects import allgather_object
from hora.types import Buffer, DType, Kind

for _ in range(2):  # MPI outlives a generation
    session.init()
    array = np.full(20_000, session.rank() + 1.0)
    buffer = Buffer(array.ctypes.data, DType.FLOAT64, array.shape, array)
    running = session.engine()
    running.prepare(OperationSpec(Kind.ALLREDUCE, "x", forms([buffer]))).start([buffer], [buffer]).wait()
    session.engine().barrier()
    transport, rank, enabled = running.transport, session.rank(), running.transport.endswith("mpi")
    odd = ProcessSet(MPI.COMM_WORLD.Split(session.rank() % 2, -session.rank())).ranks
    objects = allgather_object({"rank": session.rank()})
    session.shutdown()
session.init(comm=MPI.COMM_WORLD)
size = session.size()
session.shutdown()
os.write(1, json.dumps([rank, array[0], array[-1], transport, enabled, odd, objects, size]).encode() + b"\\n")
"""


@needs_mpirun
def test_a_whole_job_over_mpi(tmp_path: Path) -> None:
    assert MPIRUN is not None
    script = tmp_path / "script.py"
    script.write_text(JOB)
    done = subprocess.run(
        [MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "3", sys.executable, script],
        env=clean_environment(HORA_TRANSPORT="mpi", OMP_NUM_THREADS="1"), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    said = sorted(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    objects, sets = [{"rank": rank} for rank in range(3)], [[0, 2], [1]]
    expected = [[rank, 6.0, 6.0, "mpi", True, sets[rank % 2], objects, 3] for rank in range(3)]
    assert (done.returncode, said) == (0, expected), done.stdout + done.stderr
