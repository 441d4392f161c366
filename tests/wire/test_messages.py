"""Messages: each comes back as it was sent, and nothing else is one."""

from __future__ import annotations

import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.config.settings import Settings
from hora.wire import messages as m
from hora.wire.frame import WireError

PEER = m.Peer(1, 3, 77, "host")
EXAMPLES = [
    m.Hello(0, 1, 2, 77, "host", (0, 1), Settings()),
    m.Welcome(0, 1, (PEER,), "gloo", Settings(gloo_iface="lo")),
    m.Refused(0, "stale", "no"),
    m.Bye(1),
    m.Farewell(1),
    m.Broken(1, "why"),
    m.GivenUp(1, 2, "it has not answered for 600 s"),
    m.Left(1, 0),
    m.Died(1, 0, "signal 9", "ouch"),
    m.LastWords(1, "ouch"),
    m.Submit(1, (b"request", 7)),
    m.Again(1, (7, 8)),
    m.Join(1, True),
    m.JoinDone(1, 2),
    m.Plan(1, (m.Batch((m.Op("x", (0, 1), 5), 9), (0,), 2, ((1, 2),)),), (m.Failure("x", (0,), "k", "t"),), (3,)),
    m.Plan(1, notices=(m.Caution("careful"),)),
    m.Verdict(1, "x", (0, 1), (1,), "stall", "text"),
    m.StackAsk(1, 5, 0),
    m.StackReply(1, 5, "text"),
    m.SnapshotAsk(1, 5),
    m.StateAsk(1, 5),
    m.StateReply(1, 5, True, (("x", (0, 1)),)),
    m.SnapshotReply(1, 5, 9, (m.RankReport(0, 77, False, ()),), (m.PendingOp("x", (0, 1), {0: b"r"}, 0.5, (1,)),)),
    m.StoreSet(1, "key", b"value"),
    m.StoreGet(1, 5, "key"),
    m.StoreReply(1, 5, b"value"),
]  # fmt: skip


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_round_trip(message: m.Message) -> None:
    assert m.decode(m.encode(message)) == message


def test_every_message_has_an_example_and_a_generation() -> None:
    kinds = set(typing.get_args(m.AnyMessage))
    assert kinds == {type(message) for message in EXAMPLES}
    assert all(kind.__struct_fields__[0] == "generation" for kind in kinds)


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(WireError):
        m.decode(noise)


@given(
    st.recursive(
        st.none() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.binary(),
        lambda v: st.lists(v, max_size=4),
        max_leaves=10,
    )
)
def test_other_data_is_refused(value: object) -> None:
    with pytest.raises(WireError):
        m.decode(msgspec.msgpack.encode(value))


def test_wrong_types_are_refused() -> None:
    with pytest.raises(WireError, match="str"):
        m.decode(msgspec.msgpack.encode(["Left", 1, "rank"]))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(WireError):
        m.decode(b"\x91" * 100_000)
