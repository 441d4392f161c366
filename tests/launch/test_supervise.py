"""Whole jobs: signals, orphans, pipes, stdin. Real processes, found again by the job's cookie."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.launch.jobs import (
    children_of,
    clean_environment,
    hora,
    processes_of,
    python,
    run_hora,
    start_hora,
    wait_until,
)
from tests.prompt import PROMPT_S

Start = Callable[..., subprocess.Popen[str]]

# A worker with a child, a child in a session of its own, and a daemon; prints the job's cookie once all are up.
FAMILY = """
import os, signal, subprocess, sys, time
child = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(120)"]
for more in ({}, {"start_new_session": True}):
    subprocess.Popen(child, stdout=subprocess.PIPE, **more).stdout.readline()
middle = os.fork()
if middle == 0:
    os.setsid()
    os.fork() or time.sleep(120)
    os._exit(0)
os.waitpid(middle, 0)
print("JOB", os.environ["HORA_JOB"], flush=True)
time.sleep(120)
"""
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FAMILY


def job_of(launcher: subprocess.Popen[str], workers: int) -> str:
    """The cookie, once every worker has printed it."""
    assert launcher.stdout is not None
    seen: list[str] = []
    while len(seen) < workers:
        line = launcher.stdout.readline()
        assert line, "the job ended before it was up"
        if "JOB" in line:
            seen.append(line.split()[-1])
    return seen[0]


@pytest.fixture
def start() -> Iterator[Start]:
    """``start_hora`` whose launchers do not outlive the test."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> subprocess.Popen[str]:
            launcher = stack.enter_context(start_hora(*arguments))
            stack.callback(launcher.kill)
            return launcher

        yield start


def gone(job: str) -> bool:
    return not processes_of(job)


def guardian_of(launcher: subprocess.Popen[str]) -> int:
    return next(pid for pid in children_of(launcher.pid) if b"guardian.py" in Path(f"/proc/{pid}/cmdline").read_bytes())


def finish(launcher: subprocess.Popen[str]) -> str:
    out, _ = launcher.communicate(timeout=20)
    return out


# ---- no orphans ----


@pytest.mark.parametrize("family", [FAMILY, STUBBORN], ids=["obedient", "stubborn"])
def test_killing_the_launcher_leaves_nothing(family: str, start: Start) -> None:
    launcher = start("run", "-np", "2", *python(family))
    job = job_of(launcher, 2)
    guard = guardian_of(launcher)
    assert len(processes_of(job)) == 8
    launcher.kill()
    wait_until(lambda: gone(job), what="the end of every process of the job")
    wait_until(lambda: _state(guard) in "XZ", what="the end of the guardian")
    finish(launcher)


def test_killing_a_worker_leaves_nothing(start: Start) -> None:
    launcher = start("run", "-np", "2", *python(FAMILY))
    job = job_of(launcher, 2)
    worker = next(pid for pid in children_of(launcher.pid) if pid != guardian_of(launcher))
    os.kill(worker, signal.SIGKILL)
    out = finish(launcher)
    assert launcher.returncode == 137
    assert f"pid {worker}, killed by signal 9 (SIGKILL)" in out
    assert gone(job)


def test_a_killed_guardian_is_replaced(start: Start) -> None:
    launcher = start("run", "-np", "1", "--verbose", *python(FAMILY))
    job = job_of(launcher, 1)
    first = guardian_of(launcher)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: _other_guardian(launcher, first), what="another guardian")
    launcher.kill()
    wait_until(lambda: gone(job), what="the end of every process of the job")
    finish(launcher)


def test_the_guardian_shrugs_off_signals(start: Start) -> None:
    launcher = start("run", "-np", "1", *python(FAMILY))
    job = job_of(launcher, 1)
    guard = guardian_of(launcher)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        os.kill(guard, number)
    launcher.kill()
    wait_until(lambda: gone(job), what="the end of every process of the job")
    finish(launcher)


