"""What is on the page: the answer, the figures of the records, and what could not be read."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.lab.report import samples

from hora.errors import BadData
from hora.lab.records import open_experiment
from hora.lab.report import answer, methods, render, write
from hora.lab.report.charts import Figure
from hora.lab.report.gather import gather
from hora.lab.scaling.show import waterfall_lines
from hora.lab.trial import Trial
from hora.schedule import Plan
from hora.workloads.folder import RunFile, read_json


def points(figures: list[Figure], name: str) -> dict[tuple[str, float, str], float]:
    """What a figure shows: by series, x and style."""
    figure = next(figure for figure in figures if figure.name == name)
    rows = figure.spec["data"]["values"]
    return {(row["series"], row["x"], row["style"]): row["y"] for row in rows}


def edit(folder: Path, **fields: Any) -> None:
    """Change an experiment's record."""
    content = open_experiment(folder)
    for name, value in fields.items():
        setattr(content, name, value)
    samples.put(folder / "experiment.json", content)


def figures_of(*paths: Path) -> list[Figure]:
    return [figure for section in write.sections(gather(paths)) for figure in section.figures]


def test_the_answer_comes_first_and_has_the_figures_of_the_record(tmp_path: Path) -> None:
    said = answer.answer(gather([samples.scaling(tmp_path / "scaling")]))
    assert "2 workers: 1.90 times the speed of one, 95 % efficient" in str(said.words[0])
    # of 24 ms a step, as `hora lab scaling` prints it: 2 waiting, 1 company, 1 moving
    assert "waiting for the slowest takes 8.3 %, other workers beside it cost 4.2 % and moving" in str(said.words[0])
    assert said.words[0].about == "mnist · torch · node7 · 2026-11-16 07:10"
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


def test_the_way_from_ideal_to_measured_is_the_terminals(tmp_path: Path) -> None:
    place = samples.scaling(tmp_path / "scaling")
    found = gather([place])
    [section] = [section for section in write.sections(found) if section.anchor == "scaling"]
    figure = section.figures[0]
    assert figure.name == "way-scaling-weak"
    bars = figure.spec["data"]["values"]
    assert [bar["row"] for bar in bars] == ["computing", "company", "waiting", "moving", "data", "a step"]
    assert [bar["begin"] for bar in bars[1:5]] == pytest.approx([20 / 24, 21 / 24, 23 / 24, 1], abs=1e-5)
    assert (bars[-1]["begin"], bars[-1]["end"]) == (0, 1) and "24.0 ms" in bars[-1]["text"]
    assert "Not measured: validation and checkpoints" in figure.caption
    printed = waterfall_lines(found.experiments[0].experiment.rows[1]["waterfall"])
    for bar, line in zip(bars, [*printed[:5], printed[-1]], strict=True):
        assert f"{100 * (bar['end'] - bar['begin']):.0f} %" in line
    table = next(table for table in section.tables if table.title.startswith("From ideal"))
    assert [row[0].text for row in table.rows][2] == "waiting in step for the slowest"


def test_more_than_ideal_is_flagged_and_never_headlined(tmp_path: Path) -> None:
    place = samples.scaling(tmp_path / "scaling")
    rows = open_experiment(place).rows
    rows[1] |= {"efficiency": 1.42, "efficiency_high": 1.5, "speed_up": 2.84, "above_ideal": True}
    edit(place, rows=rows)
    found = gather([place])
    said = answer.answer(found)
    assert "142" not in str(said.words[0]) and "2.84" not in str(said.words[0]) and "no answer" in str(said.words[0])
    assert any("142 % of ideal with 2 workers cannot be" in caution for caution in said.cautions)
    sections = write.sections(found)
    table = next(table for section in sections for table in section.tables if table.title == "mnist: weak scaling")
    assert table.marks == ["", "above ideal"] and "142 % ⚠" in [cell.text for cell in table.rows[1]]
    rows[1].pop("above_ideal")  # a record that is older than the flag
    edit(place, rows=rows)
    assert "no answer" in str(answer.answer(gather([place])).words[0])


def test_more_than_the_limit_is_no_headline_either(tmp_path: Path) -> None:
    place = samples.throughput(tmp_path / "throughput")
    rows = open_experiment(place).rows
    assert "of the limit" in str(answer.answer(gather([place])).words[0])
    edit(place, rows=[row | {"share_of_limit": 2.26} for row in rows])
    assert "226" not in str(answer.answer(gather([place])).words[0])


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
    assert str(answer.answer(found).words[0]) == "2 workers are 1.80 times as fast as one."
    [finding] = answer.answer(found).findings
    assert finding.title == "How does throughput scale with workers?"
    assert (finding.change_label, finding.change) == ("In the study", "1.90x.")


