"""Two backends side by side: which does what, and what concerns both. The GPUs are stand-ins, the processes real."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.launch.jobs import run_hora

from hora.engine.backend import Outcome, Pending, RankState, Snapshot
from hora.engine.negotiate import TalkTicket
from hora.engine.request import Request, Segment
from hora.engine.split import SplitBackend
from hora.transport.base import Buffer, DType, Kind

ROOT = Path(__file__).parents[2]
PRELUDE = """
import json, os, sys, threading
import torch
from tests.transport.fake_cuda import FakeCuda
import hora.torch as hvd
from hora.engine import session
from hora.transport import cuda

RANK = int(os.environ["HORA_RANK"])
fake = cuda.device = FakeCuda(is_gpu=lambda t: t.is_floating_point(), identity_of=lambda: f"GPU-{RANK}")

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
    return Request(Kind.ALLREDUCE, name, (Segment(DType.FLOAT32, (3,)),), (0, 1), device=device, line=line)


class Recorder:
    """A backend that only remembers what it was told."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.told: list[tuple[Any, ...]] = []
        self._snapshot = snapshot or Snapshot(0, (), ())

    def submit(self, request: Request, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> TalkTicket:
        self.told.append(("submit", request.name))
        return TalkTicket(request, inputs, outputs)

    def wait(self, ticket: TalkTicket) -> Outcome:
        return Outcome(finished=ticket.request.device)

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
    split.submit(request("cpu"), (), ())
    split.submit(request("mps"), (), ())
    assert not starts
    ticket = split.submit(request("cuda", "allreduce.y"), (), ())
    split.submit(request("cuda", "allreduce.z"), (), ())
    assert starts == [gpu] and split.wait(ticket).finished == "cuda"
    split.leave()
    assert host.told == [("trace", True), ("submit", "allreduce.x"), ("submit", "allreduce.x"), ("leave",)]
    assert gpu.told == [("trace", True), ("submit", "allreduce.y"), ("submit", "allreduce.z"), ("leave",)]


def world(rank: int, device: str, age_s: float = 2.0, waiting: bool = True) -> Snapshot:
    """What a backend sees in which this rank waits for "x" and the other has not come."""
    states = (RankState(rank, 1, True, (("allreduce.x", (0, 1)),) if waiting else ()),)
    pending = Pending("allreduce.x", (0, 1), {rank: request(device)}, age_s, (1 - rank,))
    return Snapshot(1, states, (pending,))


def test_a_tensor_on_the_host_here_and_on_a_gpu_there_fails_on_both_with_the_same_words() -> None:
    host, gpu = Recorder(world(0, "cpu")), Recorder(world(1, "cuda"))
    split = SplitBackend(host, lambda: gpu)  # type: ignore[arg-type,return-value]
    split.submit(request("cuda", "allreduce.y"), (), ())
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
    split.submit(request("cuda", "allreduce.y"), (), ())
    snapshot = split.snapshot()
    assert len(snapshot.pending) == 2 and not any(told[0] == "fail" for told in host.told + gpu.told)


def test_both_at_work_in_one_job_in_the_order_of_streams(tmp_path: Path) -> None:
    program = """
hvd.init()
assert type(session.engine().backend).__name__ == "SplitBackend"
on_host = hvd.allreduce(torch.tensor([RANK]), op=hvd.Sum)
assert not fake.log
handle = hvd.allreduce_async(torch.full((3,), RANK + 1.0), name="x", op=hvd.Sum)
assert ("mark", fake.current.name) in [entry[:2] for entry in fake.log]  # when it was submitted, on the caller's stream
on_gpu = hvd.synchronize(handle)
assert fake.log[-1][:2] == ("follow", fake.current.name) and fake.log[-1][2].stream.name.startswith("mover")
rows = hvd.allgather(torch.ones(RANK + 1, 2))
say(RANK, on_host.item(), on_gpu.tolist(), list(rows.shape))
"""
    assert run(2, program, tmp_path) == [[0, 1, [3.0] * 3, [3, 2]], [1, 1, [3.0] * 3, [3, 2]]]


def test_on_gloo_one_backend_does_both(tmp_path: Path) -> None:
    program = """
hvd.init()
assert type(session.engine().backend).__name__ == "TalkBackend"
on_host = hvd.allreduce(torch.tensor([RANK]), op=hvd.Sum)
on_gpu = hvd.allreduce(torch.full((3,), RANK + 1.0), name="x", op=hvd.Sum)
try:
    hvd.allreduce(torch.ones(3) if RANK else torch.ones(3, dtype=torch.int64), name="y", op=hvd.Sum)
except hvd.MismatchError as error:
    say(RANK, on_host.item(), on_gpu.tolist(), bool(fake.groups))
"""
    expected = [[0, 1, [3.0] * 3, True], [1, 1, [3.0] * 3, True]]
    assert run(2, program, tmp_path, HORA_TRANSPORT="gloo") == expected


def test_devices_that_differ_are_told_in_real_processes(tmp_path: Path) -> None:
    program = """
fake._is_gpu = lambda tensor: RANK == 1
hvd.init()
try:
    hvd.allreduce(torch.ones(3), name="x", op=hvd.Sum)
except hvd.MismatchError as error:
    say(RANK, "rank 0  cpu" in str(error) and "rank 1  cuda" in str(error))
"""
    assert run(2, program, tmp_path) == [[0, True], [1, True]]


def test_a_rank_that_has_joined_is_missed_by_neither(tmp_path: Path) -> None:
    program = """
hvd.init()
sums = []
for step in range(RANK + 1):  # rank 0 has less data, and none on a GPU after its first step
    sums.append(hvd.allreduce(torch.ones(2), name="gpu", op=hvd.Sum)[0].item())
    sums.append(hvd.allreduce(torch.ones(2, dtype=torch.int64), name="host", op=hvd.Sum)[0].item())
last = hvd.join()
say(RANK, sums, last)
"""
    assert run(2, program, tmp_path) == [[0, [2.0, 2], 1], [1, [2.0, 2, 1.0, 1], 1]]


def test_a_death_ends_what_waits_on_a_gpu_and_aborts_nccl(tmp_path: Path) -> None:
    program = """
hvd.init()
hvd.allreduce(torch.ones(2), name="first", op=hvd.Sum)
hvd.barrier()
if RANK == 1:
    os._exit(0)
try:
    hvd.allreduce(torch.ones(2), name="second", op=hvd.Sum)
except hvd.HorovodInternalError as error:
    say("rank 1" in str(error), all(group.aborted for group in fake.groups))
sys.stdout.flush()
os._exit(0)
"""
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + program)
    done = run_hora("run", "-np", "2", sys.executable, script, timeout_s=60, PYTHONPATH=f"{ROOT / 'src'}:{ROOT}")
    assert "[true, true]" in done.stdout, done.stdout + done.stderr
