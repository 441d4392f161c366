"""The mark that generated data carries, so that no result on it is taken for one on the real data.

What generates a data set marks its folder; what trains on it looks for the mark and says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from hora.data.shards import expand, has_pattern
from hora.data.source import SPLITS
from hora.errors import BadData
from hora.files import json_text, replacing

__all__ = ["MARK", "generated_facts", "is_generated", "mark_generated"]

MARK = "GENERATED.json"
_SPLITS = {name for names in SPLITS.values() for name in names}


def mark_generated(folder: Path, **facts: Any) -> None:
    """Mark a folder as generated: by what, from which seed, how much of it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     mark_generated(Path(place), generator="digits", seed=42, samples=1000)
    ...     is_generated(Path(place)), is_generated(Path(place) / "train"), generated_facts(Path(place))["seed"]
    (True, True, 42)
    """
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / MARK) as file:
        file.write(json_text(dict(sorted(facts.items()))))


def is_generated(path: Path) -> bool:
    """Whether the data at ``path`` is generated: a folder, one of its splits, or a file or pattern of files in it."""
    return _mark(path) is not None


def generated_facts(path: Path) -> dict[str, Any] | None:
    """What the mark says, or None without one."""
    mark = _mark(path)
    if mark is None:
        return None
    try:
        return msgspec.json.decode(mark.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise BadData(f"{mark} cannot be read: {error}. Make the data set again.") from None


def _mark(path: Path) -> Path | None:
    """The mark of this folder, or of the one that it is a split of: that of root/train/shard-*.tar is root's."""
    if has_pattern(path) and not path.is_dir():
        path = next(iter(expand(path)), path)
    folder = path.absolute() if path.is_dir() else path.absolute().parent
    folders = (folder, folder.parent) if folder.name in _SPLITS else (folder,)
    return next((place / MARK for place in folders if (place / MARK).is_file()), None)
