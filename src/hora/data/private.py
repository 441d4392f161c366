"""Folders with well-known names that only this user can write to.

A name in a shared temporary folder can be taken by anybody first: with a folder of theirs, in which they may replace
whatever is put there, or with a link to somewhere else. So a folder is used only if it is this user's.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hora.errors import EnvironmentUnfit

__all__ = ["check_mine", "check_place", "make_private"]


def make_private(folder: Path) -> Path:
    """``folder``, made if need be, and from now on open to this user only; for a name that others can guess.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     oct(make_private(Path(place) / "me-staged").stat().st_mode & 0o777)
    '0o700'
    """
    about = folder.parent.stat()
    if about.st_mode & stat.S_IWOTH and not about.st_mode & stat.S_ISVTX:
        raise EnvironmentUnfit(
            f"{folder.parent} can be written by everybody and has no sticky bit, so others could replace what is put "
            "there. Set TMPDIR to a folder of your own, or give one with --to."
        )
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        check_mine(folder)
        raise EnvironmentUnfit(f"{folder} cannot be used: {error.strerror}. Give another folder with --to.") from None
    try:
        if os.fstat(opened).st_uid != os.geteuid():
            raise _not_mine(folder, f"belongs to user {os.fstat(opened).st_uid}")
        os.fchmod(opened, 0o700)
    finally:
        os.close(opened)
    return folder


def check_place(folder: Path) -> None:
    """Raise EnvironmentUnfit unless what this user puts into ``folder`` stays; it is made, private, if it is not there.

    Its own group may be able to write there: with many a system's umask that is this user alone.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.stat()
    except OSError as error:
        raise EnvironmentUnfit(f"{folder} cannot be made: {error.strerror}. Choose another folder with --to.") from None
    if about.st_uid not in (os.geteuid(), 0):
        raise _not_mine(folder, f"belongs to user {about.st_uid}, who could replace what is put there")
    if about.st_mode & stat.S_IWOTH and not about.st_mode & stat.S_ISVTX:
        raise _not_mine(folder, "can be written by everybody and has no sticky bit, so others could replace its files")


def check_mine(folder: Path) -> None:
    """Raise EnvironmentUnfit if there is something at ``folder`` that is not a folder of this user's."""
    try:
        about = folder.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(about.st_mode):
        raise _not_mine(folder, "is a link")
    if not stat.S_ISDIR(about.st_mode):
        raise _not_mine(folder, "is not a folder")
    if about.st_uid != os.geteuid():
        raise _not_mine(folder, f"belongs to user {about.st_uid}")


def _not_mine(folder: Path, why: str) -> EnvironmentUnfit:
    return EnvironmentUnfit(
        f"{folder} {why}, so what is in it cannot be trusted and nothing was put there. Remove it, or give a folder of "
        "your own with --to."
    )
