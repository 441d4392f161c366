"""Kills by plan, and what runs come to, from records that are made up; the whole experiment once, for real."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.launch.jobs import run_hora
from tests.workloads.conftest import write_digits

from hora.lab.elastic import measure
from hora.lab.elastic.kills import Killer, KillPlan
from hora.lab.report import gather, write
from hora.lab.report.elastic import elastic
from hora.lab.trial import Trial, TrialOutcome
from hora.transport import shm
from hora.workloads import folder, run_record

TRIAL = Trial(name="a", workload="mnist", workers=2, elastic="1:2")


def note(place: Path, members: list[list[int]], costs: list[float | None] | None = None) -> folder.RunFile:
    """A run.json with these workers in each generation, all of them played by this process."""
    place.mkdir(parents=True, exist_ok=True)
    (place / run_record.FILE).write_text("{}")
    generations, before = [], set[int]()
    for number, workers in enumerate(members, 1):
        generations.append(
            folder.Generation(
                number=number, began=f"2026-01-01T10:00:{number:02d}.000Z", step=number,
                members=[(worker, "h", os.getpid()) for worker in workers], came=sorted({*workers} - before),
                left=sorted(before - {*workers}), without_steps_s=costs[number - 1] if costs else None,
            )
        )  # fmt: skip
        before = {*workers}
    made = folder.RunFile(
        workload="mnist", options={}, plan={}, workers=2, started="2026-01-01T10:00:00.000Z",
        first_step="2026-01-01T10:00:00.000Z", ended="2026-01-01T10:00:10.000Z", state="done",
        generations=generations,
    )  # fmt: skip
    folder.write_json(place / folder.FILE, made)
    return made


def test_kills_come_when_they_are_due_and_spare_the_last(tmp_path: Path) -> None:
    killed: list[int] = []
    killer = Killer(KillPlan(kills=2, every_s=5.0, seed=1), kill=killed.append)
    killer.look(TRIAL, tmp_path, 0.0)  # there is no record yet
    note(tmp_path, [[0, 1]])
    for second in range(1, 6):
        killer.look(TRIAL, tmp_path, float(second))
    assert not killed  # the clock began with the first step, at 1
    killer.look(TRIAL, tmp_path, 6.0)
    assert killed == [os.getpid()]
    note(tmp_path, [[0, 1], [0]])
    killer.look(TRIAL, tmp_path, 20.0)
    assert len(killed) == 1  # one is left
    note(tmp_path, [[0, 1], [0], [0, 2]])
    killer.look(TRIAL, tmp_path, 21.0)
    killer.look(TRIAL, tmp_path, 60.0)
    assert len(killed) == 2 and len(killer.killed) == 2  # and no third
    first = [Killer(KillPlan(9, 1.0, seed=7), kill=killed.append) for _ in range(2)]
    note(tmp_path, [list(range(8))])
    for second in range(12):
        for each in first:
            each.look(TRIAL, tmp_path, float(second))
    assert first[0].killed == first[1].killed and len(set(first[0].killed)) > 2  # the seed decides


def test_rows_and_what_they_say(tmp_path: Path) -> None:
    note(tmp_path / "plain", [[0, 1]])
    note(tmp_path / "killed", [[0, 1], [0], [0, 2], [2]], [None, 0.5, 0.25, 1.5])
    plain, killed = (
        TrialOutcome(trial=TRIAL, state="done", folder=str(tmp_path / name), step_s=[0.25], images_per_s=100.0,
                result={"parameters_sha256": "abc"})
        for name in ("plain", "killed")
    )  # fmt: skip
    rows = [measure.row("undisturbed", plain, plain), measure.row("kills", killed, plain)]
    assert (rows[0]["kills"], rows[0]["goodput"], rows[0]["same_bits"]) == (0, 1.0, None)
    assert rows[1]["kills"] == 2 and rows[1]["generations"] == 4 and rows[1]["same_bits"] is True
    assert rows[1]["recovery_s"] == 1.0 and rows[1]["slowest_recovery_s"] == 1.5 and rows[1]["join_s"] == 0.25
    assert rows[1]["goodput"] == pytest.approx(1 - (0.25 + 0.0 + 1.25) / 10)
    assert measure.findings(rows) == [
        {"title": "after 2 kills the parameters are bitwise identical to the run without kills"}
    ]
    killed.result = {"parameters_sha256": "abd"}
    rows[1] = measure.row("kills", killed, plain)
    assert "differ from those of the undisturbed run: kills" in measure.findings(rows)[0]["title"]


def test_the_report_shows_generations(tmp_path: Path) -> None:
    note(tmp_path / "run", [[0, 1], [0], [0, 2]], [None, 0.5, 0.25])
    section = elastic(gather.gather([tmp_path / "run"]))
    assert section is not None
    (table,) = section.tables
    texts = [[cell.text for cell in row] for row in table.rows]
    assert [head.title for head in table.columns][:3] == ["generation", "began", "after step"]
    assert ["2", "10:00:02", "2", "1", "1", "", "500 ms"] in texts
    assert ["3", "10:00:03", "3", "2", "", "2", "250 ms"] in texts
    assert "Workers lost and added" in [each.title for each in write.sections(gather.gather([tmp_path / "run"]))]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(not shm.available(), reason="the C core is not built")
def test_the_whole_experiment(tmp_path: Path) -> None:
    digits = write_digits(tmp_path / "digits")
    flags = ["--kills", "2", "--every", "4s", "--spares", "1", "--set", f"data={digits}", "--set", "network=horovod"]
    done = run_hora("lab", "elastic", "mnist", *flags, "--out", str(tmp_path / "out"), timeout_s=500.0)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out" / "experiment.json").read_text())["rows"]
    assert [row["state"] for row in rows] == ["done", "done"]
    assert rows[1]["kills"] >= 1 and rows[1]["same_bits"] is True and 0 < rows[1]["goodput"] <= 1
    assert "bitwise identical" in done.stdout
