"""`hora lab study`, all of it but very small, on one process; wrong values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.launch.jobs import run_hora

from hora.cli.lab import lab
from hora.lab.study import scale

TINY = scale.Scale(name="tiny", samples=130, test=40, seeds=(1,), steps=4, batches=(8,), gpus=(1,))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_study_of_one_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "QUICK", TINY)
    monkeypatch.chdir(tmp_path)  # where there is no data/mnist
    done = CliRunner().invoke(lab, ["study", "--quick", "--processes", "1", "--out", "out", "--json", "study.json"])
    assert done.exit_code == 0, f"{done.output}{done.exception}"
    written = json.loads((tmp_path / "study.json").read_text())
    assert (written["kind"], written["state"]) == ("study", "done")
    rows = written["rows"]
    ran = [row for row in rows if row["state"] == "done"]
    assert [(row["experiment"], row["workers"]) for row in ran] == [(1, 1), (1, 1), (1, 1), (4, 1), (5, 1)]
    assert all(row["images_per_s"] > 0 for row in ran if row["what"] == "throughput")
    four, five = ran[3:]
    assert four["peak_lr"] == pytest.approx(2 * five["peak_lr"]) and five["published_top1"] == 0.75028
    assert len(five["curve"]["epoch"]) == 9
    titles = [found["title"] for found in written["findings"]]
    assert len(titles) == 3 and titles[1] == "not answered: its runs are not done"
    assert any("generated digits" in note for note in written["notes"])
    for text in ("Experiments 1 to 3", "Experiments 4 to 9", "Question 1.", "Question 3.", " trials, about "):
        assert text in done.output


def test_a_folder_without_data_is_refused() -> None:
    done = run_hora("lab", "study", "--data", "/no/such/place")
    assert done.returncode == 2
    assert "there is no such folder" in done.stderr and "Traceback" not in done.stderr
