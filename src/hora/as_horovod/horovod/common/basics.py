"""``horovod.common.basics``: an object with the basics as methods."""

from __future__ import annotations

from typing import Any

from hora import basics
from hora.engine import session

__all__ = ["HorovodBasics", "sycl_built"]


def sycl_built() -> bool:
    """False: Intel's GPUs are not used."""
    return False


class HorovodBasics:
    """``init``, ``rank``, ``size`` and the rest, as Hora has them. The arguments named a native library."""

    def __init__(self, *library: str) -> None:
        pass

    sycl_built = staticmethod(sycl_built)

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        """The members of every process set, by its number."""
        return session.engine().process_sets.ids()

    def __getattr__(self, name: str) -> Any:
        return getattr(basics, name)
