"""How workers on several hosts discover their hub if another launcher started them.

The lowest rank runs the hub and publishes its addresses and the job's secret (``engine.hub_address``). It publishes
them in every way that this launcher allows, and the others look in all of them:

- ``FileDiscovery``: a file that only this user can read, in a directory that the hosts share
- ``MungeDiscovery``, under Slurm: the lowest rank listens on its node, and both sides show a credential of munge, which
  says that they are the same user; the address is sent inside one, so only this user can read it
- ``PmixDiscovery``, under Open MPI or ``srun --mpi=pmix``: a key of the PMIx server that started the workers
- ``PmiDiscovery``, under MPICH and Intel MPI: a name published with ``mpiexec``, by PMI-1
- ``TorchStoreDiscovery``, under torchrun, and where MASTER_ADDR and MASTER_PORT are set: torch's store, which anybody
  may read and write; the secret goes to each worker sealed, with a key that both agree on there (``wire.keys``)

docs/reliability.md says what each of them proves. None of them blocks: ``look`` returns None if there is nothing yet.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import ctypes.util
import hashlib
import importlib
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import msgspec

from hora.config.world import World
from hora.engine import pmix
from hora.engine.hub_address import HubAddress, address_file
from hora.wire.addresses import candidates, split
from hora.wire.keys import KeyPair
from hora.wire.munge import Munge

__all__ = ["HubDiscovery", "addresses_of", "discoveries"]

_PORTS = 4  # where to listen for those who cannot be told a port: the first that is free
_FIRST_PORT, _PORT_RANGE = 16384, 16000  # below what kernels give out by themselves
_MOST_NODES = 32  # among which the lowest rank is looked for
_MOST_AT_ONCE = 32  # who may just be asking
_TALK_S = 5.0
_AGAIN_S = 0.1
_CREDENTIAL_BYTES = 1 << 16


class HubDiscovery(Protocol):
    """``what`` names it in messages."""

    what: str

    def offer(self, notice: HubAddress) -> None:
        """By the lowest rank: make it known. Raises OSError if that cannot be done in this way."""

    def look(self) -> HubAddress | None:
        """By the others: what is known by now. Raises OSError if there is nothing to be had in this way."""

    def close(self) -> None:
        """Clean up. Called by the lowest rank when all have connected, by the others once connected."""


def discoveries(world: World, members: tuple[int, ...], deadline_s: float) -> list[HubDiscovery]:
    """All ways that this launch has, the cheapest first."""
    hints, found = world.hints, list[HubDiscovery]()
    if world.job_key:
        found.append(FileDiscovery(address_file(world, members)))
    key = hashlib.blake2b(repr((world.job_key, members)).encode(), digest_size=12).hexdigest()
    if hints.nodes and (munge := Munge(hints.slurm_conf)).here:
        found.append(MungeDiscovery(munge, hints.nodes, key))
    everybody = members == tuple(range(world.size))  # or servers would wait for those who do not ask
    if everybody and hints.pmix and (library := _pmix_library(hints.pmix)):
        found.append(PmixDiscovery(library, key, deadline_s))
    if everybody and hints.pmi_fd >= 0:
        found.append(PmiDiscovery(hints.pmi_fd, key))
    if hints.master:
        found.append(TorchStoreDiscovery(hints.master, hints.master_runs, world.rank, members, key, deadline_s))
    return found


def addresses_of(world: World, interfaces: Sequence[str]) -> tuple[str, ...]:
    """Where the lowest rank listens: at the one address by which its host is known to the launcher, if that is one of
    its own and no interfaces were named; else at all that others might reach."""
    own = candidates(interfaces)
    if interfaces:
        return own
    name = split(world.hints.master)[0] if world.hints.master else world.host
    with contextlib.suppress(OSError):
        known = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
        return tuple(address for address in own if address in known)[:1] or own
    return own


class FileDiscovery:
    """A file in a directory that the hosts share."""

    def __init__(self, path: Path) -> None:
        self.path, self.what = path, f"in the directory {path.parent}"

    def offer(self, notice: HubAddress) -> None:
        notice.put_up(self.path)

    def look(self) -> HubAddress | None:
        return HubAddress.read(self.path)

    def close(self) -> None:
        """The hub removes it when all have come."""


class MungeDiscovery:
    """The lowest rank's node, and munge."""

    def __init__(self, munge: Munge, nodes: Sequence[str], key: str) -> None:
        self.what = f"on the nodes of the step ({nodes[0]}, …), by munge"
        self._munge, self._key = munge, key.encode()
        digests = (hashlib.blake2b(f"{key} {number}".encode(), digest_size=4).digest() for number in range(_PORTS))
        ports = [_FIRST_PORT + int.from_bytes(digest, "big") % _PORT_RANGE for digest in digests]
        self._ports, self._places = ports, [(node, port) for node in nodes[:_MOST_NODES] for port in ports]
        self._next, self._over = 0, threading.Event()

    def offer(self, notice: HubAddress) -> None:
        self._munge.seal(b"")  # is there one at all?
        host = split(notice.addresses[0])[0]
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        for port in self._ports:
            with contextlib.suppress(OSError):
                listener = socket.create_server((host, port), family=family)
                threading.Thread(target=self._answer, args=(listener, notice), daemon=True, name="hora-notice").start()
                return
        raise OSError(f"none of the ports {', '.join(map(str, self._ports))} is free on {host}")

    def _answer(self, listener: socket.socket, notice: HubAddress) -> None:
        """Until all have come. Several at once, so that who connects and says nothing holds up nobody."""
        listener.settimeout(_AGAIN_S)
        room = threading.BoundedSemaphore(_MOST_AT_ONCE)
        with listener:
            while not self._over.is_set():
                with contextlib.suppress(OSError):
                    sock, _ = listener.accept()
                    if room.acquire(timeout=_TALK_S):
                        threading.Thread(
                            target=self._tell, args=(sock, notice, room), daemon=True, name="hora-notice"
                        ).start()
                    else:
                        sock.close()

    def _tell(self, sock: socket.socket, notice: HubAddress, room: threading.BoundedSemaphore) -> None:
        try:
            with contextlib.suppress(OSError), sock:
                sock.settimeout(_TALK_S)
                if self._munge.unseal(_take(sock)) == self._key:
                    _put(sock, self._munge.seal(self._key + msgspec.json.encode(notice)))
        finally:
            room.release()

    def look(self) -> HubAddress | None:
        """Tries one place, and the next one the next time."""
        place = self._places[self._next % len(self._places)]
        self._next += 1
        try:
            sock = socket.create_connection(place, _TALK_S)
        except OSError:  # nobody is there yet, or it is another node
            return None
        with sock:
            sock.settimeout(_TALK_S)
            _put(sock, self._munge.seal(self._key))
            try:
                told = self._munge.unseal(_take(sock))
            except OSError:  # somebody else listens there
                return None
        return msgspec.json.decode(told[len(self._key) :], type=HubAddress) if told.startswith(self._key) else None

    def close(self) -> None:
        self._over.set()


