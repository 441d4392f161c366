"""The program that is sent to other hosts: old Pythons must understand it, and it tells listeners from strangers."""

from __future__ import annotations

import ast
import socket
from pathlib import Path

from hora.doctor import remote_probe


def test_python_3_7_understands_it() -> None:
    ast.parse(Path(remote_probe.__file__).read_text(), feature_version=(3, 7))


def test_a_stranger_is_not_taken_for_the_doctor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        assert remote_probe.reach("127.0.0.1", port, "x") != ""
    assert "refused" in remote_probe.reach("127.0.0.1", port, "x")