def test_a_fork_of_the_launcher_does_not_hide_its_death() -> None:
    """``hora.run`` in a program that forks: the fork holds the guardian's pipe open."""
    program = f"""
import os, signal, sys, time, hora
def fork(*_):
    if os.fork() == 0:
        print("FORK", os.getpid(), flush=True)
        time.sleep(30)
        os._exit(0)
signal.signal(signal.SIGALRM, fork)
signal.setitimer(signal.ITIMER_REAL, 1.0)
hora.run(exec, ({FAMILY!r}, {{}}), np=1)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], env=clean_environment(), stdout=subprocess.PIPE, text=True
    ) as user:
        assert user.stdout is not None
        said = dict(user.stdout.readline().split()[-2:] for _ in range(2))
        user.kill()
        wait_until(lambda: gone(said["JOB"]), what="the end of every process of the job")
        assert _state(int(said["FORK"])) == "S", "the fork outlived it, and held the pipe"
        os.kill(int(said["FORK"]), signal.SIGKILL)


def test_a_job_inside_a_job_goes_with_it(start: Start) -> None:
    inner = hora("run", "-np", "1", *python(FAMILY))
    launcher = start("run", "-np", "1", *inner)
    job = job_of(launcher, 1)
    assert len(processes_of(job)) == 4
    launcher.kill()
    wait_until(lambda: gone(job), what="the end of the inner job")
    finish(launcher)


def test_a_job_that_ends_well_takes_its_daemons_along() -> None:
    program = """
import os, subprocess
subprocess.Popen(["sleep", "100"], start_new_session=True)
print(os.environ["HORA_JOB"])
"""
    started = time.monotonic()
    done = run_hora("run", "-np", "1", *python(program))
    assert done.returncode == 0
    assert gone(done.stdout.strip())
    assert time.monotonic() - started < 60


# ---- signals ----


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_signals_are_passed_on(number: signal.Signals, start: Start) -> None:
    launcher = start("run", "-np", "2", *python(FAMILY))
    job = job_of(launcher, 2)
    launcher.send_signal(number)
    out = finish(launcher)
    assert launcher.returncode == 128 + number
    assert f"stopped by {number.name}" in out
    assert "+-- hora" not in out
    assert gone(job)


def test_workers_may_save_and_end_well_after_sigterm(start: Start) -> None:
    program = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(0)))
print("JOB", os.environ["HORA_JOB"], flush=True)
time.sleep(60)
"""
    launcher = start("run", "-np", "2", *python(program))
    job_of(launcher, 2)
    launcher.send_signal(signal.SIGTERM)
    out = finish(launcher)
    assert launcher.returncode == 0
    assert out.count("saved") == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=lambda number: number.name)
def test_a_workers_helpers_live_until_it_has_saved(number: signal.Signals, start: Start) -> None:
    """A data loader's processes would die of the signal at once, and the checkpoint with them."""
    program = f"""
import os, signal, subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", "print(input(), flush=True)"], stdin=subprocess.PIPE, text=True)
def save(*_):
    helper.communicate("saved with help", timeout=20)
    sys.exit(0)
signal.signal({int(number)}, save)
print("JOB", os.environ["HORA_JOB"], flush=True)
time.sleep(60)
"""
    launcher = start("run", "-np", "2", *python(program))
    job_of(launcher, 2)
    launcher.send_signal(number)
    assert finish(launcher).count("saved with help") == 2
    assert launcher.returncode == 0


def test_sigusr1_reaches_the_workers_and_ends_nothing(start: Start) -> None:
    program = """
import os, signal, time
caught = []
signal.signal(signal.SIGUSR1, lambda *_: caught.append(1))
print("JOB", os.environ["HORA_JOB"], flush=True)
while not caught:
    time.sleep(0.01)
print("caught", flush=True)
"""
    launcher = start("run", "-np", "2", *python(program))
    job_of(launcher, 2)
    launcher.send_signal(signal.SIGUSR1)
    assert finish(launcher).count("caught") == 2
    assert launcher.returncode == 0


def test_a_second_interrupt_kills_at_once(start: Start) -> None:
    program = """
import os, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: print("no", flush=True))
print("JOB", os.environ["HORA_JOB"], flush=True)
while True:
    time.sleep(1)
"""
    launcher = start("run", "-np", "2", *python(program))
    job = job_of(launcher, 2)
    assert launcher.stdout is not None
    launcher.send_signal(signal.SIGINT)
    assert "no" in launcher.stdout.readline()
    launcher.send_signal(signal.SIGINT)
    started = time.monotonic()
    finish(launcher)
    assert time.monotonic() - started < PROMPT_S
    assert launcher.returncode == 137
    assert gone(job)


def test_a_stopped_launcher_stops_its_workers_and_goes_on_with_them(start: Start) -> None:
    launcher = start("run", "-np", "2", *python(FAMILY))
    job = job_of(launcher, 2)
    workers = [pid for pid in children_of(launcher.pid) if pid != guardian_of(launcher)]
    launcher.send_signal(signal.SIGTSTP)
    wait_until(lambda: all(_state(pid) == "T" for pid in [launcher.pid, *workers]), what="stop of launcher and workers")
    launcher.send_signal(signal.SIGCONT)
    wait_until(lambda: all(_state(pid) == "S" for pid in workers), what="continuation of the workers")
    launcher.send_signal(signal.SIGTERM)
    finish(launcher)
    assert gone(job)


