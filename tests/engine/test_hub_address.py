"""The notice is whole, private, and this user's, or it is not there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hora.config.world import World
from hora.engine.hub_address import HubAddress, address_file
from hora.errors import EnvironmentUnfit

NOTICE = HubAddress("node1", ("10.0.0.1:4000", "[fd00::1]:4000"), bytes(range(32)))


def test_what_is_put_up_is_read(tmp_path: Path) -> None:
    path = tmp_path / "shared" / "x.hub"
    assert HubAddress.read(path) is None
    NOTICE.put_up(path)
    assert HubAddress.read(path) == NOTICE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["x.hub"]


def test_one_that_others_could_have_written_or_read_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x.hub"
    NOTICE.put_up(path)
    path.chmod(0o644)
    assert HubAddress.read(path) is None
    path.chmod(0o600)
    path.write_bytes(b'["node1", [')
    assert HubAddress.read(path) is None
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert HubAddress.read(path) is None
    path.unlink()
    os.mkfifo(path, 0o600)  # which nobody ever writes to
    assert HubAddress.read(path) is None


def test_the_place_depends_on_job_members_and_directory() -> None:
    def where(job: str, members: tuple[int, ...], directory: str = "") -> Path:
        return address_file(World(size=4, job_key=job, rendezvous_dir=directory), members)

    assert len({where("a", (0, 1)), where("b", (0, 1)), where("a", (0, 2)), where("a", (0, 1), "/x")}) == 4
    assert where("a", (0, 1)).parent == Path.home() / ".cache" / "hora"
    with pytest.raises(EnvironmentUnfit, match="gives their job no name"):
        where("", (0, 1))
