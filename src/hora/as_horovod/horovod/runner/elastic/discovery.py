"""``horovod.runner.elastic.discovery``: which hosts there are, and how many workers each takes."""

from __future__ import annotations

from collections.abc import Mapping

from hora.launch.elastic.hosts import HostScript

__all__ = ["FixedHosts", "HostDiscovery", "HostDiscoveryScript"]


class HostDiscovery:
    """Subclass it with what finds hosts."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Hosts and their slots."""
        raise NotImplementedError


class HostDiscoveryScript(HostDiscovery):
    """Asks a script that prints a host a line, ``name`` or ``name:slots``; ``slots`` is for those without a number."""

    def __init__(self, discovery_script: str, slots: int) -> None:
        self._ask = HostScript(discovery_script, slots)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return self._ask()


class FixedHosts(HostDiscovery):
    """These hosts, until others are set."""

    def __init__(self, available_hosts: Mapping[str, int] | None = None) -> None:
        self.set(available_hosts or {})

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return dict(self._hosts)

    def set(self, available_hosts: Mapping[str, int]) -> None:
        """From now on these."""
        self._hosts = dict(available_hosts)
