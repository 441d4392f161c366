"""Starting by ssh, with a stand-in that runs the command here: what is asked of ssh, and how its failures are told."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from tests.launch.jobs import SOURCE, processes_of, python, run_hora

from hora.launch.starters.ssh import SshStarter, exported

# Skips the options, then runs what is left on "host" $1. A real one would start a login shell of another machine.
STAND_IN = """#!/bin/sh
while true; do
    case $1 in
        -o|-p|-i) shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
host=$1
shift
{special}
exec env -i HOME="$HOME" PATH=/usr/bin:/bin sh -c "$*"
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    return make(tmp_path, "")


def make(tmp_path: Path, special: str) -> Path:
    path = tmp_path / "ssh-stand-in"
    path.write_text(STAND_IN.format(special=special))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_job_on_two_hosts(stand_in: Path) -> None:
    program = "import os; print(*(os.environ.get(n) for n in ('HORA_RANK', 'HORA_HOSTNAME', 'MINE', 'OTHER', 'NEW')))"
    arguments = ("-np", "3", "-H", "h1:2,h2:2", "-x", "MINE", "-x", "NEW=5")
    done = run_hora("run", *arguments, *python(program), HORA_SSH=str(stand_in), MINE="yes", OTHER="no")
    assert done.returncode == 0, done.stderr
    lines = sorted(line.partition(":")[2] for line in done.stdout.splitlines())
    assert lines == ["0 h1 yes None 5", "1 h1 yes None 5", "2 h2 yes None 5"]


def test_workers_are_where_the_launcher_is(stand_in: Path, tmp_path: Path) -> None:
    arguments = ("-H", "h1:1,h2:1", *python("import os; print(os.getcwd())"))
    done = run_hora("run", *arguments, cwd=tmp_path, HORA_SSH=str(stand_in))
    assert [line.partition(":")[2] for line in done.stdout.splitlines()] == [str(tmp_path)] * 2


FAILURES = [
    ("echo 'Permission denied (publickey).' >&2; exit 255", "h2: ssh said: Permission denied (publickey)."),
    (
        "echo 'connect to host h2 port 22: Connection refused' >&2; exit 255",
        "Connection refused. Try 'ssh -o BatchMode",
    ),
    ("echo 'sh: 1: exec: python: not found' >&2; exit 127", "does not exist there"),
    ('echo "/python: No module named hora" >&2; exit 1', "Hora is not installed for"),
    ("exit 4", "h2: ssh ended with exit code 4 and printed nothing"),
    ('exec sh -c "head -c 20 | $*"', "h2: the order on standard input is incomplete"),
]


@pytest.mark.parametrize(("special", "said"), FAILURES, ids=[said for _, said in FAILURES])
def test_one_error_names_the_host_and_what_happened(tmp_path: Path, special: str, said: str) -> None:
    fake = make(tmp_path, f'if [ "$host" = h2 ]; then\n{special}\nfi')
    done = run_hora("run", "-H", "h1:1,h2:1", "sleep", "60", HORA_SSH=str(fake))
    assert done.returncode == 3, done.stderr
    wanted = said.replace("h2: the order", f"{os.uname().nodename}: the order")
    assert wanted in done.stderr and done.stderr.startswith("hora: ") and "Traceback" not in done.stderr
    assert not done.stdout


def test_a_launcher_that_cannot_be_reached(tmp_path: Path) -> None:
    """The agent on h2 runs where the launcher's addresses lead nowhere: in a network of its own, if that can be had."""
    if subprocess.run(["unshare", "--net", "--map-root-user", "true"], capture_output=True).returncode:
        pytest.skip("hardware: a kernel that gives this user a network of its own")
    fake = make(tmp_path, 'if [ "$host" = h2 ]; then exec unshare --net --map-root-user sh -c "$*"; fi')
    done = run_hora("run", "-H", "h1:1,h2:1", "sleep", "60", HORA_SSH=str(fake))
    assert done.returncode == 3, done.stderr
    assert "h2: the agent could not reach the launcher at" in done.stderr and "--network-interfaces" in done.stderr


def test_a_host_that_never_answers_is_given_up(tmp_path: Path) -> None:
    fake = make(tmp_path, 'if [ "$host" = h2 ]; then exec sleep 60; fi')
    done = run_hora("run", "-H", "h1:1,h2:1", "--start-timeout", "3", "sleep", "60", HORA_SSH=str(fake))
    assert done.returncode == 3
    assert "hora: starting agents on h1, h2 by ssh" in done.stderr, "it took long, so the stages are told"
    assert "h1 connected from" in done.stderr and "waiting for h2" in done.stderr
    assert "h2 did not connect within 5 s" in done.stderr


def test_a_start_can_be_interrupted(tmp_path: Path) -> None:
    fake = make(tmp_path, "kill -INT $PPID; exec sleep 60")
    done = run_hora("run", "-H", "h1:1", "true", HORA_SSH=str(fake))
    assert done.returncode == 130 and "stopped by SIGINT" in done.stderr


def test_dry_run_shows_commands_and_no_secret(stand_in: Path) -> None:
    done = run_hora("run", "-H", "h1:1,h2:1", "-p", "2222", "-i", "key", "--dry-run", "true", HORA_SSH=str(stand_in))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "on: ssh" in lines
    (first,) = (line for line in lines if line.startswith("agent on h1: "))
    assert str(stand_in) in first and "-p 2222 -i key h1 'exec " in first and "hora.launch.host.agent" in first
    assert any(line.startswith("rank 1 on h2: ") and "HORA_RANK=1" in line and line.endswith(" true") for line in lines)
    assert "SECRET" not in done.stdout


def test_what_goes_to_other_machines() -> None:
    kept = [
        "HORA_X",
        "HOROVOD_X",
        "OMP_NUM_THREADS",
        "PYTHONPATH",
        "PATH",
        "LD_LIBRARY_PATH",
        "CUDA_X",
        "NCCL_X",
        "MINE",
    ]
    left = ["HOME", "USER", "SSH_AUTH_SOCK", "DISPLAY", "HORA_JOB", "HORA_SECRET", "HORA_HUB_FD", "LD_PRELOAD"]
    environment = dict.fromkeys([*kept, *left], "v")
    assert list(exported(environment, ["MINE"])) == kept


def test_options_of_the_user_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORA_SSH", "ssh -o StrictHostKeyChecking=no")
    ((_, command),) = SshStarter().commands(["h9"])
    assert command.index("StrictHostKeyChecking=no") < command.index("StrictHostKeyChecking=accept-new")


def test_nothing_is_left(stand_in: Path) -> None:
    done = run_hora(
        "run", "-H", "h1:1,h2:1", *python("import os; print(os.environ['HORA_JOB'])"), HORA_SSH=str(stand_in)
    )
    jobs = [line.partition(":")[2] for line in done.stdout.splitlines()]
    assert len(set(jobs)) == 2 and not any(map(processes_of, jobs))
    assert SOURCE.exists()
