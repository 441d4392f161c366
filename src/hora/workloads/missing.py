"""What to say when a workload's data is not there: the whole command that puts it where it is looked for. Imports no
framework, so that the message comes before one is imported."""

from __future__ import annotations

import shlex
from pathlib import Path

from hora.errors import BadData
from hora.workloads import options_of

__all__ = ["check_folder"]


def check_folder(workload: str, folder: Path) -> None:
    """Raise BadData if the folder is not there. Patterns of files are left to who opens them.

    >>> check_folder("gan3d", Path("nowhere"))
    Traceback (most recent call last):
    hora.errors.BadData: there is no folder nowhere. Showers in HDF5 files are looked for there. Run 'hora data make
    showers --to nowhere' to generate some, and then this again; or give the folder with --data DIR.
    """
    kind = options_of(workload)
    if not kind.data_wanted or folder.exists() or any(sign in str(folder) for sign in "*?[{"):
        return
    told = []
    for way, own in kind.data_ways:
        to = "" if folder == Path(own) else f" --to {shlex.quote(str(folder))}"
        told.append(f"'hora data {way}{to}'" + (" to generate some" if way.startswith("make") else ""))
    raise BadData(
        f"there is no folder {folder}. {kind.data_wanted} are looked for there. Run {', or '.join(told)}, and then "
        "this again; or give the folder with --data DIR."
    )
