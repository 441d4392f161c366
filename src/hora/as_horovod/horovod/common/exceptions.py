"""``horovod.common.exceptions``."""

from __future__ import annotations

from hora.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "get_version_mismatch_message",
]


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    return f"{name} is {installed_version} and was {version} at build time, which does not matter to Hora."


class HorovodVersionMismatchError(ImportError):
    """A framework differs from the one Horovod was built for. Never raised: Hora is built for none."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name, self.version, self.installed_version = name, version, installed_version
