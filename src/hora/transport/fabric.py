"""UCX between hosts: where its library is, which devices it may use, and an open one for the C core (``native/ucx.c``).

It comes with the wheel ``libucx-cu12`` (``pip install 'hora[fabric]'``; it needs no CUDA), or with the cluster, as
``libucp.so.0``. Nothing here is needed to build or to run without it.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import os
from pathlib import Path
from typing import Any

from hora.config.env import environ
from hora.errors import EnvironmentUnfit
from hora.transport import shm
from hora.wire.addresses import interfaces

__all__ = ["Fabric", "devices", "library", "usable"]

_PORTS = Path("/sys/class/infiniband")
_DOORS = Path("/dev/infiniband")  # by which a process gets at them
_SAID_BYTES, _ADDRESS_BYTES = 512, 1 << 16


def library() -> str:
    """The file of UCX to open, or nothing if there is none: the wheel's, else the system's."""
    spec = importlib.util.find_spec("libucx")
    for place in spec.submodule_search_locations or () if spec is not None else ():
        if (found := Path(place, "lib", "libucp.so.0")).exists():
            return str(found)
    return ctypes.util.find_library("ucp") or ""


def devices(address: str) -> str:
    """What UCX may use, in its words: the interface that has this address, by which the hosts know each other, and the
    ports of fabrics, so that it listens nowhere else. Nothing, if the user has chosen (``UCX_NET_DEVICES``), or the
    interface is not known.

    >>> devices("127.0.0.1").split(",")[0]
    'lo'
    """
    named = [name for name, addresses in interfaces().items() if address in addresses]
    if "UCX_NET_DEVICES" in environ() or not named:
        return ""
    ports = sorted(f"{port.parent.parent.name}:{port.name}" for port in _PORTS.glob("*/ports/*"))
    return ",".join(named[:1] + ports)


def usable() -> bool:
    """Whether this host has a fabric that is up, and UCX to use it with: an InfiniBand port that is active, and that
    this process may open. Ports of Ethernet do not count: whether its network can carry RoCE they do not say.

    >>> usable() in (True, False)
    True
    """
    try:
        ports = [port for port in _PORTS.glob("*/ports/*") if _says(port / "state", "ACTIVE")]
        active = [port for port in ports if _says(port / "link_layer", "InfiniBand")]
        mine = active and any(os.access(door, os.R_OK | os.W_OK) for door in _DOORS.glob("uverbs*"))
    except OSError:
        return False
    return bool(mine) and bool(library())


def _says(file: Path, word: str) -> bool:
    return word in file.read_text().split()


class Fabric:
    """UCX, opened. ``handle`` is the core's, and becomes its own when hosts are linked with it."""

    def __init__(self, address: str) -> None:
        said = ctypes.create_string_buffer(_SAID_BYTES)
        self._lib = shm.load()
        path = library()
        if not path:
            raise EnvironmentUnfit(
                "HORA_TRANSPORT=ucx: UCX is not installed here, so it cannot carry data between hosts. Install it "
                "(pip install 'hora[fabric]', or the cluster's own libucp.so.0), or set HORA_TRANSPORT=tcp: "
                "plain sockets do it then."
            )
        allowed = devices(address)
        self.handle: Any = self._lib.fabric_open(path.encode(), allowed.encode(), said, _SAID_BYTES)
        if not self.handle:
            raise EnvironmentUnfit(
                f"UCX ({path}) does not start on {allowed or 'any device'}: {said.value.decode(errors='replace')}. "
                "It was to carry data between hosts. Try other devices (UCX_NET_DEVICES, UCX_TLS), or set "
                "HORA_TRANSPORT=tcp."
            )
        self.version = said.value.decode()
        room = ctypes.create_string_buffer(_ADDRESS_BYTES)
        length = self._lib.fabric_address(self.handle, room, _ADDRESS_BYTES)
        if not 0 < length <= _ADDRESS_BYTES:
            self.close()
            raise EnvironmentUnfit(
                f"UCX ({path}) gives no address by which other hosts reach it ({length} bytes), so it cannot carry "
                "data between them. Choose its devices (UCX_NET_DEVICES), or set HORA_TRANSPORT=tcp."
            )
        self.address = room.raw[:length]

    def give(self) -> Any:
        """The handle, for who takes it over."""
        handle, self.handle = self.handle, None
        return handle

    def close(self) -> None:
        """Only what was not handed to the core."""
        handle, self.handle = self.handle, None
        if handle:
            self._lib.fabric_close(handle)
