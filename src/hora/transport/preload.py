"""The memory of workers: gradients allocated in shared memory, and large blocks that are kept when freed.

The launcher puts ``_alloc.so`` (native/preload) into ``LD_PRELOAD`` of its workers. It is inert until the optimizer
says which sizes its gradients have. Where another allocator is preloaded already, ours is not added; where the
program is linked to another one, calls are passed on to that one. ``init`` takes it out of the environment again, so
that what a worker starts does not have it; until then it must be there, for the command may be a shell that starts it.

glibc gives large blocks back to the kernel when they are freed and has their pages cleared again for the next, every
step. A tensor of 64 MB made that way takes ten times as long to write as one whose memory was kept, so blocks of up to
1 GB are kept (the MALLOC_ variables; those that the user has set stay).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["LIBRARY", "preload"]

LIBRARY = Path(__file__).with_name("_alloc.so")
_KEPT = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
_OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc", "_alloc.so")


def preload(environment: Mapping[str, str], library: Path = LIBRARY) -> dict[str, str]:
    """What to add to a worker's environment; nothing if it cannot or need not be.

    >>> preload({"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, Path(__file__))
    {}
    >>> added = preload({"LD_PRELOAD": "/lib/a.so"}, Path(__file__))
    >>> added["LD_PRELOAD"].startswith("/lib/a.so:"), added["MALLOC_TRIM_THRESHOLD_"]
    (True, '1073741824')
    >>> list(preload({"MALLOC_TRIM_THRESHOLD_": "65536"}, Path(__file__)))
    ['LD_PRELOAD']
    """
    present = environment.get("LD_PRELOAD", "")
    if not library.exists() or re.search(r"[\s:$]", str(library)) or any(name in present for name in _OTHER_ALLOCATORS):
        return {}
    kept = {} if environment.keys() & _KEPT.keys() else _KEPT
    return {"LD_PRELOAD": f"{present}:{library}" if present else str(library), **kept}
