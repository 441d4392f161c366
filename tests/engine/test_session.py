"""``init`` to ``shutdown`` in real processes, under Hora's launcher and under others'."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch.jobs import clean_environment, hora, run_hora
from tests.prompt import PROMPT_S

from hora import basics
from hora.config.settings import Settings, Transport
from hora.engine import hosttable, process_set, session
from hora.engine.meet import Meeting
from hora.errors import EnvironmentUnfit, NotInitializedError, UsageError
from hora.transport import shm
from hora.wire.messages import Peer

PRELUDE = """
import json, os, sys
import numpy as np
from hora import basics
from hora.engine import process_set, session
from hora.engine.request import OperationSpec, forms
from hora.types import Buffer, DType, Kind

def total(value, **more):
    array = np.full(3, float(value))
    buffer = Buffer(array.ctypes.data, DType.FLOAT64, array.shape, array)
    engine = session.engine()
    engine.prepare(OperationSpec(Kind.ALLREDUCE, "sum", forms([buffer]), **more)).start([buffer], [buffer]).wait()
    return array[0]

def say(*words):
    os.write(1, json.dumps(words).encode() + b"\\n")  # in one piece: some launchers do not keep lines apart
"""


def run(size: int, program: str, tmp_path: Path, **environment: str) -> list[list[object]]:
    """What the workers said, sorted; the job must succeed."""
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + program)
    done = run_hora("run", "-np", str(size), sys.executable, script, timeout_s=60, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(_said(done.stdout))


def _said(text: str) -> list[list[object]]:
    return [
        json.loads(line[line.index("[", 1 if line[:2] in ("[0", "[1", "[2", "[3") else 0) :])
        for line in text.splitlines()
    ]


@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_init_again_after_shutdown(tmp_path: Path, transport: str) -> None:
    program = """
for _ in range(3):
    session.init()
    session.init()  # while it runs: nothing
    say(session.rank(), total(session.rank() + 1))
    session.shutdown()
    session.shutdown()
"""
    assert run(2, program, tmp_path, HORA_TRANSPORT=transport) == [[0, 3.0]] * 3 + [[1, 3.0]] * 3


def test_some_ranks_form_a_world_of_their_own(tmp_path: Path) -> None:
    program = """
launched = int(os.environ["HORA_RANK"])
session.init(comm=[0, 2] if launched in (0, 2) else [1, 3])
say(launched, session.rank(), session.size(), basics.local_size(), total(launched))
"""
    assert run(4, program, tmp_path) == [[0, 0, 2, 2, 2.0], [1, 0, 2, 2, 4.0], [2, 1, 2, 2, 2.0], [3, 1, 2, 2, 4.0]]


def test_process_sets_static_and_dynamic(tmp_path: Path) -> None:
    program = """
evens = process_set.ProcessSet([2, 0])
session.init(process_sets=[evens])
tail = process_set.add_process_set([1, 2])
seen = []
for each in (evens, tail):
    if each.included():
        seen.append((each.process_set_id, each.rank(), each.size(), total(10 ** session.rank(), process_set=each)))
assert process_set.remove_process_set(tail) and tail.process_set_id is None
assert not process_set.remove_process_set(tail) and not process_set.remove_process_set(process_set.global_process_set)
say(session.rank(), *seen, total(1))
"""
    assert run(3, program, tmp_path) == [
        [0, [1, 0, 2, 101.0], 3.0],
        [1, [2, 0, 2, 110.0], 3.0],
        [2, [1, 1, 2, 101.0], [2, 1, 2, 110.0], 3.0],
    ]


@pytest.mark.parametrize(("torch", "size"), [("there", 2), ("missing", 1), ("missing", 2)])
def test_where_memory_cannot_be_shared_gloo_is_used_or_everybody_says_why(
    tmp_path: Path, torch: str, size: int
) -> None:
    if torch == "missing":
        (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    script = tmp_path / "script.py"
    program = """
try:
    session.init()
except EnvironmentUnfit as error:
    say(str(error))
else:
    say(session.engine().transport, total(1))
"""
    script.write_text(PRELUDE + "from hora.errors import EnvironmentUnfit\n" + program)
    limited = [
        "bash",
        "-c",
        'ulimit -f 4096; exec "$@"',
        "hora",
        *hora("run", "-np", str(size), sys.executable, script),
    ]
    done = subprocess.run(limited, env=clean_environment(), capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line]
    if torch == "there":
        assert _said(done.stdout) == [["gloo", float(size)]] * size
        assert len(warnings) == 1 and "running on Gloo" in warnings[0] and "ulimit -f" in warnings[0], done.stderr
    else:
        said = _said(done.stdout)
        assert len(said) == size and all("File too large" in str(text) and "PyTorch" in str(text) for (text,) in said)
        assert not warnings


class Store:
    """The hub's, without a hub."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def store_set(self, generation: int, key: str, value: bytes) -> None:
        self.values[key] = value

    def store_get(self, generation: int, key: str, timeout_s: float, given_up: object = None) -> bytes | None:
        return self.values.get(key)


