"""What the doctor runs on each host of ``--hosts``: sent as text over ssh, so that it works where Hora is missing.

It talks in lines of JSON: first it reports what it found and where it listens; then it answers questions (what time is
it, which of these addresses can you reach) until its input ends. It ends itself after two minutes in any case. Plain
Python 3.7 and nothing but the standard library, because it may meet an old interpreter.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import socket
import sys
import threading
import time

__all__ = ["ProbeListener", "converse", "reach"]

_LIFE_S = 120
_CONNECT_S = 3.0


class ProbeListener:
    """A port on all interfaces that greets whoever connects, so that another program's port is not taken for it."""

    def __init__(self) -> None:
        self.greeting = os.urandom(8).hex()
        try:
            self._socket = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        except (OSError, ValueError):  # a kernel without IPv6
            self._socket = socket.create_server(("", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._greet, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # or the thread that is in accept() would still greet one connection
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _greet(self) -> None:
        while True:
            try:
                remote = self._socket.accept()[0]
                with remote:
                    remote.sendall(self.greeting.encode())
            except OSError:
                if self._socket.fileno() < 0:
                    return


def reach(address: str, port: int, greeting: str) -> str:
    """Why the listener cannot be reached at this address; empty if it can.

    >>> listener = ProbeListener()
    >>> reach("127.0.0.1", listener.port, listener.greeting), reach("127.0.0.1", listener.port, "other")
    ('', 'somebody else answers there')
    >>> listener.close()
    """
    try:
        with socket.create_connection((address, port), timeout=_CONNECT_S) as line:
            heard = line.recv(64).decode(errors="replace")
    except socket.timeout:  # noqa: UP041  its name before 3.10
        return "no answer within %.0f s" % _CONNECT_S  # noqa: UP031
    except OSError as error:
        return error.strerror or str(error)
    return "" if heard == greeting else "somebody else answers there"


def _facts() -> dict[str, object]:
    facts = {"python": platform.python_version(), "host": socket.gethostname(), "hora": "", "torch": "", "why": ""}
    facts["core"] = ""
    addresses: list[str] = []
    try:
        from importlib.metadata import PackageNotFoundError, version

        with contextlib.suppress(PackageNotFoundError):
            facts["torch"] = version("torch")
        import hora
        from hora.transport import shm
        from hora.wire.addresses import candidates

        facts["hora"], facts["core"] = hora.__version__, shm.why_not()
        addresses = list(candidates())
    except Exception as error:
        facts["why"] = f"{type(error).__name__}: {error}"
    return {**facts, "addresses": addresses}


def converse() -> None:
    """Tell what was found, then answer until the input ends."""
    signal.alarm(_LIFE_S)
    listener = ProbeListener()
    print(json.dumps({**_facts(), "port": listener.port, "greeting": listener.greeting}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        answer: dict[str, object]
        if question["ask"] == "time":
            answer = {"now": time.time()}
        else:
            answer = {"reached": [reach(*place) for place in question["places"]]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    converse()