def _put(sock: socket.socket, text: bytes) -> None:
    sock.sendall(len(text).to_bytes(4, "big") + text)


def _take(sock: socket.socket) -> bytes:
    size = int.from_bytes(_exactly(sock, 4), "big")
    if size > _CREDENTIAL_BYTES:
        raise OSError("that is no credential")
    return _exactly(sock, size)


def _exactly(sock: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        if not (part := sock.recv(size - len(got))):
            raise OSError("the other side hung up")
        got += part
    return got


class PmixDiscovery:
    """The PMIx server that started this worker. It wants all workers to come to it, once one has, and to take leave."""

    what = "from the PMIx server that started the workers"

    def __init__(self, library: str, key: str, deadline_s: float) -> None:
        self._command = [sys.executable, "-I", pmix.__file__, library, f"hora.{key}", str(deadline_s)]
        self._deadline_s = deadline_s
        self._asking: subprocess.Popen[bytes] | None = None
        self._came = False

    def offer(self, notice: HubAddress) -> None:
        self._came = True
        try:
            done = subprocess.run(self._command, input=_packed(notice), capture_output=True, timeout=self._deadline_s)
        except subprocess.TimeoutExpired as error:
            raise OSError("PMIx does not answer") from error
        if done.returncode:
            raise OSError(f"PMIx: {done.stderr.decode(errors='replace').strip() or done.returncode}")

    def look(self) -> HubAddress | None:
        if self._asking is None:
            self._came = True
            self._asking = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        if self._asking.poll() is None:
            return None
        assert self._asking.stdout is not None
        if said := self._asking.stdout.read():
            return _unpacked(said)
        if self._asking.returncode == 0:
            return None
        raise OSError("PMIx does not know of it")

    def close(self) -> None:
        if not self._came:
            with contextlib.suppress(OSError):
                self.look()
        if self._asking is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._asking.wait(_TALK_S)
            self._asking.kill()
            with self._asking:
                pass
            self._asking = None


def _pmix_library(places: Sequence[str]) -> str:
    for place in filter(None, places):
        for folder in ("", "lib", "lib/openmpi", "lib64", "openmpi"):
            if (path := Path(place) / folder / "libpmix.so.2").exists():
                return str(path)
    return ctypes.util.find_library("pmix") or ""


class PmiDiscovery:
    """Names published with ``mpiexec``; the connection is MPI's as well, and is left as it was."""

    what = "from mpiexec, by PMI"

    def __init__(self, fd: int, key: str) -> None:
        self._fd, self._key = fd, f"hora-{key}"

    def offer(self, notice: HubAddress) -> None:
        answer = self._ask(f"cmd=publish_name service={self._key} port={_packed(notice).decode()}")
        if "rc=0" not in answer.split():
            raise OSError(f"mpiexec refuses to publish a name: {answer}")

    def look(self) -> HubAddress | None:
        words = self._ask(f"cmd=lookup_name service={self._key}").split()
        port = next((word.removeprefix("port=") for word in words if word.startswith("port=")), "")
        return _unpacked(port.encode()) if port and "rc=0" in words else None

    def _ask(self, question: str) -> str:
        global _spoken
        if not _spoken:
            _spoken = True
            atexit.register(_finish, self._fd)
        os.write(self._fd, f"{question}\n".encode())
        answer = b""
        while not answer.endswith(b"\n"):
            if not select.select([self._fd], [], [], _TALK_S)[0] or not (part := os.read(self._fd, 4096)):
                raise OSError("mpiexec does not answer")
            answer += part
        return answer.decode(errors="replace")

    def close(self) -> None:
        """It stays open, for MPI and for the end."""


_spoken = False  # with mpiexec, which from then on takes it ill if a worker leaves without a word


def _finish(fd: int) -> None:
    if "mpi4py.MPI" not in sys.modules:  # which says it itself
        with contextlib.suppress(OSError):
            os.write(fd, b"cmd=finalize\n")
            select.select([fd], [], [], _TALK_S)


class TorchStoreDiscovery:
    """torch's store. The secret is sealed for each worker; the addresses are for everybody to see."""

    def __init__(
        self, master: str, runs: bool, rank: int, members: tuple[int, ...], key: str, deadline_s: float
    ) -> None:
        self.what = f"from the store at {master} (MASTER_ADDR, MASTER_PORT)"
        self._place, self._runs, self._rank, self._members = split(master), runs, rank, members
        self._prefix, self._deadline_s, self._pair = f"hora/{key}", deadline_s, KeyPair()
        self._store: Any = None
        self._opening: threading.Thread | None = None
        self._asked, self._failure, self._over = False, "", threading.Event()

    def offer(self, notice: HubAddress) -> None:
        store = self._open()
        public = {"host": notice.host, "addresses": notice.addresses, "public": self._pair.public.hex()}
        store.set(f"{self._prefix}/offer", msgspec.json.encode(public))
        threading.Thread(target=self._answer, args=(store, notice), daemon=True, name="hora-notice").start()

    def _answer(self, store: Any, notice: HubAddress) -> None:
        """Seal the secret for each who asks, until all have come."""
        waited = set(self._members[1:])
        with contextlib.suppress(RuntimeError):  # the store is gone, and so is the job
            while not self._over.wait(_AGAIN_S):
                for rank in [rank for rank in waited if store.check([f"{self._prefix}/{rank}"])]:
                    waited.discard(rank)
                    with contextlib.suppress(ValueError):
                        sealed = self._pair.seal(store.get(f"{self._prefix}/{rank}"), notice.secret)
                        store.set(f"{self._prefix}/{rank}/sealed", sealed)

    def look(self) -> HubAddress | None:
        if self._opening is None:  # which may take as long as rank 0 takes to come
            self._opening = threading.Thread(target=self._open_quietly, daemon=True, name="hora-notice")
            self._opening.start()
        if self._failure:
            raise OSError(self._failure)
        if (store := self._store) is None:
            return None
        try:
            if not self._asked:
                store.set(f"{self._prefix}/{self._rank}", self._pair.public)
                self._asked = True
            if not store.check([f"{self._prefix}/{self._rank}/sealed"]):
                return None
            offer = msgspec.json.decode(store.get(f"{self._prefix}/offer"), type=dict[str, Any])
            sealed = store.get(f"{self._prefix}/{self._rank}/sealed")
        except RuntimeError as error:
            raise OSError(str(error).partition("\n")[0]) from error
        secret = self._pair.unseal(bytes.fromhex(offer["public"]), sealed)
        return None if secret is None else HubAddress(offer["host"], tuple(offer["addresses"]), secret)

    def _open(self) -> Any:
        if self._store is None:
            try:
                distributed: Any = importlib.import_module("torch.distributed")
                serves = not self._runs and self._rank == 0
                self._store = distributed.TCPStore(
                    *self._place, None, serves, timedelta(seconds=self._deadline_s), wait_for_workers=False,
                    multi_tenant=True,
                )  # fmt: skip
            except (ImportError, RuntimeError) as error:
                raise OSError(str(error).partition("\n")[0]) from error
        return self._store

    def _open_quietly(self) -> None:
        try:
            self._open()
        except OSError as error:
            self._failure = str(error)

    def close(self) -> None:
        self._over.set()
        self._store = None


def _packed(notice: HubAddress) -> bytes:
    """In characters that every launcher passes on."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(notice)).rstrip(b"=")


def _unpacked(text: bytes) -> HubAddress | None:
    with contextlib.suppress(ValueError, msgspec.DecodeError):
        text = text.strip()
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4)), type=HubAddress)
    return None
