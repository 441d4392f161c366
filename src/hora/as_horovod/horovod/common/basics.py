"""``horovod.common.basics``: an object with the basics as methods."""

from __future__ import annotations

from typing import Any

from hora.engine import session

__all__ = ["HorovodBasics"]


class HorovodBasics:
    """``init``, ``rank``, ``size`` and the rest, as Hora's session has them. The arguments named a native library."""

    def __init__(self, *library: str) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(session, name)
