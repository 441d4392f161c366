"""What cannot be used is named, and the rest is reported on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.timeline import traces
from tests.timeline.test_verdict import slow_rank

from hora.errors import BadData
from hora.files import json_text
from hora.timeline import report

OPS = slow_rank(3, 1)


def files(place: Path) -> list[Path]:
    names = ["t.json", "t.rank1.json", "t.rank2.json"]
    return [traces.hora(place / name, OPS, rank, 7 * rank) for rank, name in enumerate(names)]


@pytest.mark.parametrize("spoil", ["missing", "empty", "not a timeline", "no operations"])
def test_one_bad_file(tmp_path: Path, spoil: str) -> None:
    given = files(tmp_path)
    if spoil == "missing":
        given[2].unlink()
    elif spoil == "no operations":
        traces.hora(given[2], [], 2)
    else:
        given[2].write_text("" if spoil == "empty" else "loss: 0.4")
    made = report.make(given)
    (problem,) = made.problems
    assert "t.rank2.json" in problem
    assert made.findings[0].rank == 1 and [track.rank for track in made.tracks] == [0, 1]
    assert any("Missing: the file of rank 2" in note for note in made.notes)


def test_all_bad_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("")
    with pytest.raises(BadData, match=r"(?s)a\.json is empty.*b\.json: no such file"):
        report.make([tmp_path / "a.json", tmp_path / "b.json"])


def test_files_beside_are_pointed_to(tmp_path: Path) -> None:
    made = report.make(files(tmp_path)[:1])
    assert any("t.rank1.json is in the same folder" in note for note in made.notes)
    assert made.problems == [] and made.findings[0].rank == 1


def test_one_rank_twice(tmp_path: Path) -> None:
    given = files(tmp_path)
    other = traces.hora(tmp_path / "old.json", OPS, 1)
    assert "two runs" in report.make([*given, other]).problems[0]
    assert "the same file" in report.make([*given, given[0]]).problems[0]


def test_a_job_that_hung_says_for_whom(tmp_path: Path) -> None:
    file = files(tmp_path)[0]
    rows = json.loads(file.read_text())
    last = max(i for i, row in enumerate(rows) if row["name"] == "NEGOTIATE_ALLREDUCE" and row["ph"] == "B")
    file.write_text(json.dumps(rows[: last + 2])[:-1])
    made = report.make([file])
    assert any("Never ended: allreduce g, waiting for rank 1, 2" in note for note in made.notes)


def test_nothing_ended(tmp_path: Path) -> None:
    file = traces.hora(tmp_path / "t.json", OPS[:1])
    file.write_text("\n".join(file.read_text().splitlines()[:5]))
    with pytest.raises(BadData, match="no operation ended"):
        report.make([file])


def test_full_and_cut_files_are_said_to_be(tmp_path: Path) -> None:
    file = files(tmp_path)[0]
    text = file.read_text().removesuffix("\n]")
    file.write_text(text + ',\n{"name": "TIMELINE_FULL", "ph": "i", "pid": 0, "tid": 0, "ts": 0, "s": "g"}\n]')
    assert any("HORA_TIMELINE_MAX_BYTES" in note for note in report.make([file]).notes)
    file.write_text(text[:-30])
    assert any("pieces that fit nowhere" in note for note in report.make([file]).notes)


def test_json(tmp_path: Path) -> None:
    document = json.loads(json_text(report.as_json(report.make(files(tmp_path)))))
    assert document["findings"][0]["kind"] == "straggler"
    assert [clock["how"] for clock in document["clocks"]] == ["reference", "arrivals", "arrivals"]
    assert document["numbers"]["ranks"][0]["steps"] == 8


def test_what_several_files_have_for_advice_is_said_once(tmp_path: Path) -> None:
    with pytest.raises(BadData) as refused:
        report.make([tmp_path / "a.json", tmp_path / "b.json"])
    said = str(refused.value)
    assert "a.json" in said and "b.json" in said and said.count("Give the files that the workers wrote") == 1
