"""What cannot work on other hosts is one clear error that names the host, with exit code 3, in time."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.hosts import ROOT, Cluster, Host
from tests.cluster.slurm import Slurm
from tests.cluster.sshd import Sshd
from tests.cluster.watch import WORKER, hora_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

RIGHT = [WORKER, "right"]
BOUND_S = 40.0
UNFIT, USAGE = 3, 2


@pytest.fixture(autouse=True)
def nothing_left(two_hosts: Cluster) -> Iterator[None]:
    yield
    two_hosts.wait_until_gone(str(WORKER))
    two_hosts.wait_until_gone("hora.launch.host.agent")


def refused(host: Host, *arguments: str | Path, code: int = UNFIT, **environment: str) -> str:
    """What ``hora run`` says, after the form of it has been checked."""
    done = host.run(hora_run(*arguments), BOUND_S, cwd="/", env=environment)
    text = done.stdout
    assert done.returncode == code, (done.returncode, text)
    assert "Traceback" not in text and text.count("hora: ") <= 4 and len(text.splitlines()) <= 12, text
    return text


@contextlib.contextmanager
def hidden(host: Host, path: Path, empty: Path) -> Iterator[None]:
    """On this host, nothing is in the directory ``path``."""
    empty.mkdir(exist_ok=True)
    host.bind(empty, str(path))
    try:
        yield
    finally:
        host.run(["umount", path], check=True)


def test_a_host_that_does_not_exist(two_hosts: Cluster, ssh: Sshd) -> None:
    said = refused(two_hosts.login, "-np", "4", "-H", "h1:2,nowhere:2", *RIGHT)
    assert "nowhere" in said and "resolve" in said


def test_a_key_that_is_refused(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text((ssh.place / "ssh_config").read_text().replace(f"{ssh.place}/id", f"{ssh.place}/stranger"))
    said = refused(two_hosts.login, "-np", "2", "-H", "h2:2", *RIGHT, HORA_SSH=f"ssh -F {config}")
    assert "Permission denied" in said and "h2" in said and "ssh -o BatchMode=yes" in said


def test_a_host_key_that_has_changed(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"h2 {(ssh.place / 'stranger.pub').read_text()}")
    option = f"ssh -o UserKnownHostsFile={known}"
    assert "h2" in refused(two_hosts.login, "-np", "1", "-H", "h2", *RIGHT, HORA_SSH=option)


def test_a_host_without_sshd(two_hosts: Cluster, ssh: Sshd) -> None:
    said = refused(two_hosts.login, "-np", "1", "-H", "h2", "-p", "2222", *RIGHT)
    assert "Connection refused" in said and "h2" in said


def test_a_host_whose_link_is_cut(two_hosts: Cluster, ssh: Sshd) -> None:
    two_hosts["h2"].cut()
    try:
        said = refused(two_hosts.login, "-np", "2", "-H", "h1,h2", *RIGHT)
    finally:
        two_hosts["h2"].mend()
    assert "h2" in said


def test_a_launcher_that_cannot_be_reached(two_hosts: Cluster, ssh: Sshd) -> None:
    """The agent starts, but the only address it is given leads nowhere from there."""
    said = refused(two_hosts.login, "-np", "2", "-H", "h1,h2", "--network-interfaces", "docker0", *RIGHT)
    assert "172.17.0.1" in said and ("h1" in said or "h2" in said)


def test_an_interface_that_does_not_exist(two_hosts: Cluster, ssh: Sshd) -> None:
    said = refused(two_hosts.login, "-np", "2", "-H", "h1,h2", "--network-interfaces", "ib7", *RIGHT, code=USAGE)
    assert "ib7" in said and "br0" in said


def test_an_interpreter_that_is_missing_there(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    with hidden(two_hosts["h2"], Path(sys.executable).parent, tmp_path / "empty"):
        said = refused(two_hosts.login, "-np", "2", "-H", "h1,h2", *RIGHT)
    assert "h2" in said and sys.executable in said and "does not exist there" in said


def test_hora_that_is_missing_there(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    with hidden(two_hosts["h2"], ROOT / "src" / "hora", tmp_path / "empty"):
        said = refused(two_hosts.login, "-np", "2", "-H", "h1,h2", *RIGHT)
    assert "h2" in said and "not installed" in said


def test_a_command_that_is_missing_there(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    with hidden(two_hosts["h2"], tmp_path / "bin", tmp_path / "empty"):
        said = refused(two_hosts.login, "-np", "2", "-H", "h1,h2", tool)
    assert "h2" in said and str(tool) in said


def test_too_many_tasks(slurm: Slurm) -> None:
    job = slurm.sbatch(f"#!/bin/sh\n{' '.join(hora_run('-np', '5', *RIGHT))}\n", "--nodes=2", "--ntasks-per-node=2")
    said = job.wait(BOUND_S)
    assert job.exit_code == UNFIT, said
    assert "-np 5" in said and "h1:2,h2:2 has 4" in said and "Traceback" not in said


def test_too_many_workers(two_hosts: Cluster, ssh: Sshd) -> None:
    assert "h1:2,h2:2 has 4" in refused(two_hosts.login, "-np", "5", "-H", "h1:2,h2:2", *RIGHT, code=USAGE)


def test_slurm_without_an_allocation(two_hosts: Cluster, slurm: Slurm) -> None:
    assert "salloc" in refused(two_hosts.login, "-np", "2", "--on", "slurm", *RIGHT)


def test_a_script_that_would_be_alone_in_an_allocation(slurm: Slurm) -> None:
    job = slurm.sbatch(f"#!/bin/sh\n{sys.executable} {WORKER} right\n", "--nodes=2", "--ntasks-per-node=2")
    said = job.wait(BOUND_S)
    assert job.exit_code != 0 and "srun" in said and "HORA_ALONE=1" in said, said
