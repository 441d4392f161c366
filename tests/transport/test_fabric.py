"""UCX, opened: what it is found by, what it may use, and what is said where it cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from hora.errors import EnvironmentUnfit
from hora.transport import fabric, shm

needs_core = pytest.mark.skipif(not shm.available(), reason="the C core is not built here")


@needs_core
def test_it_opens_on_one_interface_and_has_an_address() -> None:
    if not fabric.library():
        pytest.skip("UCX is not installed")
    opened = fabric.Fabric("127.0.0.1")
    assert opened.version.startswith("1.") and 8 < len(opened.address) < 4096
    opened.close()
    opened.close()


def test_the_user_chooses_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    monkeypatch.setattr(fabric, "_PORTS", tmp_path)
    assert fabric.devices("127.0.0.1") == "lo,mlx5_0:1"
    assert fabric.devices("192.0.2.1") == ""  # nobody's
    monkeypatch.setenv("UCX_NET_DEVICES", "eth7")
    assert fabric.devices("127.0.0.1") == ""


@needs_core
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric, "library", lambda: "")
    with pytest.raises(EnvironmentUnfit, match=r"UCX is not installed here.*hora\[fabric\]"):
        fabric.Fabric("127.0.0.1")


def test_nothing_is_found_where_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    assert fabric.library() == ""


def test_a_fabric_is_usable_if_it_is_up_and_open_and_ucx_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    port, doors = tmp_path / "class" / "mlx5_0" / "ports" / "1", tmp_path / "dev"
    monkeypatch.setattr(fabric, "_PORTS", tmp_path / "class")
    monkeypatch.setattr(fabric, "_DOORS", doors)
    monkeypatch.setattr(fabric, "library", lambda: "libucp.so.0")
    assert not fabric.usable()
    port.mkdir(parents=True)
    doors.mkdir()
    for state, layer in (("4: ACTIVE", "Ethernet"), ("1: DOWN", "InfiniBand"), ("2: INIT", "InfiniBand")):
        (port / "state").write_text(state + "\n")
        (port / "link_layer").write_text(layer + "\n")
        (doors / "uverbs0").touch()
        assert not fabric.usable(), (state, layer)
    (port / "state").write_text("4: ACTIVE\n")
    assert fabric.usable()
    (doors / "uverbs0").unlink()
    assert not fabric.usable(), "a container without the device"
    (doors / "uverbs0").touch()
    monkeypatch.setattr(fabric, "library", lambda: "")
    assert not fabric.usable()
