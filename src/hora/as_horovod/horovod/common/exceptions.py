"""``horovod.common.exceptions``."""

from __future__ import annotations

from hora.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]


class HorovodVersionMismatchError(ImportError):
    """A framework differs from the one Horovod was built for. Never raised: Hora is built for none."""
