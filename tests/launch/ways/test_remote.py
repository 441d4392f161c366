"""Jobs on several hosts, which here are plain processes with names: what a user sees, and that nothing is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.launch.farm import Plain, farm
from tests.launch.jobs import SOURCE, clean_environment, processes_of, python, rest_of, wait_until
from tests.prompt import PROMPT_S

import hora
from hora.errors import WorkersFailed
from hora.launch import function
from hora.launch.ways.remote import RemoteLaunch

ROOT = SOURCE.parent
TWO = ("-np", "4", "-H", "a:2,b:2")
# Prints its job and pid once it is up, and stays.
STAY = """
import os, time
print("JOB", os.environ["HORA_JOB"], os.environ["HORA_RANK"], os.getpid(), os.getppid(), flush=True)
time.sleep(120)
"""
# The same, with a child in a session of its own that would be easily forgotten.
FAMILY = (
    """
import subprocess, sys
child = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(120)"]
subprocess.Popen(child, stdout=subprocess.PIPE, start_new_session=True).stdout.readline()
"""
    + STAY
)


def environment(**more: str) -> dict[str, str]:
    return {**clean_environment(**more), "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"}


def run_farm(*arguments: str, timeout_s: float = 40.0, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        farm(*arguments), env=environment(**more), capture_output=True, text=True, timeout=timeout_s, input=""
    )


class Running:
    """A launcher at work, and its workers as they have announced themselves."""

    def __init__(self, launcher: subprocess.Popen[str], workers: int) -> None:
        self.launcher = launcher
        self.jobs: set[str] = set()
        self.pids: dict[int, int] = {}
        self.agents: dict[int, int] = {}
        self._seen = ""
        assert launcher.stdout is not None
        while len(self.pids) < workers:
            line = launcher.stdout.readline()
            assert line, "the job ended before it was up"
            self._seen += line
            if found := re.search(r"JOB (\S+) (\d+) (\d+) (\d+)", line):
                self.jobs.add(found[1])
                self.pids[int(found[2])] = int(found[3])
                self.agents[int(found[2])] = int(found[4])

    def gone(self) -> bool:
        return not any(processes_of(job) for job in self.jobs) and not any(map(alive, self.agents.values()))

    def finish(self) -> str:
        return self._seen + rest_of(self.launcher, 40)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "XZ"
    except OSError:
        return False


Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, workers: int = 4, **more: str) -> Running:
            launcher = stack.enter_context(
                subprocess.Popen(
                    farm(*arguments),
                    env=environment(**more),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
            )
            stack.callback(launcher.kill)
            return Running(launcher, workers)

        yield start


# ---- what runs ----


def test_places_output_and_exit_code() -> None:
    names = "HORA_RANK HORA_LOCAL_RANK HORA_LOCAL_SIZE HORA_CROSS_RANK HORA_CROSS_SIZE HORA_HOSTNAME"
    program = "import os, sys; print(*map(os.environ.get, sys.argv[1:])); print('e', file=sys.stderr)"
    done = run_farm("-np", "3", "-H", "a:2,b:2", *python(program), *names.split())
    assert done.returncode == 0, done.stderr
    expected = ["[0]<stdout>:0 0 2 0 2 a", "[1]<stdout>:1 1 2 0 1 a", "[2]<stdout>:2 0 1 1 2 b"]
    assert sorted(done.stdout.splitlines()) == expected
    assert sorted(done.stderr.splitlines()) == [f"[{rank}]<stderr>:e" for rank in range(3)]


def test_the_secret_is_where_the_worker_finds_it_and_nowhere_else() -> None:
    program = """
import os, pathlib
assert len(os.read(int(os.environ["HORA_SECRET_FD"]), 64)) == 32
assert "HORA_SECRET" not in os.environ
assert os.environ["HORA_HUB_ADDRESSES"].endswith("127.0.0.1:" + os.environ["HORA_HUB_ADDRESSES"].rpartition(":")[2])
agent = pathlib.Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
print(agent.replace(b"\\0", b" ").decode().split(maxsplit=2)[1:])
"""
    done = run_farm("-np", "2", "-H", "a:1,b:1", *python(program))
    assert done.returncode == 0, done.stderr
    assert all("from hora.launch.host.agent import live; " in line for line in done.stdout.splitlines())


def test_workers_meet_at_the_launchers_hub() -> None:
    program = """
