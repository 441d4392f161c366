"""Strangers to a job between hosts: nobody sees the secret, and who does not know it gets nothing."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.hosts import Cluster, Host, python
from tests.cluster.sshd import Sshd
from tests.cluster.watch import Watched, hora_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

END_S = 30.0
NONCE_BYTES = 64  # a hail and a nonce, which tell nothing
LISTENING = "0A"

# Takes its secret, notes it and puts it back; then reduces until it is told to stop.
WORKER = """
import json, os, sys
import torch
if "HORA_SECRET_FD" in os.environ:
    secret = os.read(int(os.environ["HORA_SECRET_FD"]), 32)
    reader, writer = os.pipe()
    os.write(writer, secret)
    os.close(writer)
    os.environ["HORA_SECRET_FD"] = str(reader)
    open(sys.argv[1] + "/secret." + os.environ["HORA_RANK"], "wb").write(secret)
import hora.torch as hvd
hvd.init()
tensor = torch.ones(100_000)
assert hvd.allreduce(tensor, name="first", op=hvd.Sum)[0] == hvd.size()
os.write(1, json.dumps({"ready": hvd.rank(), "pid": os.getpid()}).encode() + b"\\n")
stop = torch.zeros(1)
while not hvd.allreduce(stop, name="stop", op=hvd.Sum)[0]:
    assert hvd.allreduce(tensor, name="loop", op=hvd.Sum)[-1] == hvd.size()
    stop[0] = os.path.exists(sys.argv[1] + "/stop")
hvd.shutdown()
"""

# Knocks at every door (host:port) on its command line, once for each word; prints what it hears in two seconds.
STRANGER = """
import json, os, selectors, socket, struct, sys, time
words = [b"", os.urandom(4096), b"GET / HTTP/1.0\\r\\n\\r\\n", struct.pack(">I", 2**31), struct.pack("<I", 2**31 - 1)]
heard, selector = {}, selectors.DefaultSelector()
for door in sys.argv[1:]:
    for number, word in enumerate(words):
        sock = socket.create_connection(door.split(":"), 5)
        heard[f"{door} {number}"] = 0
        selector.register(sock, selectors.EVENT_READ, f"{door} {number}")
        sock.sendall(word)
end = time.monotonic() + 2
while time.monotonic() < end and selector.get_map():
    for key, _ in selector.select(0.1):
        try:
            part = key.fileobj.recv(65536)
        except OSError:
            part = b""
        heard[key.data] += len(part)
        if not part:
            selector.unregister(key.fileobj)
print(json.dumps(heard))
"""


@pytest.fixture
def script(two_hosts: Cluster, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "stranger_worker.py"
    path.write_text(WORKER)
    yield path
    two_hosts.wait_until_gone(str(path))


def listeners(host: Host) -> set[tuple[str, int]]:
    """Addresses and ports on which something on the host listens."""
    found = set()
    for table in "tcp", "tcp6":
        for line in Path(f"/proc/{host.init}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state != LISTENING:
                continue
            words, port = local.split(":")
            packed = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
            found.add((socket.inet_ntop(socket.AF_INET6 if table == "tcp6" else socket.AF_INET, packed), int(port, 16)))
    return found


def finish(job: Watched, place: Path) -> None:
    (place / "stop").touch()
    assert job.wait(END_S) == 0, job.output


def test_the_secret_is_on_no_command_line_and_in_no_environment(
    two_hosts: Cluster, ssh: Sshd, script: Path, tmp_path: Path
) -> None:
    command = hora_run("-np", "4", "-H", "h1:2,h2:2", script, tmp_path)
    with Watched(two_hosts.login, command, tmp_path) as job:
        job.ready()
        secrets = {path.read_bytes() for path in tmp_path.glob("secret.*")}
        assert len(secrets) == 1 and len(next(iter(secrets))) == 32
        [secret] = secrets
        shown = (secret, secret.hex().encode(), secret.hex().upper().encode())
        seen = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                for name in ("cmdline", "environ"):
                    try:
                        text = (entry / name).read_bytes()
                    except OSError:
                        continue
                    seen += 1
                    assert not any(form in text for form in shown), (entry, name)
        assert seen > 10
        finish(job, tmp_path)
    assert secret.hex() not in job.output


def test_a_stranger_gets_nothing_and_does_no_harm(two_hosts: Cluster, ssh: Sshd, script: Path, tmp_path: Path) -> None:
    before = {host.name: listeners(host) for host in two_hosts}
    command = hora_run("-np", "4", "-H", "h1:2,h2:2", script, tmp_path)
    with Watched(two_hosts.login, command, tmp_path) as job:
        job.ready()
        doors = {host: {port for _, port in listeners(host) - before[host.name]} for host in two_hosts}
        assert doors[two_hosts.login], "the launcher must listen somewhere"
        for host, ports in doors.items():
            visitor = two_hosts["h2"] if host.name != "h2" else two_hosts["h1"]
            names = [f"{host.address}:{port}" for port in sorted(ports)]
            heard = json.loads(visitor.run(python("-c", STRANGER, *names), 60, check=True).stdout)
            assert all(count <= NONCE_BYTES for count in heard.values()), (host.name, heard)
            assert job.process.poll() is None, job.output
        finish(job, tmp_path)


def test_one_host_opens_no_port(two_hosts: Cluster, script: Path, tmp_path: Path) -> None:
    host = two_hosts["h1"]
    before = listeners(host)
    with Watched(host, hora_run("-np", "2", script, tmp_path), tmp_path) as job:
        job.ready(2)
        assert listeners(host) == before
        finish(job, tmp_path)


def test_nobody_listens_on_an_interface_that_was_not_asked_for(
    two_hosts: Cluster, ssh: Sshd, script: Path, tmp_path: Path
) -> None:
    """Nor for the moments in which hosts connect: it is looked at all the time."""
    before = {host.name: listeners(host) for host in two_hosts}
    seen: dict[str, set[str]] = {host.name: set() for host in two_hosts}
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            for host in two_hosts:
                seen[host.name] |= {address for address, _ in listeners(host) - before[host.name]}

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        command = hora_run("-np", "2", "-H", "h1,h2", "--network-interfaces", "eth0", script, tmp_path)
        with Watched(two_hosts["h1"], command, tmp_path) as job:
            job.ready(2)
            finish(job, tmp_path)
    finally:
        over.set()
        watcher.join(END_S)
    for host in two_hosts:
        assert seen[host.name] <= {host.address}, (host.name, seen[host.name])
    assert seen["h1"], "the launcher must listen somewhere"