def test_what_was_predicted_looks_different_from_what_was_measured(tmp_path: Path) -> None:
    [section] = write.sections(gather([samples.study(tmp_path / "study")]))
    drawn = points(section.figures, "study-speed-up-1")
    assert drawn["Hora", 4, "predicted"] == pytest.approx(3.6) and ("Hora", 4, "solid") not in drawn
    assert drawn["Hora", 2, "predicted"] == 1.8  # where the dotted line begins, without a mark
    rows = section.figures[0].spec["data"]["values"]
    assert [row["dot"] for row in rows if (row["series"], row["x"], row["style"]) == ("Hora", 2, "predicted")] == [
        False
    ]
    [table] = section.tables
    assert table.marks == ["", "", "predicted", "predicted"] * 2
    [measured, predicted] = [[cell.text for cell in row] for row in (table.rows[1], table.rows[2])]
    assert "measured" in measured and "1.60x" in measured
    assert "predicted" in predicted and "≈ 3.20x" in predicted and "3.80x" in predicted  # the study's own is no guess


def test_a_plot_of_one_dot_is_left_to_the_table(tmp_path: Path) -> None:
    samples.run(tmp_path / "alone", 1)
    assert {figure.name for figure in figures_of(tmp_path)} == {"error-curves-1-runs", "learning-rate"}
    rows = open_experiment(samples.throughput(tmp_path / "many")).rows
    edit(tmp_path / "many", rows=[row for row in rows if row["workers"] == row["batch"] // 64 == 2], trials=[])
    [section] = [section for section in write.sections(gather([tmp_path / "many"])) if section.anchor == "throughput"]
    assert section.figures == [] and len(section.tables[0].rows) == 1


def test_one_long_run_does_not_squash_the_others(tmp_path: Path) -> None:
    samples.run(tmp_path / "short-1", 1)
    samples.run(tmp_path / "short-2", 2)
    plan = Plan(base_lr=0.01, base_batch=64, batch=64, workers=1, epochs=90, samples=60000)
    trial = Trial(name="long", workload="mnist", options={"batch": 64})
    samples.trial_folder(tmp_path / "long", trial, accuracies=[0.9] * 90, plan=plan)
    drawn = {figure.name: figure for figure in figures_of(tmp_path)}
    rates = [points([figure], name) for name, figure in drawn.items() if name.startswith("learning-rate")]
    assert [round(max(x for _, x, _ in rate)) for rate in rates] == [5, 90]
    assert [len({series for series, _, _ in rate}) for rate in rates] == [2, 1]
    assert drawn["learning-rate-2"].title == "Learning rate over the run: mnist, 90 epochs"
    assert len([name for name in drawn if name.startswith("error-curves")]) == 2


def test_3dgan_has_losses_result_and_moments(tmp_path: Path) -> None:
    found = gather([samples.gan(tmp_path / "gan")])
    sections = write.sections(found)
    assert [section.anchor for section in sections] == ["gan3d", "learning-rate"]
    losses = points(sections[0].figures, "gan3d-losses")
    assert losses["generator", 1, "solid"] == pytest.approx(50) and losses["discriminator", 5, "dashed"] < 5
    errors = points(sections[0].figures, "gan3d-result")
    assert errors["moments", 5, "solid"] == pytest.approx(0.6 * 0.8**4)
    assert errors["result", 1, "solid"] == pytest.approx(1.8) and ("profile", 1, "solid") in errors
    assert "Result 0.625 (moments 0.246, profile 0.380) after 5 epochs" in str(answer.answer(found).words[0])
    assert [cell.text for cell in sections[0].tables[0].rows[0]][4:7] == ["0.625", "0.246", "0.380"]


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
    assert [section.anchor for section in found] == ["quality", "learning-rate"]


def test_a_whole_folder_of_runs_is_given_once(tmp_path: Path) -> None:
    place = samples.scaling(tmp_path / "runs" / "scaling")
    shutil.copytree(place, tmp_path / "runs" / "again")
    found = gather([tmp_path / "runs", place])
    assert len(found.experiments) == 2 and found.runs == []
    names = {series for series, _, _ in points(figures_of(tmp_path / "runs"), "throughput-by-workers")}
    assert names == {"mnist, scaling", "mnist, again"}  # of the same title, by their folders
    edit(tmp_path / "runs" / "again", label="after")
    names = {series for series, _, _ in points(figures_of(tmp_path / "runs"), "throughput-by-workers")}
    assert {name for name in names if "after" in name} == {"mnist, after"}  # --label tells them apart


def test_plots_of_a_file_have_light_colours_and_a_legend(tmp_path: Path) -> None:
    figure = next(each for each in figures_of(samples.scaling(tmp_path / "scaling")) if each.name == "speed-up")
    spec = render.file_spec(figure)
    assert "disable" not in spec["config"]["legend"] and spec["width"] > 500
    colours = set(re.findall(r"#[0-9a-f]{6}", str(spec)))
    assert colours <= set(render.palette().values()) and "var(" not in str(spec)


def test_a_runs_command_is_what_a_person_would_type(tmp_path: Path) -> None:
    samples.run(tmp_path / "alone")
    file = read_json(tmp_path / "alone" / "run.json", RunFile, "")
    file.command = ["python", "-m", "hora.workloads", "mnist", '{"batch": 64}', "--launcher-draws"]
    samples.put(tmp_path / "alone" / "run.json", file)
    said = methods.methods(gather([tmp_path / "alone"]))
    assert said.commands == ["hora train mnist -np 2 --epochs 5 --batch 64"]


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
