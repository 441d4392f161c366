"""Messages: each comes back as it was sent, and nothing else is one."""

from __future__ import annotations

import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.config.settings import Settings
from hora.wire import messages as m
from hora.wire.frame import WireError, WireTooLarge

PEER = m.Peer(1, 3, 77, "host")
EXAMPLES = [
    m.Hello(0, 1, 2, 77, "host", (0, 1), Settings()),
    m.Welcome(0, 1, (PEER,), "gloo", Settings(gloo_iface="lo")),
    m.Refused(0, "stale", "no"),
    m.Bye(1),
    m.Updated(2),
    m.Standby(0, 2, 3),
    m.Entered(0),
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
    m.HubDecisions(1, (m.OperationBatch((m.Op("x", 5), 9), (0, 1), (0,), 2, ((1, 2),)),),
                   (m.OperationFailure("x", (0,), "k", "t"),), (3,)),
    m.HubDecisions(1, notices=(m.OperationWarning("careful"),)),
    m.FailStalled(1, "x", (0, 1), (1,), "stall", "text"),
    m.StackAsk(1, 5, 0),
    m.StackReply(1, 5, "text"),
    m.SnapshotAsk(1, 5),
    m.StateAsk(1, 5),
    m.StateReply(1, 5, True, (("x", (0, 1)),)),
    m.SnapshotReply(1, 5, b"packed"),
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


@given(
    st.lists(st.binary(max_size=30), max_size=20),
    st.lists(st.text(max_size=10), max_size=20),
    st.lists(st.text(max_size=10), max_size=20),
    st.integers(100, 400),
)
def test_what_does_not_fit_in_a_frame_is_told_in_parts(
    requests: list[bytes], names: list[str], texts: list[str], limit: int
) -> None:
    submit = m.Submit(1, tuple(requests))
    parts = [m.decode(part) for part in m.portions(submit, limit)]
    assert [item for part in parts for item in part.items] == requests  # type: ignore[union-attr]
    batches = tuple(m.OperationBatch((m.Op(name, 7),), (0, 1)) for name in names)
    plan = m.HubDecisions(1, batches, tuple(m.OperationWarning(text) for text in texts), (3, 4))
    payloads = [*m.portions(plan, limit)]
    assert all(len(payload) <= limit for payload in payloads)
    plans = [m.decode(payload) for payload in payloads]
    told = [(part.batches, part.notices, part.forget) for part in plans]  # type: ignore[union-attr]
    for field, whole in enumerate((plan.batches, plan.notices, plan.forget)):
        assert sum((part[field] for part in told), ()) == whole
    kinds = [field for part in told for field in range(3) if part[field]]
    assert kinds == sorted(kinds), "batches come before notices, and those before what is forgotten"


@pytest.mark.parametrize("message", [m.Submit(1, (b"x" * 200,)), m.StoreReply(1, 1, b"x" * 200)])
def test_what_has_no_parts_is_refused_with_its_size(message: m.Message) -> None:
    with pytest.raises(WireTooLarge, match=f"a {type(message).__name__} of 2.. bytes .* a frame holds 100"):
        list(m.portions(message, 100))
