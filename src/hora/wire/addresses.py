"""This machine's addresses, as far as other hosts might reach them.

What can be known without trying: loopback, link-local addresses and the bridges of containers and virtual machines lead
nowhere. Which of the rest works, whoever connects finds out by trying all of them. The kernel is asked directly: psutil
would know too, but importing it takes longer than reaching a host, and a launcher does this at every start.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence

from hora.errors import UsageError

__all__ = ["candidates", "interface_of", "interfaces", "inward", "join", "split"]

_INWARD = ("docker", "br-", "virbr", "veth", "cni", "podman", "lxc")  # this machine's own, or its containers'
# From the kernel's sockios.h and if.h; an ifreq is a name of 16 bytes and a union of 24.
_SIOCGIFCONF, _SIOCGIFFLAGS, _IFF_UP = 0x8912, 0x8913, 1
_IFREQ_BYTES, _NAME_BYTES, _MOST = 40, 16, 1024


def candidates(interfaces: Sequence[str] = ()) -> tuple[str, ...]:
    """The addresses of this machine that others might reach, IPv4 first; of the named interfaces only, if any are.

    >>> candidates(["lo"])[0]
    '127.0.0.1'
    >>> candidates(["nonesuch"])
    Traceback (most recent call last):
    hora.errors.UsageError: there is no network interface 'nonesuch' on ...
    """
    found = _interfaces()
    for name in interfaces:
        if name not in found:
            raise UsageError(
                f"there is no network interface {name!r} on {socket.gethostname()}. "
                f"Choose with --network-interfaces from {', '.join(sorted(found))}."
            )
    if not interfaces:
        interfaces = [name for name in found if name != "lo" and not name.startswith(_INWARD) and _is_up(name)]
    usable = [ipaddress.ip_address(address) for name in interfaces for address in found[name]]
    usable = sorted((address for address in usable if not address.is_link_local), key=lambda address: address.version)
    return tuple(map(str, usable)) or ("127.0.0.1",)


def interfaces() -> dict[str, list[str]]:
    """This machine's network interfaces and their addresses, whether they are of use or not.

    >>> "127.0.0.1" in interfaces()["lo"]
    True
    """
    found: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    buffer = array.array("B", bytes(_MOST * _IFREQ_BYTES))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, _SIOCGIFCONF, struct.pack("iP", len(buffer), buffer.buffer_info()[0]))
    (size,) = struct.unpack_from("i", answer)
    for start in range(0, size, _IFREQ_BYTES):
        # An alias such as eth0:1 is an address of eth0. In a sockaddr_in the address follows the family and the port.
        name = buffer[start : start + _NAME_BYTES].tobytes().partition(b"\0")[0].decode().partition(":")[0]
        address = buffer[start + _NAME_BYTES + 4 : start + _NAME_BYTES + 8].tobytes()
        found.setdefault(name, []).append(socket.inet_ntop(socket.AF_INET, address))
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as file:  # it is not there if IPv6 is switched off
        for line in file:
            digits, _, _, _, _, name = line.split()
            found.setdefault(name, []).append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return found


def interface_of(address: str) -> str:
    """The network interface that has an address; empty if none has.

    >>> interface_of("127.0.0.1")
    'lo'
    """
    return next((name for name, held in interfaces().items() if address in held), "")


def inward() -> tuple[str, ...]:
    """The interfaces of this machine, besides loopback, that lead nowhere: bridges of containers and the like.

    >>> "lo" in inward()
    False
    """
    return tuple(name for name in _interfaces() if name.startswith(_INWARD))


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


def _is_up(name: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("16s24x", name.encode()))
        except OSError:  # it has gone meanwhile
            return False
    (flags,) = struct.unpack_from("H", answer, _NAME_BYTES)
    return bool(flags & _IFF_UP)


_interfaces = interfaces  # in functions that have an argument of that name
