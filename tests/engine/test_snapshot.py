"""Snapshots on the wire: what comes back, and what it weighs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hora.engine.backend import Pending, RankState, Snapshot
from hora.engine.request import Request, TensorSpec
from hora.engine.snapshot import pack, unpack
from hora.types import DType, Kind

RANKS = st.sets(st.integers(0, 9), min_size=1).map(lambda ranks: tuple(sorted(ranks)))
REQUESTS = st.builds(
    Request,
    st.sampled_from([Kind.ALLREDUCE, Kind.BROADCAST]),
    st.text(max_size=4),
    st.tuples(st.builds(TensorSpec, st.sampled_from(DType), st.tuples(st.integers(0, 3)))),
    RANKS,
    line=st.sampled_from(["a.py:1", "b.py:2"]),
)


@st.composite
def pending(draw: st.DrawFn) -> Pending:
    name, members = draw(st.text(max_size=4)), draw(RANKS)
    alike = st.sampled_from(draw(st.lists(REQUESTS, min_size=1, max_size=2)))
    requests = {}
    for rank in members:
        if draw(st.booleans()):
            said = draw(alike)
            requests[rank] = Request(said.kind, name, said.segments, members, line=said.line)
    missing = tuple(rank for rank in members if rank not in requests)
    return Pending(name, members, requests, draw(st.floats(0, 1e6)), missing)


STATES = st.builds(
    RankState, st.integers(0, 9), st.integers(1, 9), st.booleans(),
    st.lists(st.tuples(st.text(max_size=4), RANKS), max_size=2).map(tuple), st.booleans(),
)  # fmt: skip


@given(st.builds(Snapshot, st.integers(-1, 9), st.lists(STATES).map(tuple), st.lists(pending()).map(tuple)))
def test_what_was_packed_comes_back(snapshot: Snapshot) -> None:
    assert unpack(pack(snapshot)) == snapshot


def test_what_may_differ_between_ranks_does_not_make_it_large() -> None:
    """Of an allgather every rank brings another number of rows."""
    everyone = tuple(range(256))

    def request(rank: int, name: str) -> Request:
        return Request(Kind.ALLGATHER, name, (TensorSpec(DType.FLOAT32, (rank, 7)),), everyone, line=f"a.py:{rank % 2}")

    def operation(name: str) -> Pending:
        return Pending(name, everyone, {rank: request(rank, name) for rank in everyone[:-1]}, 1.0, (255,))

    snapshot = Snapshot(1, (), tuple(operation(f"allgather.{i}") for i in range(20)))
    packed = pack(snapshot)
    assert len(packed) < 5_000
    lines = [{rank: said.line for rank, said in p.requests.items()} for p in unpack(packed).pending]
    assert lines == [{rank: f"a.py:{rank % 2}" for rank in everyone[:-1]}] * 20