def no_memory(*_: object) -> None:
    raise EnvironmentUnfit("cannot make shared memory: File too large.")


@pytest.mark.parametrize("transport", ["auto", "shm"])
def test_memory_that_the_first_rank_cannot_make_is_no_riddle_to_the_others(
    monkeypatch: pytest.MonkeyPatch, transport: Transport
) -> None:
    """Where the hub is on another host, the workers of one make their memory themselves."""
    monkeypatch.setattr(shm, "create_segment", no_memory)
    settings, line, peers = Settings(transport=transport), Store(), tuple(Peer(r, r, 1, "here") for r in range(2))
    for rank in range(2):
        meeting = Meeting(1, rank, peers, "shm", settings, line, -1, -1)  # type: ignore[arg-type]
        if transport == "shm":
            with pytest.raises(EnvironmentUnfit, match="File too large"):
                hosttable.share_segment(meeting)
        else:
            found, made = hosttable.share_segment(meeting)
            assert (found.transport, made) == ("gloo", None) and "File too large" in found.unshared


def test_process_sets_of_communicators_are_made_before_init(tmp_path: Path) -> None:
    """As Horovod's documentation splits a world in halves: every rank knows the communicator of its own half."""
    program = """
class Communicator:
    Get_group = None
    def __init__(self, *ranks):
        self.ranks = ranks
    def Get_size(self):
        return len(self.ranks)
    def Allgather(self, own, everyones):
        assert own[0] in self.ranks
        everyones[:] = type(everyones)("i", self.ranks)

launched = int(os.environ["HORA_RANK"])
half = process_set.ProcessSet(Communicator(2, 0) if launched % 2 == 0 else Communicator(1, 3))
for _ in range(2):
    session.init(process_sets=[half, process_set.ProcessSet([0, 1])])
    known = session.engine().process_sets.ids()
    say(launched, half.ranks, half.process_set_id, total(10 ** launched, process_set=half), sorted(known.values()))
    session.shutdown()
"""
    every = [[0, 1], [0, 1, 2, 3], [0, 2], [1, 3]]
    assert run(4, program, tmp_path) == [
        said
        for rank, half, number, total in (
            (0, [0, 2], 1, 101.0), (1, [1, 3], 3, 1010.0), (2, [0, 2], 1, 101.0), (3, [1, 3], 3, 1010.0),
        )
        for said in [[rank, half, number, total, every]] * 2
    ]  # fmt: skip


def test_a_forked_child_is_not_a_worker(tmp_path: Path) -> None:
    program = """
session.init()
if (child := os.fork()) == 0:
    sys.exit(0 if not session.is_initialized() else 1)  # runs the exit handlers: must not leave in its parent's name
assert os.waitpid(child, 0)[1] == 0
say(session.rank(), total(1))
"""
    assert run(2, program, tmp_path) == [[0, 2.0], [1, 2.0]]


def test_a_timeline_can_be_started_and_stopped(tmp_path: Path) -> None:
    program = f"""
session.init()
session.start_timeline({str(tmp_path / "first.json")!r})
total(1)
session.stop_timeline()
total(1)
session.start_timeline({str(tmp_path / "second.json")!r})
total(1)
say(session.rank())
"""
    run(2, program, tmp_path)
    for name in ("first.json", "first.rank1.json", "second.json", "second.rank1.json"):
        rows = json.loads((tmp_path / name).read_text())
        assert sum(row["name"] == "NEGOTIATE_ALLREDUCE" and row["ph"] == "B" for row in rows) == 1, name
        assert {row["name"] for row in rows if row["ph"] == "X"} == {"0", "1"}


