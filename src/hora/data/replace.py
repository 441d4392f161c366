"""Files that are whole or not there: written beside their place under a name of their own, then renamed.

Several processes, also of several hosts, may write the same file at once; one is last, and its file is whole.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["replacing", "replacing_path"]


@contextlib.contextmanager
def replacing_path(path: Path) -> Iterator[Path]:
    """A name to write to, for whoever opens files themselves; it becomes ``path`` when the block ends well.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with replacing_path(Path(place) / "a.h5") as part:
    ...         _ = part.write_bytes(b"all of it")
    ...     [path.name for path in Path(place).iterdir()]
    ['a.h5']
    """
    part = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
    try:
        yield part
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write, which becomes ``path`` when the block ends well; else nothing is left of it.

    ``durable`` waits for the disk first, so that it is whole after a power cut too; a million small files need not.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with replacing(Path(place) / "labels") as file:
    ...         _ = file.write(b"all of it")
    ...     (Path(place) / "labels").read_bytes()
    b'all of it'
    """
    with replacing_path(path) as part, open(part, "wb") as file:
        yield file
        if durable:
            file.flush()
            os.fsync(file.fileno())
