"""This machine's addresses, as far as other hosts might reach them.

What can be known without trying: loopback, link-local addresses and the bridges of containers and virtual machines lead
nowhere. Which of the rest works, whoever connects finds out by trying all of them.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from hora.errors import UsageError

__all__ = ["candidates", "inward", "join", "split"]

_INWARD = ("docker", "br-", "virbr", "veth", "cni", "podman", "lxc")  # of this machine, or of its containers


def candidates(interfaces: Sequence[str] = ()) -> tuple[str, ...]:
    """The addresses of this machine that others might reach, IPv4 first; of the named interfaces only, if any are.

    >>> candidates(["lo"])[0]
    '127.0.0.1'
    >>> candidates(["nonesuch"])
    Traceback (most recent call last):
    hora.errors.UsageError: there is no network interface 'nonesuch' on ...
    """
    import psutil  # slow to import, and needed where something listens only

    found = psutil.net_if_addrs()
    for name in interfaces:
        if name not in found:
            raise UsageError(
                f"there is no network interface {name!r} on {socket.gethostname()}. "
                f"Choose with --network-interfaces from {', '.join(sorted(found))}."
            )
    if not interfaces:
        up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
        interfaces = [name for name in found if name in up - {"lo"} and not name.startswith(_INWARD)]
    usable: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = []
    for name in interfaces:
        for entry in found[name]:
            if entry.family in (socket.AF_INET, socket.AF_INET6) and "%" not in entry.address:
                address = ipaddress.ip_address(entry.address)
                if not address.is_link_local:
                    usable.append(address)
    usable.sort(key=lambda address: address.version)
    return tuple(map(str, usable)) or ("127.0.0.1",)


def inward() -> tuple[str, ...]:
    """The interfaces of this machine, besides loopback, that lead nowhere: bridges of containers and the like.

    >>> "lo" in inward()
    False
    """
    import psutil

    return tuple(name for name in psutil.net_if_addrs() if name.startswith(_INWARD))


def join(address: str, port: int) -> str:
    """An address and a port as one word.

    >>> join("10.0.0.1", 40123), join("fe::1", 40123)
    ('10.0.0.1:40123', '[fe::1]:40123')
    """
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def split(text: str) -> tuple[str, int]:
    """The reverse of ``join``.

    >>> split("10.0.0.1:40123"), split("[fe::1]:40123")
    (('10.0.0.1', 40123), ('fe::1', 40123))
    """
    address, _, port = text.rpartition(":")
    return address.removeprefix("[").removesuffix("]"), int(port)
