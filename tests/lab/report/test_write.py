"""What is on the page: the answer, the figures of the records, and what could not be read."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from tests.lab.report import samples

from hora.errors import BadData
from hora.lab.report import answer, methods, render, write
from hora.lab.report.charts import Figure
from hora.lab.report.gather import gather


def points(figures: list[Figure], name: str) -> dict[tuple[str, float, str], float]:
    """What a figure shows: by series, x and style."""
    figure = next(figure for figure in figures if figure.name == name)
    rows = figure.spec["data"]["values"]
    return {(row["series"], row["x"], row["style"]): row["y"] for row in rows}


def figures_of(*paths: Path) -> list[Figure]:
    return [figure for section in write.sections(gather(paths)) for figure in section.figures]


def test_the_answer_comes_first_and_has_the_figures_of_the_record(tmp_path: Path) -> None:
    said = answer.answer(gather([samples.scaling(tmp_path / "scaling")]))
    assert "2 workers: 1.90 times the speed of one, 95 % efficient" in str(said.words[0])
    assert "communication costs 4.0 %" in str(said.words[0])
    assert [(finding.title, finding.gain) for finding in said.findings] == [
        ("Rank 1 is late", "gain: up to 11 % less time a step")
    ]


def test_scaling_is_drawn_beside_the_ideal_and_the_study(tmp_path: Path) -> None:
    drawn = figures_of(samples.scaling(tmp_path / "scaling"))
    speed_up = points(drawn, "speed-up")
    assert speed_up["mnist", 2, "solid"] == pytest.approx(1.9)
    assert speed_up["mnist", 2, "dashed"] == pytest.approx(5940 / 3000)  # without communication
    assert speed_up["ideal", 4, "dashed"] == 4
    # the study's table: PyTorch, a batch of 128 on 1, 2 and 32 GPUs: 207.11, 372.09 images/s
    assert speed_up["study: PyTorch", 2, "dashed"] == pytest.approx(372.09 / 207.11)
    assert points(drawn, "efficiency")["mnist", 2, "solid"] == pytest.approx(0.95)
    assert {32} <= {x for series, x, _ in points(drawn, "efficiency") if series.startswith("study")}


def test_every_experiment_gets_its_plots(tmp_path: Path) -> None:
    for make in (samples.throughput, samples.quality, samples.sweep):
        make(tmp_path / make.__name__)
    drawn = figures_of(tmp_path)
    assert points(drawn, "throughput-by-batch")["4 workers", 128, "solid"] == pytest.approx(3400 * 4 * 0.97**4)
    against = next(figure for figure in drawn if figure.name.startswith("against-one-worker"))
    change = points([against], against.name)
    assert change["naive", 32, "solid"] == pytest.approx(0.955 - 0.0128 - 0.985)
    assert change["study: gradual10", 24, "dashed"] == pytest.approx((74.546 - 75.028) / 100)
    rate = points(drawn, "learning-rate")
    assert max(rate.values()) == pytest.approx(0.01 * 32)  # the linear rule, 32 workers with the base batch each
    swept = points(drawn, "sweep-1")
    assert len(swept) == 6 and ("batch 32", 0.01, "solid") in swept  # what did not end well is not drawn
    names = [figure.name for figure in drawn]
    assert len(set(names)) == len(names)


def test_the_study_is_drawn_beside_its_own_figures_and_its_questions_answered(tmp_path: Path) -> None:
    samples.study(tmp_path / "study")
    found = gather([tmp_path])
    drawn = points([figure for section in write.sections(found) for figure in section.figures], "study-speed-up-1")
    assert drawn["Hora", 2, "solid"] == 1.8 and drawn["study: horovod+pytorch", 4, "dashed"] == pytest.approx(3.8)
    [finding] = answer.answer(found).findings
    assert finding.title == "How does throughput scale with workers?"
    assert (finding.change_label, finding.change) == ("In the study", "1.90x.")


def test_rows_that_make_no_sense_cost_only_their_section(tmp_path: Path) -> None:
    samples.scaling(tmp_path / "scaling")
    samples.experiment(
        tmp_path / "odd", "quality", "odd", rows=[{"factor": "naive", "workers": 2, "curve": {"epoch": [1]}}]
    )
    found = gather([tmp_path])
    made = write.sections(found)
    assert [section.anchor for section in made][:2] == ["scaling", "throughput"]
    [problem] = found.problems
    assert "section on quality could not be made" in problem


def test_a_timeline_is_drawn_by_rank(tmp_path: Path) -> None:
    drawn = figures_of(samples.scaling(tmp_path / "scaling"))
    figure = next(figure for figure in drawn if figure.name == "timeline")
    rows = figure.spec["data"]["values"]
    shares = {(row["row"], row["series"]): row["value"] for row in rows}
    assert shares["rank 0", "waiting for others"] == pytest.approx(0.1)  # 100 µs of steps of 1,000
    assert shares["rank 1", "waiting for others"] == 0
    assert sum(value for (rank, _), value in shares.items() if rank == "rank 0") == pytest.approx(1)


def test_what_cannot_be_read_is_said_and_the_rest_is_reported(tmp_path: Path) -> None:
    samples.scaling(tmp_path / "scaling")
    (tmp_path / "scaling" / "trials" / "2w-b64-t1-timeline-1" / "timeline.rank1.json").unlink()
    broken = tmp_path / "broken"
    samples.quality(broken)
    (broken / "experiment.json").write_text('{"kind": "quality", "title"')
    samples.put(tmp_path / "torn" / "run.json", {"workload": "mnist"})
    (tmp_path / "empty").mkdir()
    found = gather([tmp_path / name for name in ("scaling", "broken", "torn", "empty", "missing")])
    text = "\n".join(found.problems)
    for expected in (
        "timeline of rank 1 is missing",
        "experiment.json",
        "torn",
        "empty holds no run",
        "missing is not",
    ):
        assert expected in text
    assert [measured.experiment.kind for measured in found.experiments] == ["scaling"]
    assert len(found.spent) == 1  # rank 0's file still tells
    assert len(found.runs) == 9  # the trials of the broken experiment


def test_nothing_at_all_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text('{"a": 1}')
    with pytest.raises(BadData, match="none of the files that a report is made from"):
        write.write([tmp_path / "notes.json"], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_sections_without_data_are_left_out(tmp_path: Path) -> None:
    found = write.sections(gather([samples.sweep(tmp_path / "sweep")]))
    assert [section.anchor for section in found] == ["sweep"]
    found = write.sections(gather([samples.run(tmp_path / "alone")]))
    assert [section.anchor for section in found] == ["throughput", "quality", "learning-rate"]


def test_a_whole_folder_of_runs_is_given_once(tmp_path: Path) -> None:
    place = samples.scaling(tmp_path / "runs" / "scaling")
    shutil.copytree(place, tmp_path / "runs" / "again")
    found = gather([tmp_path / "runs", place])
    assert len(found.experiments) == 2 and found.runs == []
    names = {series for series, _, _ in points(figures_of(tmp_path / "runs"), "throughput-by-workers")}
    assert names == {"mnist (scaling)", "mnist (again)"}  # of the same title


def test_plots_of_a_file_have_light_colours_and_a_legend(tmp_path: Path) -> None:
    figure = figures_of(samples.scaling(tmp_path / "scaling"))[0]
    spec = render.file_spec(figure)
    assert "disable" not in spec["config"]["legend"] and spec["width"] > 500
    colours = set(re.findall(r"#[0-9a-f]{6}", str(spec)))
    assert colours <= set(render.palette().values()) and "var(" not in str(spec)


def test_methods_say_how_and_where(tmp_path: Path) -> None:
    samples.quality(tmp_path / "quality")
    samples.throughput(tmp_path / "throughput")
    found = gather([tmp_path])
    said = methods.methods(found)
    [environment] = said.environments
    assert dict(environment.facts) == {
        "machine": "AMD EPYC, 2 cores, 23.5 GB of memory",
        "host": "node7",
        "system": "Linux 6.18",
        "versions": "python 3.11.7, hora 0.1.0, torch 2.13.0, numpy 2.4.6",
        "git": "0123456789ab, with changes that were not committed",
        "measured": "2026-11-16 07:10 UTC to 2026-11-16 07:20 UTC",
    }
    assert said.commands == ["hora lab throughput mnist", "hora lab quality mnist"]
    assert "Seeds: 42." in said.notes and any("generated" in note for note in said.notes)
    ended = methods.failures(found)
    assert ended is not None
    assert [[cell.text for cell in row] for row in ended.tables[0].rows] == [
        ["4w-b4096", "out of memory", "DefaultCPUAllocator: not enough memory"]
    ]
