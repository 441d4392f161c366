"""The preloaded allocator: gradients that are born in shared memory.

The launcher puts ``_alloc.so`` (native/preload) into ``LD_PRELOAD`` of its workers. It is inert until the optimizer
says which sizes its gradients have. Where another allocator is preloaded already, that one stays alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["preload"]

_LIBRARY = Path(__file__).with_name("_alloc.so")
_OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc", "_alloc.so")


def preload(environment: Mapping[str, str], library: Path = _LIBRARY) -> dict[str, str]:
    """What to add to a worker's environment; nothing if it cannot or need not be.

    >>> preload({"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, Path(__file__))
    {}
    >>> preload({"LD_PRELOAD": "/lib/a.so"}, Path(__file__))["LD_PRELOAD"].startswith("/lib/a.so:")
    True
    """
    present = environment.get("LD_PRELOAD", "")
    if not library.exists() or re.search(r"[\s:$]", str(library)) or any(name in present for name in _OTHER_ALLOCATORS):
        return {}
    return {"LD_PRELOAD": f"{present}:{library}" if present else str(library)}
