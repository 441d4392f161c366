"""``hora.run``: results by rank, failures with their traceback, from anywhere a function can be written."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.launch.jobs import clean_environment, wait_until

import hora
from hora.errors import UsageError, WorkersFailed


def rank() -> int:
    return int(os.environ["HORA_RANK"])


def test_results_come_in_rank_order() -> None:
    assert hora.run(lambda base, step=1: base + step * rank(), (100,), {"step": 10}, np=3) == [100, 110, 120]


def test_names_of_the_number() -> None:
    assert hora.run(rank, num_proc=2) == [0, 1]
    assert hora.run(rank) == [0]
    assert hora.run(rank, hosts="localhost:2") == [0, 1]
    with pytest.raises(UsageError, match="np=1 and num_proc=2"):
        hora.run(rank, num_proc=2, np=1)


def test_large_results_and_arguments() -> None:
    data = bytes(3_000_000)
    assert hora.run(lambda given: (len(given), bytes(2_000_000)), (data,), np=2) == [(3_000_000, bytes(2_000_000))] * 2


def test_an_exception_comes_back_with_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        if rank() == 1:
            raise LookupError("nothing under rank 1")
        time.sleep(30)

    with pytest.raises(WorkersFailed) as caught:
        hora.run(broken, np=2)
    assert (caught.value.rank, caught.value.exit_code) == (1, 1)
    assert "in broken" in str(caught.value) and "LookupError: nothing under rank 1" in str(caught.value)
    assert "callee.py" not in str(caught.value)
    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.parametrize(("leave", "code"), [(lambda: sys.exit(7), 7), (lambda: os.kill(os.getpid(), 9), 137)])
def test_other_failures_keep_their_exit_code(leave: object, code: int) -> None:
    with pytest.raises(WorkersFailed) as caught:
        hora.run(leave, np=1)  # type: ignore[arg-type]
    assert caught.value.exit_code == code


def test_leaving_without_a_result_is_a_failure() -> None:
    with pytest.raises(WorkersFailed, match="returned nothing"):
        hora.run(lambda: os._exit(0), np=1)


def test_what_cannot_be_sent() -> None:
    lock = threading.Lock()
    with pytest.raises(UsageError, match="cannot be sent"):
        hora.run(lambda: lock, np=1)
    with pytest.raises(WorkersFailed, match="cannot pickle"):
        hora.run(threading.Lock, np=1)
    with pytest.raises(UsageError, match="needs a function"):
        hora.run(3, np=1)  # type: ignore[arg-type]


def test_an_elastic_job_gives_the_results_of_those_who_were_there_at_the_end() -> None:
    def train() -> tuple[int, int]:
        import signal

        from hora.elastic.run import run
        from hora.elastic.state import ObjectState
        from hora.engine import session

        session.init()

        @run
        def steps(state: ObjectState) -> tuple[int, int]:
            while state.step < 50:  # type: ignore[has-type]
                state.step += 1
                if state.step == 20 and session.rank() == 0 and session.size() == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                state.commit()
            return session.size(), state.step

        return steps(ObjectState(step=0))

    found = hora.run(train, min_np=2, max_np=3, cooldown_range=(60, 60))
    assert found == [(2, 50), (2, 50)]


def test_settings_reach_the_workers() -> None:
    def see() -> tuple[str | None, ...]:
        return tuple(os.environ.get(name) for name in ("HORA_TRANSPORT", "HORA_START_TIMEOUT", "MINE"))

    assert hora.run(see, use_gloo=True, start_timeout=7, env={"MINE": "yes"}) == [("gloo", "7", "yes")]


def test_output_goes_to_this_process_and_to_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hora.run(lambda: print("hello", flush=True), np=2, output_filename=str(tmp_path))
    assert sorted(capsys.readouterr().out.splitlines()) == ["[0]<stdout>:hello", "[1]<stdout>:hello"]
    assert (tmp_path / "rank.1" / "stdout").read_text() == "hello\n"


def test_from_a_thread() -> None:
    results: list[list[int]] = []
    thread = threading.Thread(target=lambda: results.append(hora.run(rank, np=2)))
    thread.start()
    thread.join(30)
    assert results == [[0, 1]]


@pytest.mark.parametrize("how", ["-c", "-"])
def test_from_a_command_line_and_from_stdin(how: str) -> None:
    program = """
import os, hora
k = 5
def f(x):
    return k * x + int(os.environ['HORA_RANK'])
print(hora.run(f, (2,), np=2))
"""
    done = subprocess.run(
        [sys.executable, *([how, program] if how == "-c" else [how])],
        input=program if how == "-" else "",
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout == "[10, 11]\n", done.stderr


def test_a_module_found_only_by_this_process_is_found_by_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def answer(): return 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]

    assert hora.run(only_here.answer, np=2) == [42, 42]


def test_nothing_stays_open() -> None:
    hora.run(rank, np=1)
    before = len(os.listdir("/proc/self/fd"))
    hora.run(rank, np=2)
    with pytest.raises(WorkersFailed):
        hora.run(lambda: sys.exit(1), np=2)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, what="closing of every descriptor")


def test_an_interrupt_stops_the_workers_and_is_raised() -> None:
    program = """
import os, signal, time, hora
def sleep():
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)
try:
    hora.run(sleep, np=1)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean_environment(), capture_output=True, text=True, timeout=30
    )
    assert "interrupted" in done.stdout
