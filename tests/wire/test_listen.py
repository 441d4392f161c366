"""The door is private, and opens only once there is somebody behind it."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from hora.wire.listen import ip_of, listen_tcp, listen_unix, peer_of, tune_tcp


def test_the_door_and_its_directory_are_private(tmp_path: Path) -> None:
    path = tmp_path / "mine" / "door"
    with listen_unix(path, 4) as listener, socket.socket(socket.AF_UNIX) as visitor:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        visitor.connect(str(path))
        inside, _ = listener.accept()
        with inside:
            assert peer_of(inside) == peer_of(visitor) == (os.getpid(), os.getuid())
    assert [entry.name for entry in path.parent.iterdir()] == ["door"]


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    with pytest.raises(PermissionError, match="0700"):
        listen_unix(tmp_path / "door", 4)


def test_what_a_crash_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "mine" / "door"
    listen_unix(path, 4).close()  # closed, not unlinked
    with listen_unix(path, 4), socket.socket(socket.AF_UNIX) as visitor:
        visitor.connect(str(path))


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "mine").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        listen_unix(tmp_path / "mine" / "door", 4)


def test_a_port_on_one_address_or_on_all() -> None:
    for addresses, reached in (((), ("127.0.0.1", "127.0.0.2")), (["127.0.0.2"], ("127.0.0.2",))):
        with listen_tcp(addresses) as listener:
            port = listener.getsockname()[1]
            for address in reached:
                with socket.create_connection((address, port), 5) as visitor:
                    inside, where = listener.accept()
                    with inside:
                        tune_tcp(inside)
                        assert inside.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                        assert ip_of(where) == ip_of(visitor.getsockname())
                        assert ip_of(inside.getsockname()) == address
            if len(reached) == 1:
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port), 5)
