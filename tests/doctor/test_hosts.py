"""Other hosts, and batch systems."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from tests.doctor.fakes import FakeMachine

from hora.config.env import environ
from hora.doctor import hosts, remote_probe
from hora.doctor.check import CheckResult
from hora.doctor.machine import Machine


def client(folder: Path, body: str) -> str:
    """A program in place of ssh; the host is the last argument but one, the command the last."""
    file = folder / "ssh"
    file.write_text(f'#!/bin/bash\nhost="${{@: -2:1}}"; command="${{@: -1}}"\n{body}\n')
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def visit(folder: Path, body: str, *names: str, python: str = "") -> list[CheckResult]:
    machine = Machine({**environ(), "HORA_SSH": client(folder, body)}, hosts=names)
    if python:
        machine.python = python
    return hosts.probe_hosts(machine)


def test_two_hosts_that_are_in_order(tmp_path: Path) -> None:
    found = visit(tmp_path, 'echo "Welcome to $host"; exec sh -c "$command"', "h1", "h2", "localhost")
    assert [(one.name, one.status) for one in found] == [("h1", "ok"), ("h2", "ok"), ("localhost", "ok")], found
    assert "connections work both ways" in found[0].told and "clock" in found[0].told


@pytest.mark.parametrize(
    ("said", "named", "fix"),
    [
        ("ssh: Could not resolve hostname h1: Name or service not known", "does not resolve", "spelling"),
        ("me@h1: Permission denied (publickey,password).", "refuses the key", "ssh-copy-id h1"),
        ("Host key verification failed.", "host key", "ssh-keygen -R h1"),
        ("ssh: connect to host h1 port 22: Connection refused", "no ssh server", "sshd"),
        ("ssh: connect to host h1 port 22: Connection timed out", "does not answer", "firewall"),
        ("kex_exchange_identification: read: Connection reset", "ssh failed", "ssh -o BatchMode=yes h1 true"),
    ],
)
def test_ssh_refuses(tmp_path: Path, said: str, named: str, fix: str) -> None:
    [found] = visit(tmp_path, f'echo "{said}" >&2; exit 255', "h1")
    assert found.status == "problem" and found.stops
    assert named in found.told and said.rstrip(".") in found.told and fix in found.fix


def test_one_of_two_fails_and_the_other_is_still_told(tmp_path: Path) -> None:
    found = visit(
        tmp_path, '[ $host = h1 ] && exec sh -c "$command"; echo "No route to host" >&2; exit 255', "h1", "h2"
    )
    assert [one.status for one in found] == ["ok", "problem"], found


def test_no_interpreter(tmp_path: Path) -> None:
    [found] = visit(tmp_path, 'exec sh -c "$command"', "h1", python="/nowhere/bin/python")
    assert found.status == "problem" and "no interpreter /nowhere/bin/python" in found.told


def test_no_hora(tmp_path: Path) -> None:
    [found] = visit(tmp_path, 'cd /; unset PYTHONPATH; exec sh -c "${command/ -c / -I -S -c }"', "h1")
    assert found.status == "problem" and "cannot be imported" in found.told and found.stops


def test_another_hora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts.hora, "__version__", "9.9")
    [found] = visit(tmp_path, 'exec sh -c "$command"', "h1")
    assert found.status == "problem" and "here it is Hora 9.9" in found.told


def test_another_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts.describe, "version_of", lambda name: "1.0")
    [found] = visit(tmp_path, 'exec sh -c "$command"', "h1")
    assert found.status == "warning" and "torch 1.0" in found.told


def test_a_clock_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(remote_probe.__file__).read_text().replace("time.time()", "time.time() - 3600")
    other = tmp_path / "remote_probe.py"
    other.write_text(source)
    monkeypatch.setattr(remote_probe, "__file__", str(other))
    [found] = visit(tmp_path, 'exec sh -c "$command"', "h1")
    assert found.status == "warning" and "behind" in found.told and "chrony" in found.fix


class Deaf(remote_probe.ProbeListener):
    """As behind a firewall: nobody gets through."""

    def __init__(self) -> None:
        super().__init__()
        self.close()


def test_no_way_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts.remote_probe, "ProbeListener", Deaf)
    monkeypatch.setattr(hosts, "candidates", lambda: ("127.0.0.1",))
    [found] = visit(tmp_path, 'exec sh -c "$command"', "h1")
    assert found.status == "problem" and found.stops and "--network-interfaces" in found.fix
    assert "h1 cannot connect to this host (127.0.0.1: " in found.told


def test_no_way_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_probe, "reach", lambda *place: "Connection refused")
    [found] = visit(tmp_path, 'exec sh -c "$command"', "h1")
    assert found.status == "problem" and "this host cannot connect to h1 (" in found.told


def test_a_host_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_PROBE_S", 1.5)
    [found] = visit(tmp_path, "exec sleep 60", "h1")
    assert found.status == "problem" and "no answer within" in found.told


def test_the_client() -> None:
    assert hosts.client(Machine({"PATH": "/nowhere"})).status == "not here"
    missing = hosts.client(Machine({"PATH": "/nowhere"}, hosts=("h1",)))
    assert missing.status == "problem" and missing.stops


JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "4"}


def with_slurm(root: Path, **environ: str) -> FakeMachine:
    machine = FakeMachine(root, **environ)
    machine.programs |= {"srun", "sinfo"}
    machine.answer("srun --version", 0, "slurm-wlm 22.05.8\n")
    return machine


def test_none_schedulers(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    assert [check.look(machine).status for check in hosts.BATCH] == ["not here"] * 2  # type: ignore[union-attr]


def test_slurm_outside_a_job(tmp_path: Path) -> None:
    machine = with_slurm(tmp_path)
    machine.answer("sinfo", 0, "debug* 2 idle\ngpu 4 mix\n")
    assert "partitions debug, gpu" in hosts.slurm(machine).told
    machine.answer("sinfo", 1, "", "slurm_load_partitions: Unable to contact slurm controller (connect failure)")
    found = hosts.slurm(machine)
    assert found.status == "note" and "Unable to contact" in found.told


def test_slurm_inside_a_job(tmp_path: Path) -> None:
    machine = with_slurm(tmp_path, **JOB)
    machine.answer("--overlap", 0)
    assert "srun starts a task" in hosts.slurm(machine).told
    machine.answer("--overlap", None)
    found = hosts.slurm(machine)
    assert found.status == "problem" and "2 nodes, 4 tasks" in found.told
    task = with_slurm(tmp_path, **JOB, SLURM_STEP_ID="0", SLURM_PROCID="3")
    assert "task 3 of a step" in hosts.slurm(task).told
    assert hosts.slurm(FakeMachine(tmp_path, **JOB)).status == "problem", "there is no srun"


def test_pbs(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, PBS_JOBID="9.server", PBS_NODEFILE="/var/spool/9")
    assert hosts.pbs(machine).status == "problem"
    machine.put("/var/spool/9", "n1\nn1\nn2\n")
    assert hosts.pbs(machine).told == "inside PBS job 9.server: 3 slots on 2 hosts"
    machine = FakeMachine(tmp_path)
    machine.programs |= {"qsub", "qstat"}
    assert hosts.pbs(machine).status == "note"
    machine.answer("qstat", 0)
    assert hosts.pbs(machine).status == "ok"
