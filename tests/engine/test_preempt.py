"""Preemption with real signals: all ranks hear of it at the same step, save, leave with 75, and go on as if nothing had
happened."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.launch.jobs import children_of, python, run_hora, start_hora, wait_until

from hora.engine import preempt, session
from hora.errors import NotInitializedError, UsageError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "preemptible.py"


@pytest.fixture
def alone() -> Iterator[None]:
    session.init()
    try:
        yield
    finally:
        preempt._forget()
        session.shutdown()


def test_nothing_is_caught_until_it_is_asked_for(alone: None) -> None:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL == signal.getsignal(signal.SIGUSR1)
    assert preempt.preempted() is False
    assert signal.getsignal(signal.SIGTERM) == preempt._catch
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # Ctrl-C stays what it is


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_once_true_it_stays_true(alone: None, number: signal.Signals) -> None:
    assert not preempt.preempted()
    signal.raise_signal(number)
    signal.raise_signal(number)  # by the launcher and by the scheduler
    assert preempt.preempted() and preempt.preempted()


def test_who_listened_before_still_hears(alone: None) -> None:
    heard: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    preempt.preempted()
    signal.raise_signal(signal.SIGUSR1)
    assert preempt.preempted() and heard == [signal.SIGUSR1]
    preempt._forget()
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_the_first_question_comes_from_the_main_thread(alone: None) -> None:
    said: list[str] = []

    def ask() -> None:
        try:
            preempt.preempted()
        except UsageError as error:
            said.append(str(error))

    thread = threading.Thread(target=ask, name="aside")
    thread.start()
    thread.join(10)
    assert "'aside'" in said[0]


def test_before_init() -> None:
    with pytest.raises(NotInitializedError):
        preempt.preempted()


def test_a_later_sigterm_ends_the_process() -> None:
    program = (
        "import signal, time; from hora.engine import preempt, session\n"
        "session.init(); preempt.preempted(); preempt._AGAIN_S = 0.05\n"
        "signal.raise_signal(signal.SIGTERM); print(preempt.preempted(), flush=True)\n"
        "end = time.monotonic() + 0.1\n"
        "while time.monotonic() < end: pass\n"
        "signal.raise_signal(signal.SIGTERM); print('still here')\n"
    )
    done = run_hora("run", "-np", "1", *python(program))
    assert done.returncode == 128 + signal.SIGTERM and done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("transport", ["auto", "gloo"])
def test_all_ranks_hear_of_a_signal_to_one(transport: str) -> None:
    """At the same call: every rank counts its calls until the answer is yes, and the counts are the same."""
    program = (
        "import os, signal; from hora.engine import preempt, session\n"
        "session.init(); calls = 1\n"
        "preempt.preempted()\n"
        "while not preempt.preempted():\n"
        "    calls += 1\n"
        "    if calls == 100 and session.rank() == 1: os.kill(os.getpid(), signal.SIGUSR1)\n"
        "print('calls', calls)\n"
    )
    done = run_hora("run", "-np", "3", *python(program), timeout_s=100, HORA_TRANSPORT=transport)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"calls (\d+)", done.stdout)) == 3 and len(set(re.findall(r"calls (\d+)", done.stdout))) == 1


def test_children_of_a_worker_end_when_told_to_and_survive_the_warning(alone: None) -> None:
    preempt.preempted()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.write(writer, b"x")
        while True:
            signal.pause()
    os.close(writer)
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_example_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """Interrupted twice, once by each signal, it ends with the weights of a run that was not."""
    first = _interrupt(_example(tmp_path / "interrupted.pt", 1_000_000), signal.SIGUSR1, began_at=0)
    second = _interrupt(_example(tmp_path / "interrupted.pt", 1_000_000), signal.SIGTERM, began_at=first)
    assert second > first > 0
    steps = second + 20
    resumed = run_hora(*_example(tmp_path / "interrupted.pt", steps), timeout_s=100)
    straight = run_hora(*_example(tmp_path / "straight.pt", steps), timeout_s=100)
    assert f"starting at step {second}" in resumed.stdout
    sums = [re.findall(r"sum of parameters (.*)", done.stdout) for done in (resumed, straight)]
    assert sums[0] and sums[0] == sums[1]


def _example(checkpoint: Path, steps: int) -> tuple[str | Path, ...]:
    place = ("--steps", str(steps), "--every", "100000", "--checkpoint", checkpoint)
    return "run", "-np", "2", sys.executable, EXAMPLE, *place


def _interrupt(arguments: tuple[str | Path, ...], number: signal.Signals, began_at: int) -> int:
    """Send the launcher a signal while its workers train; returns the step after which all of them left."""
    job = start_hora(*arguments)
    try:
        assert job.stdout is not None
        said = job.stdout.readline()
        assert f"starting at step {began_at}" in said, said + job.stdout.read()
        workers = [pid for pid in children_of(job.pid) if _is_worker(pid)]
        assert len(workers) == 2
        wait_until(lambda: all(_catches(pid, number) for pid in workers), 60, "the workers to have asked once")
        os.kill(job.pid, number)
        said, _ = job.communicate(timeout=60)
    finally:
        job.kill()
        job.communicate()
    assert job.returncode == preempt.PREEMPTED_EXIT_CODE, said
    left = dict(re.findall(r"rank (\d) leaves after step (\d+)", said))
    assert len(left) == 2 and len(set(left.values())) == 1, said
    return int(left["0"])


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _catches(pid: int, number: int) -> bool:
    return bool(int(_status(pid)["SigCgt"], 16) >> (number - 1) & 1)


def _is_worker(pid: int) -> bool:
    return b"preemptible" in Path(f"/proc/{pid}/cmdline").read_bytes()
