"""The merged file is valid JSON, strictly nested, one process a rank; and the times in it are the true ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.timeline import traces
from tests.timeline.test_clock import both, job

from hora.errors import EnvironmentUnfit, UsageError
from hora.timeline import merge
from hora.timeline.clock import put_together
from hora.timeline.read import read


@pytest.mark.parametrize("name", ["merged.json", "deep/merged.json.gz"])
def test_it_opens_and_nests(tmp_path: Path, name: str) -> None:
    ops = job(1)
    tracks = both(tmp_path, ops, (0, 1234))
    clocks = put_together(tracks)
    out = tmp_path / name
    merge.write(out, tracks, clocks)
    data = gzip.decompress(out.read_bytes()) if name.endswith(".gz") else out.read_bytes()
    rows = json.loads(data)["traceEvents"]
    assert traces.check_nesting([row for row in rows if row["tid"]]) == 2 * 4 * len(ops)
    traces.check_nesting(rows)
    names = {row["pid"]: row["args"]["name"] for row in rows if row["name"] == "process_name"}
    order = {row["pid"]: row["args"]["sort_index"] for row in rows if row["name"] == "process_sort_index"}
    assert (names, order) == ({0: "rank 0", 1: "rank 1"}, {0: 0, 1: 1})
    start = min(ops[0].arrivals.values())
    for rank in (0, 1):
        moves = [row for row in rows if row["name"] == "SHM_ALLREDUCE" and row["pid"] == rank]
        assert [row["ts"] for row in moves] == [o.begins[rank] - start for o in ops]
        assert [row["ts"] + row["dur"] for row in moves] == [o.ends[rank] - start for o in ops]
    assert not [path for path in out.parent.iterdir() if path.name.endswith(".part")]


def test_horovods_file_too(tmp_path: Path) -> None:
    track = read(traces.horovod(tmp_path / "t.json", job(2), "0.15"))
    rows = list(merge.events([track], put_together([track])))
    assert traces.check_nesting(rows) > 160
    assert sum(row["name"] == "rank 1 arrives" for row in rows) == 40


def test_what_never_ended_is_in_it(tmp_path: Path) -> None:
    file = traces.hora(tmp_path / "t.json", job(2, steps=2))
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:-3]))
    track = read(file)
    rows = list(merge.events([track], put_together([track])))
    traces.check_nesting(rows)
    assert sum(row.get("args", {}).get("never ended", False) for row in rows) == 1


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        merge.write(tmp_path, [], [])
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentUnfit, match="cannot write"):
        merge.write(tmp_path / "file" / "m.json", [], [])
