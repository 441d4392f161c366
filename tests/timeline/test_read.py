"""Every file that Hora or Horovod wrote is read, whole or cut; no input leads to a traceback."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.timeline import traces
from tests.timeline.traces import op

from hora.errors import BadData
from hora.timeline import merge
from hora.timeline.clock import put_together
from hora.timeline.measure import measure
from hora.timeline.read import read
from hora.timeline.verdict import findings

OPS = [
    op("conv1", [100, 250], 260, 400, shape=(64, 3, 7, 7)),
    op("fc", [120, 300], 400, 900, shape=(1000,)),
    op("conv1", [1100, 1250], 1260, 1400, shape=(64, 3, 7, 7)),
]


@pytest.mark.parametrize("version", ["0.15", "0.28"])
def test_horovods_file(tmp_path: Path, version: str) -> None:
    track = read(traces.horovod(tmp_path / "t.json", OPS, version))
    assert (track.writer, track.rank, track.skipped, track.unfinished) == ("Horovod", 0, 0, [])
    assert track.epoch_us == (17_000_000 if version == "0.28" else None)
    found = [(o.name, o.round, o.ticks, o.agreed_us, o.end_us, o.nbytes) for o in track.operations]
    assert found == [
        ("conv1", 0, {0: 100, 1: 250}, 250, 400, 64 * 3 * 7 * 7 * 4),
        ("fc", 0, {0: 120, 1: 300}, 300, 900, 4000),
        ("conv1", 1, {0: 1100, 1: 1250}, 1250, 1400, 64 * 3 * 7 * 7 * 4),
    ]
    assert [(a.label, a.begin_us, a.end_us) for a in track.operations[1].activities] == [
        ("QUEUE", 300, 400),
        ("MPI_ALLREDUCE", 400, 900),
    ]


def test_horas_file_packed_or_not(tmp_path: Path) -> None:
    third = OPS[0]._replace(arrivals={3: 5, 0: 9}, begins={3: 9}, ends={3: 99})
    plain = traces.hora(tmp_path / "t.rank3.json", [third], rank=3)
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for file in (plain, packed):
        track = read(file)
        assert (track.writer, track.rank, track.operations[0].fused) == ("Hora", 3, 1)
        assert track.operations[0].ticks == {3: 5, 0: 9}


@given(cut=st.integers(1, 10_000), version=st.sampled_from(["0.15", "0.28", "hora"]))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_that_was_cut_gives_what_ended_before(tmp_path: Path, cut: int, version: str) -> None:
    file = tmp_path / "t.json"
    traces.hora(file, OPS) if version == "hora" else traces.horovod(file, OPS, version)
    whole = read(file).operations
    text = file.read_text()
    file.write_text(text[: cut * len(text) // 10_000])
    try:
        found = read(file)
    except BadData:
        assert cut < 2000
        return
    assert [o.name for o in found.operations] == [o.name for o in whole][: len(found.operations)]
    assert len(found.operations) + len(found.unfinished) <= len(OPS)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["0", "1", "QUEUE", "rank 1"]),
)
EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.one_of(st.sampled_from(["B", "E", "X", "M", "i"]), VALUES),
        "name": st.one_of(
            st.sampled_from(["NEGOTIATE_ALLREDUCE", "ALLREDUCE", "QUEUE", "0", "1", "process_name"]), VALUES
        ),
        "pid": st.one_of(st.integers(0, 2), VALUES),
        "ts": st.one_of(st.integers(0, 1000), VALUES),
        "args": st.one_of(
            st.fixed_dictionaries({}, optional={"name": VALUES, "shape": VALUES, "dtype": VALUES, "fused": VALUES}),
            VALUES,
        ),
    },
)


@given(events=st.lists(EVENTS, max_size=30), junk=st.text(max_size=20), at=st.integers(0, 400))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_input_leads_to_a_traceback(tmp_path: Path, events: list[object], junk: str, at: int) -> None:
    text = ",\n".join(json.dumps(event) for event in events)
    file = tmp_path / "t.json"
    file.write_text("[" + text[:at] + junk + text[at:] + "]", encoding="utf-8", errors="replace")
    try:
        track = read(file)
    except BadData:
        return
    clocks = put_together([track])
    rows = list(merge.events([track], clocks))
    traces.check_nesting(rows)
    if track.operations:
        findings(measure([track]))


@given(data=st.binary(max_size=200))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_that_are_no_timeline(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(data)
    with pytest.raises(BadData):
        read(file)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"[", "holds no events"),
        (b"[\n]", "holds no events"),
        (b'{"epochs": 3}', "is not a timeline"),
        (b"step,loss\n1,2\n", "holds no events"),
        (b"\x1f\x8bnot really", "is not a timeline"),
    ],
)
def test_what_is_no_timeline_is_said_to_be_none(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(content)
    with pytest.raises(BadData, match=said):
        read(file)


def test_missing_directory_and_merged_files(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no such file"):
        read(tmp_path / "none.json")
    with pytest.raises(BadData, match="is a directory"):
        read(tmp_path)
    track = read(traces.hora(tmp_path / "t.json", OPS))
    merge.write(tmp_path / "m.json", [track], put_together([track]))
    with pytest.raises(BadData, match="cannot be taken apart"):
        read(tmp_path / "m.json")


def test_names_that_were_not_escaped_cost_only_themselves(tmp_path: Path) -> None:
    file = traces.horovod(tmp_path / "t.json", [OPS[0]._replace(name='a "quoted" name'), OPS[1]], "0.15")
    track = read(file)
    assert [o.name for o in track.operations] == ["tensor 1", "fc"]
    assert track.skipped > 0


def test_an_object_around_the_events(tmp_path: Path) -> None:
    file = traces.hora(tmp_path / "t.json", OPS)
    wrapped = tmp_path / "w.json"
    wrapped.write_text('{"displayTimeUnit": "ms", "traceEvents": ' + file.read_text() + "}")
    assert len(read(wrapped).operations) == 3
    wrapped.write_text(wrapped.read_text()[:-20])
    assert len(read(wrapped).operations) == 2


def test_a_long_file_on_one_line(tmp_path: Path) -> None:
    many = [op("g", [t, t + 10], t + 20, t + 90) for t in range(0, 1_000_000, 100)]
    track = read(traces.horovod(tmp_path / "t.json", many, "0.28"))
    assert (tmp_path / "t.json").stat().st_size > 4 << 20
    assert len(track.operations) == 10_000 and not track.skipped


@pytest.mark.parametrize("interleaved", [False, True])
def test_an_agreement_that_is_told_twice_counts_once(tmp_path: Path, interleaved: bool) -> None:
    """As Hora 0.1 wrote operations that are summed where they lie in shared memory."""
    told = [("B", "NEGOTIATE_ALLREDUCE", 5), ("X", "0", 5), ("X", "1", 9), ("E", "NEGOTIATE_ALLREDUCE", 9)]
    told += [("B", "ALLREDUCE", 9), ("B", "QUEUE", 9)]
    again = [("B", "NEGOTIATE_ALLREDUCE", 9), ("X", "1", 9), *told[3:]] if interleaved else told
    moved = [("E", "QUEUE", 12), ("B", "SHM_ALLREDUCE", 12)]
    ended = [("E", "SHM_ALLREDUCE", 40), ("E", "ALLREDUCE", 40)]
    rows = [*told, *again, *moved, *ended] if interleaved else [*told, *moved, *again, *ended]
    head = {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "rank 0"}}
    events = [{"ph": phase, "name": name, "ts": at, "pid": 1} for phase, name, at in rows]
    file = tmp_path / "t.json"
    file.write_text(json.dumps([head, *events, *({**event, "ts": event["ts"] + 100} for event in events)]))
    track = read(file)
    assert (track.skipped, track.unfinished, len(track.operations)) == (0, [], 2)
    for shift, found in zip((0, 100), track.operations, strict=True):
        assert found.ticks == {0: 5 + shift, 1: 9 + shift}
        assert [(a.label, a.begin_us, a.end_us) for a in found.activities] == [
            ("QUEUE", 9 + shift, 12 + shift),
            ("SHM_ALLREDUCE", 12 + shift, 40 + shift),
        ]
