"""Two backends side by side: which does what, and what concerns both. The devices are stand-ins, the processes real."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.device.need import needs_standin
from tests.launch.jobs import run_hora

from hora.engine.backend import Backend, Operation, Pending, RankState, Snapshot
from hora.engine.request import Request, TensorSpec
from hora.engine.split import SplitBackend
from hora.types import DType, Kind

ROOT = Path(__file__).parents[2]
PRELUDE = """
import json, os, sys, threading
import torch
from tests import device as standin
from tests.device import nccl
import hora.torch as hvd
from hora.engine import session
from hora.transport import device

nccl.install()
RANK = int(os.environ["HORA_RANK"])
WHERE = device.current(int(os.environ["HORA_LOCAL_RANK"]), "standin")

def say(*words):
    os.write(1, json.dumps(words).encode() + b"\\n")
"""


def run(size: int, program: str, tmp_path: Path, **environment: str) -> list[list[Any]]:
    """What the workers said, sorted; the job must succeed."""
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + program)
    path = f"{ROOT / 'src'}:{ROOT}"
    done = run_hora("run", "-np", str(size), sys.executable, script, timeout_s=90, PYTHONPATH=path, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.partition("<stdout>:")[2] or line for line in done.stdout.splitlines()]
    return sorted(json.loads(line) for line in said if line.startswith("["))


def request(device: str, name: str = "allreduce.x", line: str = "a.py:1") -> Request:
    return Request(Kind.ALLREDUCE, name, (TensorSpec(DType.FLOAT32, (3,)),), (0, 1), device=device, line=line)


class Recorder(Backend):
    """A backend that only remembers what it was told."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.told: list[tuple[Any, ...]] = []
        self._snapshot = snapshot or Snapshot(0, (), ())

    def prepare(self, request: Request) -> Operation:
        self.told.append((request.name, request.device))
        return Operation()

    def trace(self, on: bool) -> None:
        self.told.append(("trace", on))

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def fail(self, pending: Pending, kind: str, text: str) -> None:
        self.told.append(("fail", pending.missing, kind, text))

    def leave(self) -> None:
        self.told.append(("leave",))


def test_operations_go_to_the_backend_of_their_device_and_the_second_is_started_when_needed() -> None:
    host, gpu = Recorder(), Recorder()
    starts: list[Recorder] = []
    split = SplitBackend(host, lambda: starts.append(gpu) or gpu)  # type: ignore[arg-type,func-returns-value]
    split.trace(True)
    split.prepare(request("cpu"))
    split.prepare(request("mps"))
    assert not starts
    split.prepare(request("cuda", "allreduce.y"))
    split.prepare(request("cuda", "allreduce.z"))
    assert starts == [gpu]
    split.leave()
    assert host.told == [
        ("trace", True),
        ("allreduce.x", "cpu"),
        ("allreduce.x", "mps"),
        ("leave",),
    ]
    assert gpu.told == [
        ("trace", True),
        ("allreduce.y", "cuda"),
        ("allreduce.z", "cuda"),
        ("leave",),
    ]


def world(rank: int, device: str, age_s: float = 2.0, waiting: bool = True) -> Snapshot:
    """What a backend sees in which this rank waits for "x" and the other has not come."""
    states = (RankState(rank, 1, True, (("allreduce.x", (0, 1)),) if waiting else ()),)
    pending = Pending("allreduce.x", (0, 1), {rank: request(device)}, age_s, (1 - rank,))
    return Snapshot(1, states, (pending,))


def test_a_tensor_on_the_host_here_and_on_a_gpu_there_fails_on_both_with_the_same_words() -> None:
    host, gpu = Recorder(world(0, "cpu")), Recorder(world(1, "cuda"))
    split = SplitBackend(host, lambda: gpu)  # type: ignore[arg-type,return-value]
    split.prepare(request("cuda", "allreduce.y"))
    assert not any(state.blocked for state in split.snapshot().ranks)
    (_, missing_here, kind, text), (_, missing_there, same_kind, same_text) = host.told[-1], gpu.told[-1]
    assert (missing_here, missing_there, kind, text) == ((1,), (0,), same_kind, same_text)
    assert kind == "mismatch" and "Mismatched devices" in text and "rank 0  cpu" in text and "rank 1  cuda" in text


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (world(0, "cpu", age_s=0.1), world(1, "cuda")),  # the other rank may yet come
        (world(0, "cpu"), world(0, "cuda")),  # one rank submitted both: two operations of one name
        (world(0, "cpu", waiting=False), world(1, "cuda", waiting=False)),  # nobody waits
    ],
)
def test_what_may_still_be_right_is_left_alone(here: Snapshot, there: Snapshot) -> None:
    host, gpu = Recorder(here), Recorder(there)
    split = SplitBackend(host, lambda: gpu)  # type: ignore[arg-type,return-value]
    split.prepare(request("cuda", "allreduce.y"))
    snapshot = split.snapshot()
    assert len(snapshot.pending) == 2 and not any(told[0] == "fail" for told in host.told + gpu.told)