from hora.engine import session
from hora.engine.process_set import global_process_set
session.init()
session.engine().barrier(global_process_set)
print("met", session.size())
"""
    done = run_farm(*TWO, "--verbose", *python(program), timeout_s=110, HORA_START_TIMEOUT="90")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("met 4") == 4
    assert "starting agents on a, b by nothing" in done.stderr
    for host in ("a", "b"):
        assert re.search(f"{host} connected from \\S+ after", done.stderr)
        assert re.search(f"{host} started 2 workers: pid", done.stderr)
    assert "all 4 workers are in init" in done.stderr


def test_a_quick_start_says_nothing() -> None:
    done = run_farm("-np", "2", "-H", "a:1,b:1", "true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_much_output_arrives_whole(tmp_path: Path) -> None:
    program = "import sys; sys.stdout.write(''.join(f'line {n}\\n' for n in range(200_000)))"
    done = run_farm("-np", "2", "-H", "a:1,b:1", "--output-filename", str(tmp_path), *python(program))
    assert done.returncode == 0, done.stderr
    expected = "".join(f"line {n}\n" for n in range(200_000))
    for rank in (0, 1):
        assert (tmp_path / f"rank.{rank}" / "stdout").read_text() == expected
        mark = f"[{rank}]<stdout>:"
        mine = [line.removeprefix(mark) for line in done.stdout.splitlines() if line.startswith(mark)]
        assert "\n".join(mine) + "\n" == expected


def test_a_console_that_does_not_read_stops_the_output_and_not_the_job(start: Start) -> None:
    """Workers wait as on a full pipe; signs of life go on, so nobody counts as lost."""
    program = STAY.replace("time.sleep(120)", "print('x' * 80 * 50_000, flush=True); time.sleep(4); print('end')")
    running = start("-np", "2", "-H", "a:1,b:1", *python(program), workers=2, HORA_HOST_TIMEOUT="2")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:  # not reading is what is tested
        assert running.launcher.poll() is None
        time.sleep(0.1)
    out = running.finish()
    assert running.launcher.returncode == 0, out[-500:]
    assert out.count("x") >= 2 * 80 * 50_000 and out.count("]<stdout>:end") == 2


# ---- what fails ----


@pytest.mark.parametrize(
    ("leave", "code", "said"),
    [
        ("raise ValueError('mine')", 1, "ValueError: mine"),
        ("sys.exit(7)", 7, "exit code 7"),
        ("os.kill(os.getpid(), 9)", 137, "killed by signal 9 (SIGKILL)"),
    ],
)
def test_the_first_failure_is_told_as_on_one_host(leave: str, code: int, said: str) -> None:
    program = f"import os, sys, time\nif os.environ['HORA_RANK'] == '2':\n    {leave}\ntime.sleep(30)"
    done = run_farm(*TWO, *python(program))
    assert done.returncode == code
    report = done.stderr[done.stderr.index("+-- hora:") :]
    assert report.startswith("+-- hora: rank 2 failed first") and "host b, pid " in report and said in report
    assert "ranks 0, 1, 3 stopped by Hora" in report


def test_a_command_that_is_not_there() -> None:
    done = run_farm("-np", "2", "-H", "a:1,b:1", "/nowhere/python", "x")
    assert done.returncode == 3 and "/nowhere/python" in done.stderr


def test_a_killed_worker_is_named_and_nothing_is_left(start: Start) -> None:
    running = start(*TWO, *python(FAMILY))
    os.kill(running.pids[3], signal.SIGKILL)
    out = running.finish()
    assert running.launcher.returncode == 137
    assert "rank 3 failed first" in out and f"host b, pid {running.pids[3]}, killed by signal 9" in out
    assert running.gone()


def test_a_killed_agent_is_a_lost_host(start: Start) -> None:
    running = start(*TWO, *python(FAMILY))
    killed = time.monotonic()
    os.kill(running.agents[2], signal.SIGKILL)
    out = running.finish()
    assert time.monotonic() - killed < PROMPT_S
    assert running.launcher.returncode == 3
    assert "+-- hora: host b was lost" in out and "the connection to the agent on b" in out
    assert "ranks 2, 3 ran there" in out and "ranks 0, 1 stopped by Hora" in out
    wait_until(running.gone, what="the end of everything")


def test_a_host_that_does_not_answer_is_lost(start: Start) -> None:
    running = start(*TWO, *python(FAMILY), HORA_HOST_TIMEOUT="2")
    os.kill(running.agents[2], signal.SIGSTOP)
    out = running.finish()
    assert running.launcher.returncode == 3
    assert "host b was lost" in out and re.search(r"b has not answered for [23] s \(\S+\)", out)
    wait_until(running.gone, what="the end of everything")


def test_a_killed_launcher_leaves_nothing_anywhere(start: Start) -> None:
    running = start(*TWO, *python(FAMILY))
    running.launcher.kill()
    wait_until(running.gone, what="the end of everything")


def test_a_launcher_that_does_not_answer_leaves_nothing_anywhere(start: Start) -> None:
    running = start(*TWO, *python(FAMILY), HORA_HOST_TIMEOUT="2")
    os.kill(running.launcher.pid, signal.SIGSTOP)
    wait_until(running.gone, what="the end of everything")
    os.kill(running.launcher.pid, signal.SIGCONT)
    out = running.finish()
    assert running.launcher.returncode == 3 and "was lost" in out


# ---- signals ----


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_signals_reach_the_workers(number: signal.Signals, start: Start) -> None:
    running = start(*TWO, *python(FAMILY))
    running.launcher.send_signal(number)
    out = running.finish()
    assert running.launcher.returncode == 128 + number
    assert f"stopped by {number.name}" in out
    assert running.gone()


def test_workers_may_save_and_end_well(start: Start) -> None:
    program = "import signal, sys\nsignal.signal(15, lambda *_: (print('saved', flush=True), sys.exit(0)))\n" + STAY
    running = start(*TWO, *python(program))
    running.launcher.send_signal(signal.SIGTERM)
    assert running.finish().count("saved") == 4
    assert running.launcher.returncode == 0


def test_sigusr1_ends_nothing(start: Start) -> None:
    program = "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: (print('caught', flush=True), os._exit(0)))\n"
    running = start(*TWO, *python(program + STAY))
    running.launcher.send_signal(signal.SIGUSR1)
    assert running.finish().count("caught") == 4
    assert running.launcher.returncode == 0


def test_a_second_interrupt_kills(start: Start) -> None:
    program = "import signal\nsignal.signal(2, lambda *_: print('first', flush=True))\n" + STAY.replace(
        "time.sleep(120)", "while True: time.sleep(1)"
    )
    running = start(*TWO, *python(program))
    running.launcher.send_signal(signal.SIGINT)
    assert running.launcher.stdout is not None
    while "first" not in running.launcher.stdout.readline():
        pass
    running.launcher.send_signal(signal.SIGINT)
    running.finish()
    assert running.launcher.returncode == 137
    assert running.gone()


def test_ctrl_z_stops_the_job_and_nobody_counts_as_lost(start: Start) -> None:
    program = STAY.replace("time.sleep(120)", "[time.sleep(0.1) for _ in range(10)]; print('end')")
    running = start(*TWO, *python(program), HORA_HOST_TIMEOUT="1")
    running.launcher.send_signal(signal.SIGTSTP)
    wait_until(lambda: _state(running.launcher.pid) == "T", what="the launcher's stop")
    wait_until(lambda: all(_state(pid) == "T" for pid in running.pids.values()), what="the workers' stop")
    still_stopped_at = time.monotonic() + 2.5  # longer than the silence that counts
    while time.monotonic() < still_stopped_at:
        assert all(_state(pid) == "T" for pid in running.pids.values())
        time.sleep(0.1)
    running.launcher.send_signal(signal.SIGCONT)
    assert running.finish().count("end") == 4
    assert running.launcher.returncode == 0


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


# ---- hora.run ----


def test_functions_run_on_several_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function, "make_way", lambda on, **options: RemoteLaunch(Plain()))
    results = hora.run(lambda base: (base, os.environ["HORA_HOSTNAME"]), (5,), hosts="a:1,b:2")
    assert results == [(5, "a"), (5, "b"), (5, "b")]
    with pytest.raises(WorkersFailed, match=r"rank \d failed") as caught:
        hora.run(lambda: 1 / 0, hosts="a:1,b:1")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_farm_is_this_python() -> None:
    assert farm()[0] == sys.executable
