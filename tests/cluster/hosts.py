"""Hosts of a cluster, made of namespaces: each has its own network, name, processes, ``/tmp`` and ``/dev/shm``.

A host is everything below one process, the first of a new PID namespace, which waits for its standard input to end. It
does when the host is closed, and also when the test run is killed; the kernel then ends whatever still runs on the host
and takes the namespaces, the links and the mounts with them. Nothing has a name outside, so two runs never collide, and
there is nothing to clean up.

The hosts hang on a bridge in the namespace of another host, ``login``. Every host has a ``docker0`` with the same
address, as clusters do: whoever offers that one to others will never be found.

Of the file system, all hosts share what this machine has, as clusters share home directories, except ``/tmp`` and
``/dev/shm``; in ``/tmp`` they share the directories that were named when they were made.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from tests.launch.jobs import children_of, clean_environment

__all__ = ["Cluster", "Host", "missing_for_hosts", "python"]

ROOT = Path(__file__).resolve().parents[2]
NET = "10.77.0"
START_S = 20.0

# $1: name; the rest: directories in /tmp that stay visible. They are held open while /tmp is covered.
_INIT = """
set -e
hostname "$1"; shift
ip link set lo up
fd=3
for place; do eval "exec $fd<\\"\\$place\\""; fd=$((fd + 1)); done
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
fd=3
for place; do
    mkdir -p "$place"
    mount --no-canonicalize --bind "/proc/self/fd/$fd" "$place"
    eval "exec $fd<&-"
    fd=$((fd + 1))
done
echo ready
trap '' CHLD  # inherited by cat: what is orphaned on this host is reaped by the kernel
exec cat >/dev/null
"""


def missing_for_hosts(*commands: str) -> str:
    """Why there can be no hosts here, or nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [name for name in ("ip", "tc", "unshare", "nsenter", "setpriv", *commands) if not which(name)]
    if absent:
        return f"{', '.join(absent)} not installed"
    tried = subprocess.run(["unshare", "--net", "--pid", "--mount", "--fork", "true"], capture_output=True, text=True)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