@needs_standin
def test_both_at_work_in_one_job_in_the_order_of_streams(tmp_path: Path) -> None:
    program = """
hvd.init()
assert type(session.engine().backend).__name__ == "SplitBackend"
on_host = hvd.allreduce(torch.tensor([RANK]), op=hvd.Sum)
assert not nccl.recorded
stream = device.stream(WHERE)
with device.on(stream):  # the caller's stream is whichever is current when it calls
    tensor = torch.full((3,), RANK + 1.0, device=WHERE)
    handle = hvd.allreduce_async(tensor, name="x", op=hvd.Sum)
    on_gpu = hvd.synchronize(handle)
    doubled = on_gpu * 2
try:
    doubled.tolist()
except RuntimeError as error:
    assert "without having waited" in str(error)
stream.synchronize()
rows = hvd.allgather(torch.ones(RANK + 1, 2, device=WHERE))
assert len(standin.faults()) == 1
say(RANK, on_host.item(), doubled.tolist(), list(rows.shape))
"""
    assert run(2, program, tmp_path) == [[0, 1, [6.0] * 3, [3, 2]], [1, 1, [6.0] * 3, [3, 2]]]


@needs_standin
def test_on_gloo_one_backend_does_both(tmp_path: Path) -> None:
    program = """
hvd.init()
assert type(session.engine().backend).__name__ == "MessageBackend"
on_host = hvd.allreduce(torch.tensor([RANK]), op=hvd.Sum)
on_gpu = hvd.allreduce(torch.full((3,), RANK + 1.0, device=WHERE), name="x", op=hvd.Sum)
try:
    hvd.allreduce(torch.ones(3, device=WHERE if RANK else "cpu"), name="y", op=hvd.Sum)
except hvd.MismatchError as error:
    say(RANK, on_host.item(), on_gpu.tolist(), bool(nccl.groups))
"""
    expected = [[0, 1, [3.0] * 3, True], [1, 1, [3.0] * 3, True]]
    assert run(2, program, tmp_path, HORA_TRANSPORT="gloo") == expected


@needs_standin
def test_devices_that_differ_are_told_in_real_processes(tmp_path: Path) -> None:
    program = """
hvd.init()
try:
    hvd.allreduce(torch.ones(3, device=WHERE if RANK else "cpu"), name="x", op=hvd.Sum)
except hvd.MismatchError as error:
    say(RANK, "rank 0  cpu" in str(error) and "rank 1  standin" in str(error))
"""
    assert run(2, program, tmp_path) == [[0, True], [1, True]]


@needs_standin
def test_a_rank_that_has_joined_is_missed_by_neither(tmp_path: Path) -> None:
    program = """
hvd.init()
sums = []
for step in range(RANK + 1):  # rank 0 has less data, and none on a GPU after its first step
    sums.append(hvd.allreduce(torch.ones(2, device=WHERE), name="gpu", op=hvd.Sum)[0].item())
    sums.append(hvd.allreduce(torch.ones(2, dtype=torch.int64), name="host", op=hvd.Sum)[0].item())
last = hvd.join()
say(RANK, sums, last)
"""
    assert run(2, program, tmp_path) == [[0, [2.0, 2], 1], [1, [2.0, 2, 1.0, 1], 1]]


@needs_standin
def test_a_death_ends_what_waits_on_a_gpu_and_aborts_nccl(tmp_path: Path) -> None:
    program = """
hvd.init()
hvd.allreduce(torch.ones(2, device=WHERE), name="first", op=hvd.Sum)
hvd.barrier()
if RANK == 1:
    os._exit(0)
try:
    hvd.allreduce(torch.ones(2, device=WHERE), name="second", op=hvd.Sum)
except hvd.HorovodInternalError as error:
    say("rank 1" in str(error), all(group.aborted for group in nccl.groups))
sys.stdout.flush()
os._exit(0)
"""
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + program)
    done = run_hora("run", "-np", "2", sys.executable, script, timeout_s=60, PYTHONPATH=f"{ROOT / 'src'}:{ROOT}")
    assert "[true, true]" in done.stdout, done.stdout + done.stderr


def test_who_joins_is_seen_on_the_host_before_the_gpu() -> None:
    """So whoever still works with others that have joined, on either, is the last to join the host's."""
    order: list[str] = []

    class Host:
        narrows = finds_not_finite = shares_memory = False

        def join(self, average_active: bool, begun: Callable[[], None]) -> int:
            order.append("host")
            begun()
            return 2

    class Gpu:
        def trace(self, on: bool) -> None: ...

        def join(self, average_active: bool) -> int:
            order.append("gpu")
            return 0

    split = SplitBackend(Host(), Gpu)  # type: ignore[arg-type]
    assert split.join(False) == 2 and order == ["host", "gpu"]
