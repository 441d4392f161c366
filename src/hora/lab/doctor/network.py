"""The room of the network: interfaces, the addresses that other hosts would be given, this host's own name."""

from __future__ import annotations

import socket

from hora.lab.doctor.check import Check, Finding
from hora.lab.doctor.machine import Machine
from hora.wire.addresses import candidates

__all__ = ["CHECKS"]

_CONNECT_S = 2.0


def connects(address: str) -> str:
    """Why a connection from this host to one of its own addresses fails; empty if it works.

    >>> connects("127.0.0.1")
    ''
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.bind((address, 0))
            listener.listen(1)
            with socket.create_connection((address, listener.getsockname()[1]), timeout=_CONNECT_S):
                return ""
    except OSError as error:
        return error.strerror or "no answer"


def loopback(machine: Machine) -> Finding:
    why = connects("127.0.0.1")
    if not why:
        return Finding(name="loopback", status="ok", told="127.0.0.1 can be listened on and connected to")
    return Finding(
        name="loopback",
        status="problem",
        told=f"127.0.0.1 cannot be connected to: {why}; Gloo and MPI need it on one host",
        fix="ip link set lo up, and let the firewall pass it.",
    )


def interfaces(machine: Machine) -> Finding:
    found = machine.interfaces()
    named = [name for name in machine.environ.get("HORA_GLOO_IFACE", "").split(",") if name]
    chosen = set(candidates(named))
    shown, narrow = [], []
    for interface in found:
        mine = [address for address in interface.addresses if address in chosen]
        if not mine:
            continue
        speed = f"{interface.speed_mbit / 1000:g} Gbit/s" if interface.speed_mbit > 0 else "speed unknown"
        shown.append(f"{interface.name} ({', '.join(mine)}; {speed}, MTU {interface.mtu})")
        if 0 < interface.speed_mbit < 1000:
            narrow.append(interface.name)
    used = {name for text in shown for name in [text.partition(" ")[0]]}
    avoided = [one.name for one in found if one.up and one.addresses and one.name not in {*used, "lo"}]
    rest = f"; not used: {', '.join(avoided)}" if avoided else ""
    if not shown or chosen <= {"127.0.0.1", "::1"}:
        return Finding(
            name="interfaces",
            status="note",
            told=f"no interface that other hosts could reach, so jobs stay on this one{rest}",
            fix="Name one if there is: --network-interfaces eth0.",
        )
    told = f"other hosts would be given {'; '.join(shown)}{rest}"
    if narrow:
        fix = "Choose a faster one with --network-interfaces; compression (hvd.Compression.bf16) helps on slow links."
        return Finding(name="interfaces", status="warning", told=f"{told}; {narrow[0]} is slow", fix=fix)
    return Finding(name="interfaces", status="ok", told=told)


def host_name(machine: Machine) -> Finding:
    name = socket.gethostname()
    try:
        found = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except OSError as error:
        return Finding(
            name="host-name",
            status="note",
            told=f"{name!r} does not resolve ({error.strerror}); Hora does not need it, some frameworks and MPI do",
            fix=f"Add a line '127.0.1.1 {name}' to /etc/hosts.",
        )
    return Finding(name="host-name", status="ok", told=f"{name} is {', '.join(found)}")


CHECKS = (
    Check("loopback", "listened on 127.0.0.1 and connected to it", loopback),
    Check("interfaces", "listed interfaces and chose as a job over several hosts would", interfaces),
    Check("host-name", "looked this host's name up", host_name),
)