def which(command: str) -> str | None:
    return shutil.which(command, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def python(*arguments: str | Path) -> list[str]:
    return [sys.executable, *map(str, arguments)]


class Host:
    """One host. ``init`` is the pid of its first process as this machine sees it."""

    def __init__(self, name: str, address: str, shared: Sequence[Path], environment: Mapping[str, str]) -> None:
        self.name, self.address = name, address
        self.environment = dict(environment)  # of everything that is started on it
        self._daemons: list[subprocess.Popen[str]] = []
        self._port: tuple[Host, str] | None = None  # where its cable is plugged in
        self._frame = subprocess.Popen(
            ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
             "sh", "-c", _INIT, "init", name, *map(str, shared)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert self._frame.stdout is not None
        readable, _, _ = select.select([self._frame.stdout], [], [], START_S)
        said = self._frame.stdout.readline() if readable else b"nothing"
        if said != b"ready\n":
            self._frame.kill()
            raise RuntimeError(f"host {name} did not come up: {(said + self._frame.stdout.read()).decode()}")
        [self.init] = children_of(self._frame.pid)
        self.root = Path(f"/proc/{self.init}/root")  # the host's file system

    def popen(self, command: Sequence[str | Path], **options: Any) -> subprocess.Popen[str]:
        """Start ``command`` on the host; it ends with the process that is returned. ``env`` is added to the host's."""
        options["env"] = clean_environment() | self.environment | options.get("env", {})
        options["env"].pop("PYTHONPATH", None)  # Hora is installed here, as it is for users
        options = {"stdin": subprocess.DEVNULL, "text": True, "errors": "replace", **options}
        enter = ["nsenter", f"--target={self.init}", "--net", "--uts", "--ipc", "--mount", "--pid", "--wdns=/"]
        if "cwd" in options:
            enter[-1] = f"--wdns={options.pop('cwd')}"
        return subprocess.Popen([*enter, "setpriv", "--pdeathsig=KILL", *map(str, command)], **options)

    def start(self, command: Sequence[str | Path], **options: Any) -> subprocess.Popen[str]:
        """Like ``popen``, with both kinds of output in one pipe."""
        return self.popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)

    def daemon(self, command: Sequence[str | Path], log: Path) -> subprocess.Popen[str]:
        """Start ``command``, which ends with the host, and let it write to ``log``."""
        with log.open("a") as file:
            self._daemons.append(self.popen(command, stdout=file, stderr=file))
        return self._daemons[-1]

    def run(
        self, command: Sequence[str | Path], timeout_s: float = 60.0, check: bool = False, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """``command`` on the host to its end, with both kinds of output in ``stdout``."""
        with tempfile.TemporaryFile(
            "w+", errors="replace"
        ) as said:  # not a pipe: what is left behind would hold it open
            process = self.popen(command, stdout=said, stderr=subprocess.STDOUT, **options)
            try:
                returncode: int | None = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                returncode = None
            finally:
                process.kill()
                process.wait()
            said.seek(0)
            output = said.read()
        words = f"on {self.name}, {' '.join(map(str, command))}"
        assert returncode is not None, f"{words}: still running after {timeout_s:g} s\n{output}"
        assert not check or returncode == 0, f"{words}: exit {returncode}\n{output}"
        return subprocess.CompletedProcess(process.args, returncode, output)

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a process by the number it has on this host."""
        os.kill(self.pids()[pid], number)

    def pids(self) -> dict[int, int]:
        """Live processes of this host: their pid on it, and the one by which this machine knows them."""
        found = {}
        for process in _processes_below(self.init):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{process}/status").read_text()
                fields = dict(line.split(":\t", 1) for line in status.splitlines())
                if not fields["State"].startswith("Z"):
                    found[int(fields["NSpid"].split()[-1])] = process
        return found

    # ---- the cable ----

    def plug_into(self, switch: Host, port: str) -> None:
        _ip("link", "add", "eth0", "netns", self.init, "type", "veth", "peer", "name", port, "netns", switch.init)
        for side, device in ((self, "eth0"), (switch, port)):
            side._run_ip("link", "set", device, "up")
        switch._run_ip("link", "set", port, "master", "br0")
        self._run_ip("addr", "add", f"{self.address}/24", "dev", "eth0")
        self._port = (switch, port)

    def cut(self) -> None:
        """Pull the cable: nothing goes in or out, and nobody is told."""
        self._switch_port("down")

    def mend(self) -> None:
        self._switch_port("up")

    def isolate(self, yes: bool = True) -> None:
        """Isolated hosts reach ``login``, but not each other."""
        assert self._port is not None, f"{self.name} is the switch itself"
        switch, port = self._port
        switch._run_ip("link", "set", port, "type", "bridge_slave", "isolated", "on" if yes else "off")

    @contextlib.contextmanager
    def limited(self, rate: str) -> Iterator[None]:
        """Cap what the host sends, such as at ``1gbit``."""
        tbf = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
        self.run(["tc", "qdisc", "replace", "dev", "eth0", *tbf], check=True)
        try:
            yield
        finally:
            self.run(["tc", "qdisc", "del", "dev", "eth0", "root"], check=True)

    def bind(self, source: Path, target: str) -> None:
        """Show ``source`` in the place of ``target``, on this host only."""
        self.run(["mount", "--bind", source, target], check=True)

    def close(self) -> None:
        """End everything on the host, and the host."""
        assert self._frame.stdin is not None and self._frame.stdout is not None
        self._frame.stdin.close()
        self._frame.stdout.close()
        try:
            self._frame.wait(START_S)
        except subprocess.TimeoutExpired:
            self._frame.kill()
            self._frame.wait(START_S)
        for daemon in self._daemons:
            daemon.wait(START_S)

    def _switch_port(self, state: str) -> None:
        assert self._port is not None, f"{self.name} is the switch itself"
        switch, port = self._port
        switch._run_ip("link", "set", port, state)

    def _run_ip(self, *arguments: object) -> None:
        _ip(*arguments, within=["nsenter", f"--target={self.init}", "--net"])


class Cluster:
    """``login`` and ``count`` hosts h1, h2, … on one network, all of which know each other's names."""

    def __init__(self, count: int, place: Path, shared: Sequence[Path] = ()) -> None:
        self.place = place
        self.home = place / "home"
        self.home.mkdir()
        seen = [path for path in (ROOT, Path(sys.prefix), Path(sys.base_prefix), place, *shared) if _in_tmp(path)]
        environment = {"HOME": str(self.home), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        self._all: list[Host] = []
        try:
            for number in range(count + 1):
                name, last = (f"h{number}", number) if number else ("login", 254)
                self._all.append(Host(name, f"{NET}.{last}", seen, environment))
            self.login, *self.hosts = self._all
            self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        self.login._run_ip("link", "add", "br0", "type", "bridge")
        self.login._run_ip("link", "set", "br0", "up")
        self.login._run_ip("addr", "add", f"{self.login.address}/24", "dev", "br0")
        names = self.place / "hosts"
        names.write_text("127.0.0.1 localhost\n" + "".join(f"{h.address} {h.name}\n" for h in self._all))
        users = self.place / "passwd"
        users.write_text(
            re.sub(r"^(root:(?:[^:]*:){4})[^:]*", rf"\g<1>{self.home}", Path("/etc/passwd").read_text(), flags=re.M)
        )
        nameserver = self.place / "resolv.conf"
        nameserver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")  # which does not answer
        for host in self._all:
            host.bind(names, "/etc/hosts")
            host.bind(nameserver, "/etc/resolv.conf")
            host.bind(users, "/etc/passwd")  # so that a login over ssh has the same home
            host._run_ip("link", "add", "docker0", "type", "bridge")
            host._run_ip("addr", "add", "172.17.0.1/16", "dev", "docker0")
            host._run_ip("link", "set", "docker0", "up")
        for number, host in enumerate(self.hosts, start=1):
            host.plug_into(self.login, f"port{number}")

    def __iter__(self) -> Iterator[Host]:
        return iter(self._all)

    def __getitem__(self, name: str) -> Host:
        return next(host for host in self._all if name in (host.name, host.address))

    # ---- what a job leaves behind ----

    def processes(self, mark: str) -> dict[str, str]:
        """Live processes on any host that carry ``mark`` in their command or environment: where, and their command."""
        found = {}
        for host in self._all:
            for inner, pid in host.pids().items():
                with contextlib.suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if mark.encode() in command + Path(f"/proc/{pid}/environ").read_bytes():
                        found[f"{host.name}:{inner}"] = command.replace(b"\0", b" ").decode(errors="replace")
        return found

    def files(self) -> set[str]:
        """Hora's files in the places where it might leave some."""
        found = {f"home:{path.name}" for path in self.home.glob(".cache/hora/*")}
        for host in self._all:
            for place in ("tmp", "dev/shm"):
                found |= {f"{host.name}:{path.name}" for path in (host.root / place).glob("*hora*/*.hub")}
                found |= {f"{host.name}:{path.name}" for path in (host.root / place).glob("*hora*") if path.is_file()}
        return found

    def wait_until_gone(self, mark: str, deadline_s: float = 10.0) -> None:
        """Nothing is left of the job on any host, soon."""
        end = time.monotonic() + deadline_s
        while left := self.processes(mark):
            assert time.monotonic() < end, f"left behind after {deadline_s:g} s: {left}"
            time.sleep(0.02)
        assert not (files := self.files()), f"left behind: {files}"

    def close(self) -> None:
        for host in reversed(self._all):
            host.close()


def _in_tmp(path: Path) -> bool:
    return Path("/tmp") in path.parents


def _ip(*arguments: object, within: Sequence[str] = ()) -> None:
    command = [*within, which("ip") or "ip", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def _processes_below(init: int) -> list[int]:
    """Processes in the PID namespace whose first process is ``init``; those that were entered are no descendants."""
    wanted = os.readlink(f"/proc/{init}/ns/pid")
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/pid") == wanted:
                found.append(pid)
    return found
