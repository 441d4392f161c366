"""Where the launcher listens."""

from __future__ import annotations

import selectors
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from hora.launch.ways.reception import Reception
from hora.wire import addresses
from hora.wire.listen import ip_of


@pytest.mark.parametrize(
    ("interfaces", "found", "wanted"),
    [
        ([], ("127.0.0.2", "127.0.0.3"), ["127.0.0.2", "127.0.0.3", "127.0.0.1"]),
        (["one"], ("127.0.0.2", "127.0.0.3"), ["127.0.0.2"]),
        (["one", "two"], ("127.0.0.2", "127.0.0.3"), ["127.0.0.2", "127.0.0.3", "127.0.0.1"]),
        ([], ("127.0.0.1",), ["127.0.0.1"]),
    ],
)
def test_it_listens_on_each_address_that_others_may_use_and_on_no_other(
    monkeypatch: pytest.MonkeyPatch, interfaces: list[str], found: tuple[str, ...], wanted: list[str]
) -> None:
    monkeypatch.setattr(addresses, "candidates", lambda interfaces: found)
    job: Any = SimpleNamespace(environment={})
    starter: Any = None
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        reception = Reception(job, starter, interfaces, selector, stack, room=4)
        for listeners in ([key.fileobj for key in selector.get_map().values()], reception.hub_listeners):
            assert [ip_of(listener.getsockname()) for listener in listeners] == wanted