def test_a_disk_that_fills_up_under_a_timeline_costs_only_the_timeline(tmp_path: Path) -> None:
    program = f"""
import resource
session.init()
session.start_timeline({str(tmp_path / "t.json")!r})
if session.rank() == 1:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
for i in range(50):
    total(1)
session.shutdown()
say(session.is_initialized())
"""
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + program)
    done = run_hora("run", "-np", "2", sys.executable, script, timeout_s=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert _said(done.stdout) == [[False], [False]]
    assert done.stderr.count("is no longer written: ") == 1 and "File too large" in done.stderr, done.stderr
    for name in ("t.json", "t.rank1.json"):
        assert json.loads((tmp_path / name).read_text())


def test_whatever_the_monitor_raises_the_others_see_no_death(monkeypatch: pytest.MonkeyPatch) -> None:
    session.init()
    done: list[str] = []
    backend = session.engine().backend
    for name in ("leave", "close"):
        real = getattr(backend, name)
        monkeypatch.setattr(backend, name, lambda real=real, name=name: (done.append(name), real()))

    def fail() -> None:
        raise RuntimeError("planted")

    monitor = session._monitor
    assert monitor is not None
    monkeypatch.setattr(monitor, "record", lambda _: fail())
    with pytest.raises(RuntimeError, match="planted"):
        session.shutdown()
    assert done == ["leave", "close"] and not session.is_initialized() and session._monitor is None
    session.init()
    session.shutdown()


def test_a_machine_without_threads_to_spare_is_named_and_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as planted:
        planted.setattr(session, "Monitor", refuse)
        with pytest.raises(EnvironmentUnfit, match="rank 0 cannot start: no more processes or threads can be started"):
            session.init()
    assert not session.is_initialized()
    session.init()
    session.shutdown()


def test_an_exception_reaches_the_others_with_its_text(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + "session.init()\nif session.rank() == 1: raise KeyError('no such thing')\ntotal(1)\n")
    done = run_hora("run", "-np", "2", sys.executable, script, HORA_FULL_TRACEBACK="1")
    assert done.returncode == 1
    rank_0 = [line for line in done.stderr.splitlines() if line.startswith("[0]")]
    assert any("KeyError: 'no such thing'" in line for line in rank_0), done.stderr


def test_ranks_that_mean_different_process_sets_are_told_at_once(tmp_path: Path) -> None:
    program = """
import time
from hora.errors import DeadlockError
sets = [process_set.ProcessSet(ranks) for ranks in ([0, 1], [1, 2], [0, 2])]
session.init(process_sets=sets)
total(1)
start = time.monotonic()
try:
    total(1, process_set=sets[session.rank()])
except DeadlockError as error:
    say(session.rank(), time.monotonic() - start, *(f"submitted by rank {r}" in str(error) for r in range(3)))
total(1)  # the engine goes on
"""
    for place, (rank, after_s, *named) in enumerate(run(3, program, tmp_path)):
        assert rank == place and isinstance(after_s, float) and after_s < PROMPT_S and named == [True] * 3


def test_unnamed_operations_of_different_lines(tmp_path: Path) -> None:
    program = """
from hora.errors import MismatchError
session.init()
def unnamed():
    session.engine().barrier()
try:
    if session.rank() == 0:
        unnamed()
    else:
        session.engine().barrier()
    say(session.rank(), "done")
except MismatchError as error:
    say(session.rank(), "in unnamed" in str(error))
"""
    assert run(2, program, tmp_path) == [[0, "done"], [1, "done"]]
    assert run(2, program, tmp_path, HORA_STRICT="1") == [[0, True], [1, True]]


FOREIGN = (
    PRELUDE + "session.init()\nsay(session.rank(), basics.local_rank(), session.size(), total(session.rank() + 1))\n"
)


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_the_world_of_other_launchers(tmp_path: Path, launcher: str) -> None:
    program = shutil.which(launcher, path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip(f"{launcher} is not installed beside this Python")
    script = tmp_path / "script.py"
    script.write_text(FOREIGN)
    options = {
        "mpirun": ["--allow-run-as-root", "--oversubscribe", "-np", "3", sys.executable, str(script)],
        "torchrun": ["--standalone", "--nproc-per-node", "3", str(script)],
    }
    done = subprocess.run(
        [program, *options[launcher]], env=clean_environment(), capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = sorted(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert [(rank, size, total) for rank, _, size, total in said] == [(0, 3, 6.0), (1, 3, 6.0), (2, 3, 6.0)]
    assert sorted(local for _, local, _, _ in said) == [0, 1, 2]  # Open MPI may deal them out in another order


def test_alone_and_not_initialised() -> None:
    with pytest.raises(NotInitializedError, match="init"):
        session.rank()
    with pytest.raises(ValueError):
        session.size()
    session.init()
    try:
        assert (session.rank(), session.size(), basics.local_rank(), basics.cross_size()) == (0, 1, 0, 1)
        assert basics.is_homogeneous() and session.is_initialized()
        with pytest.raises(UsageError, match="twice"):
            process_set.ProcessSet([0, 0])
        with pytest.raises(UsageError, match=r"0\.\.0"):
            process_set.add_process_set([1])
    finally:
        session.shutdown()
    assert not session.is_initialized()


def test_bad_arguments_of_init() -> None:
    with pytest.raises(UsageError, match="comm=3"):
        session.init(comm=3)
    with pytest.raises(UsageError, match="comm="):
        session.init(comm=[1])
    with pytest.raises(UsageError, match="dynamic"):
        session.init(process_sets="static")
    assert not session.is_initialized()


def test_sets_of_the_same_ranks_are_one_in_a_dictionary() -> None:
    one, same, other = (process_set.ProcessSet(ranks) for ranks in ([0, 1], [1, 0], [0]))
    assert one == same != other and len({one, same, other}) == 2


def test_what_is_no_more_is_said_in_one_word() -> None:
    assert basics.ddl_built() is False
