"""Host lists and host files in every form in use, and what is wrong with the others."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.errors import UsageError
from hora.launch.planning.hosts import Host, is_here, parse_hostfile, parse_hosts, read_hosts

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,6}[a-z0-9]", fullmatch=True)


@given(st.dictionaries(NAMES, st.integers(min_value=1, max_value=99), min_size=1))
def test_all_forms_say_the_same(slots: dict[str, int]) -> None:
    expected = tuple(Host(name, count) for name, count in slots.items())
    assert parse_hosts(",".join(f"{name}:{count}" for name, count in slots.items())) == expected
    assert parse_hostfile("\n".join(f"{name} slots={count}" for name, count in slots.items())) == expected
    assert parse_hostfile("\n".join(f"{name}:{count}  # c" for name, count in slots.items())) == expected
    assert parse_hostfile("\n\n".join(f"{name}\n" * count for name, count in slots.items())) == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("h1:", "''"),
        ("h1:0", "'0'"),
        ("h1:two", "'two'"),
        ("h1:-1", "'-1'"),
        ("h1:2,,h2:2", "''"),
        ("h 1:2", "'h 1'"),
        (":2", "''"),
        ("h1:2:3", "'2:3'"),
        ("h1:²", "'²'"),
        ("-np", "'-np'"),
    ],
)
def test_bad_lists(text: str, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_hosts(text)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "names no host"),
        ("# nothing\n\n", "names no host"),
        ("h1 slots=x", "'x'"),
        ("h1 slots=", "''"),
        ("ok\nh1 4", "line 2"),
        ("slots=4", "'slots=4'"),
    ],
)
def test_bad_files(text: str, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_hostfile(text)
    assert named in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_hosts_or_a_usage_error(text: str) -> None:
    for parse in (parse_hosts, parse_hostfile):
        try:
            hosts = parse(text)
        except UsageError:
            continue
        assert hosts and all(host.slots >= 1 for host in hosts)


def test_reading(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("h1 slots=3\n")
    assert read_hosts(None, str(file), None) == (Host("h1", 3),)
    assert read_hosts("h2", None, 1) == (Host("h2", 1),)
    assert read_hosts(None, None, 5) == (Host("localhost", 5),)
    with pytest.raises(UsageError, match="both"):
        read_hosts("h2", str(file), 1)
    with pytest.raises(UsageError, match="No such file"):
        read_hosts(None, str(tmp_path / "missing"), 1)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not text"):
        read_hosts(None, str(file), 1)


def test_here() -> None:
    assert is_here("localhost") and is_here("127.0.0.1") and is_here(socket.gethostname())
    assert not is_here("10.0.0.9") and not is_here("node7")


@pytest.mark.parametrize(
    ("mine", "name", "here"),
    [
        ("node1.a", "node1.b", False),  # two clusters may number their nodes alike
        ("node1.a", "node1.a", True),
        ("node1.a", "NODE1.A", True),  # names of hosts have no case
        ("node1.a", "node1", True),
        ("node1", "node1.a", True),  # which domain it is in, it does not know
        ("node1.a", "node1.a.example", False),
        ("node1", "node11", False),
    ],
)
def test_a_domain_that_is_named_counts(monkeypatch: pytest.MonkeyPatch, mine: str, name: str, here: bool) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: mine)
    assert is_here(name) is here