def test_an_ignored_signal_stays_ignored() -> None:
    """As under nohup."""
    program = "import os, sys; print('JOB', os.environ['HORA_JOB'], flush=True); sys.stdin.read(); print('done')"
    launcher = subprocess.Popen(
        ["nohup", *hora("run", "-np", "1", *python(program))],
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    job_of(launcher, 1)
    launcher.send_signal(signal.SIGHUP)
    assert "done" in finish(launcher)
    assert launcher.returncode == 0


def test_exit_codes_are_seen_though_the_launcher_was_started_with_sigchld_ignored() -> None:
    done = subprocess.run(
        ["sh", "-c", 'trap "" CHLD; exec "$@"', "sh", *hora("run", "-np", "1", "sh", "-c", "exit 5")],
        env=clean_environment(),
        capture_output=True,
        timeout=20,
    )
    assert done.returncode == 5


# ---- pipes ----


def test_a_reader_that_goes_away_ends_the_job(start: Start) -> None:
    launcher = start(
        "run", "-np", "2", *python("import os\nprint('JOB', os.environ['HORA_JOB'])\nwhile True: print('y' * 100)")
    )
    job = job_of(launcher, 1)
    assert launcher.stdout is not None
    launcher.stdout.close()
    assert launcher.wait(timeout=15) == 128 + signal.SIGPIPE
    assert gone(job)


def test_deaths_are_seen_while_nobody_reads_the_output(start: Start) -> None:
    """The console blocks; the supervisor must not."""
    program = """
import os, signal, sys
print("JOB", os.environ["HORA_JOB"], flush=True)
if os.environ["HORA_RANK"] == "1":
    sys.exit(3)
sys.stdout.write("z" * 4_000_000)
"""
    launcher = start("run", "-np", "2", *python(program))
    job = job_of(launcher, 2)
    wait_until(lambda: gone(job), what="the end of the job")
    finish(launcher)
    assert launcher.returncode == 3


def test_a_lot_of_output_arrives_whole() -> None:
    done = run_hora("run", "-np", "2", *python("for n in range(50_000): print(n)"))
    for rank in range(2):
        lines = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}]")]
        assert lines == [f"[{rank}]<stdout>:{n}" for n in range(50_000)]


# ---- stdin and the terminal ----


def test_one_worker_reads_stdin_several_do_not() -> None:
    program = python("import sys; print(repr(sys.stdin.read()))")
    assert run_hora("run", "-np", "1", *program, stdin="hello").stdout == "'hello'\n"
    assert set(run_hora("run", "-np", "2", *program, stdin="hello").stdout.split()) == {
        "[0]<stdout>:''",
        "[1]<stdout>:''",
    }


def test_one_worker_has_the_terminal() -> None:
    """A prompt without line end is shown, what is typed reaches the worker, Ctrl-Z stops and Ctrl-C interrupts it."""
    program = """
print("hi", input("name? "))
try:
    input("again? ")
except KeyboardInterrupt:
    print("interrupted")
"""
    launcher, terminal = pty.fork()
    if launcher == 0:
        os.execve(sys.executable, hora("run", "-np", "1", *python(program)), clean_environment())
    seen = b""

    def expect(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            assert select.select([terminal], [], [], 15)[0], f"{text!r} did not come; so far {seen!r}"
            seen += os.read(terminal, 4096)

    try:
        expect(b"name? ")
        os.write(terminal, b"\x1a")
        wait_until(lambda: _state(launcher) == "T", what="the stop of the launcher along with its worker")
        os.kill(launcher, signal.SIGCONT)
        os.write(terminal, b"hora\n")
        expect(b"again? ")
        os.write(terminal, b"\x03")
        expect(b"interrupted")
        wait_until(lambda: _state(launcher) == "Z", what="the end of the launcher")
    finally:
        os.kill(launcher, signal.SIGKILL)
        _, status = os.waitpid(launcher, 0)
        os.close(terminal)
    assert b"hi hora" in seen
    assert os.waitstatus_to_exitcode(status) == 0


def _state(pid: int) -> str:
    """As /proc has it: S sleeping, T stopped, Z a zombie; X if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return "X"


def _other_guardian(launcher: subprocess.Popen[str], first: int) -> bool:
    try:
        return guardian_of(launcher) != first
    except (StopIteration, OSError):
        return False
