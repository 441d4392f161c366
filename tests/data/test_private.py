"""Folders under names that anybody could have taken first: used only if they are this user's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hora.data.private import check_mine, check_place, make_private
from hora.errors import EnvironmentUnfit


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on this process is somebody else, to whom what it made before belongs to a stranger."""
    stranger = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: stranger)


def test_a_private_folder_is_made_and_an_older_one_is_closed_to_others(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert mode(make_private(tmp_path / "new")) == 0o700
        (tmp_path / "old").mkdir()
    finally:
        os.umask(before)
    assert mode(tmp_path / "old") == 0o777
    assert mode(make_private(tmp_path / "old")) == 0o700


def test_a_link_is_not_followed_and_what_it_leads_to_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (tmp_path / "me-staged").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EnvironmentUnfit, match=r"me-staged is a link, so what is in it cannot be trusted"):
        make_private(tmp_path / "me-staged")
    with pytest.raises(EnvironmentUnfit, match="is a link"):
        check_mine(tmp_path / "me-staged")
    assert mode(tmp_path / "elsewhere") == 0o755


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentUnfit, match="is not a folder"):
        make_private(tmp_path / "file")
    with pytest.raises(EnvironmentUnfit, match="is not a folder"):
        check_mine(tmp_path / "file")
    with pytest.raises(EnvironmentUnfit, match="cannot be made"):
        check_place(tmp_path / "file" / "below")


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, another_user: None) -> None:
    owner = tmp_path.stat().st_uid
    (tmp_path / "theirs").mkdir()
    for check in (make_private, check_mine):
        with pytest.raises(EnvironmentUnfit, match=f"theirs belongs to user {owner}, so what is in it"):
            check(tmp_path / "theirs")
    check_mine(tmp_path / "nothing")
    if owner != 0:  # root could do anything anyway
        with pytest.raises(EnvironmentUnfit, match="who could replace"):
            check_place(tmp_path / "theirs")


def test_where_everybody_can_rename_nothing_is_private(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(EnvironmentUnfit, match="no sticky bit"):
        make_private(shared / "me")
    with pytest.raises(EnvironmentUnfit, match="no sticky bit"):
        check_place(shared)
    shared.chmod(0o1777)  # as /tmp is
    check_place(shared)
    assert mode(make_private(shared / "me")) == 0o700


def test_a_place_that_is_made_is_private(tmp_path: Path) -> None:
    check_place(tmp_path / "a" / "b")
    assert mode(tmp_path / "a" / "b") == 0o700
    (tmp_path / "a" / "b").chmod(0o755)
    check_place(tmp_path / "a" / "b")
    assert mode(tmp_path / "a" / "b") == 0o755  # the user's to decide
