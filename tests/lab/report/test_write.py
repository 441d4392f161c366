"""What is on the page: the answer, the figures of the records, and what could not be read."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.lab.report import samples

from hora.errors import BadData
from hora.lab import trial as trials
from hora.lab.records import open_experiment
from hora.lab.report import answer, methods, render, write
from hora.lab.report.charts import Figure
from hora.lab.report.gather import gather
from hora.lab.scaling.show import waterfall_lines
from hora.lab.scaling.waterfall import CROWDED
from hora.lab.trial import Trial
from hora.schedule import LearningRatePlan
from hora.workloads.folder import RunFile, read_json
from hora.workloads.gan3d.analysis import shapes, tally
from hora.workloads.gan3d.history import write_shapes


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
    # of 24 ms a step, as `hora lab scaling` prints it: 2 waiting, 1 contention, 1 moving
    assert "waiting for the slowest takes 8.3 %, contention with other workers costs 4.2 % and" in str(said.words[0])
    assert said.words[0].about == "mnist · torch · node7 · 2026-11-16 07:10"
    assert [(finding.title, finding.gain) for finding in said.findings] == [
        ("Rank 1 is late", "gain: up to 11 % less time a step")
    ]


def test_other_processes_are_named_as_the_waterfall_names_them(tmp_path: Path) -> None:
    folder = samples.scaling(tmp_path / "scaling")
    content = json.loads((folder / "experiment.json").read_text())
    for part in content["rows"][1]["waterfall"]:
        part["title"] = CROWDED if part["part"] == "contention" else part["title"]
    (folder / "experiment.json").write_text(json.dumps(content))
    said = str(answer.answer(gather([folder])).words[0])
    assert "other workers and processes cost 4.2 %" in said and "beside it" not in said


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
    assert [bar["row"] for bar in bars] == ["computing", "contention", "waiting", "moving", "data", "a step"]
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
    assert any("142 % of ideal with 2 workers is impossible" in caution for caution in said.cautions)
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
    plan = LearningRatePlan(base_lr=0.01, base_batch=64, batch=64, workers=1, epochs=90, samples=60000)
    trial = Trial(name="long", workload="mnist", options={"batch": 64})
    samples.trial_folder(tmp_path / "long", trial, accuracies=[0.9] * 90, plan=plan)
    drawn = {figure.name: figure for figure in figures_of(tmp_path)}
    rates = [points([figure], name) for name, figure in drawn.items() if name.startswith("learning-rate")]
    assert [round(max(x for _, x, _ in rate)) for rate in rates] == [5, 90]
    assert [len({series for series, _, _ in rate}) for rate in rates] == [2, 1]
    assert drawn["learning-rate-2"].title == "Learning rate over the run: mnist, 90 epochs"
    assert len([name for name in drawn if name.startswith("error-curves") and name.endswith("-runs")]) == 2


def test_3dgan_has_losses_result_and_moments(tmp_path: Path) -> None:
    found = gather([samples.gan(tmp_path / "gan")])
    sections = write.sections(found)
    assert [section.anchor for section in sections] == ["gan3d", "learning-rate"]
    losses = points(sections[0].figures, "gan3d-losses")
    assert losses["generator", 1, "solid"] == pytest.approx(50) and losses["discriminator", 5, "dashed"] < 5
    errors = points(sections[0].figures, "gan3d-result")
    assert errors["moments", 5, "solid"] == pytest.approx(0.6 * 0.8**4)
    assert errors["result", 1, "solid"] == pytest.approx(1.8) and ("profile", 1, "solid") in errors
    assert "Result 0.6254 (moments 0.2458, profile 0.3797) after 5 epochs" in str(answer.answer(found).words[0])
    assert [cell.text for cell in sections[0].tables[0].rows[0]][4:7] == ["0.6254", "0.2458", "0.3797"]


def test_generated_showers_stand_beside_real_ones(tmp_path: Path) -> None:
    real = torch.rand(6, 25, 25, 25)
    energy = torch.tensor([99.0, 101.0, 199.0, 201.0, 300.0, 399.0])
    folder = samples.gan(tmp_path / "gan")
    write_shapes(folder, shapes(tally(real, 2 * real, energy)))
    [section] = [each for each in write.sections(gather([folder])) if each.anchor == "gan3d"]
    along = points(section.figures, "gan3d-profile-1-z")
    assert along["100 GeV", 7, "dashed"] == pytest.approx(real[:2, :, :, 7].sum().item() / 2, rel=1e-5)
    assert along["100 GeV", 7, "solid"] == pytest.approx(real[:2, :, :, 7].sum().item(), rel=1e-5)
    ratio = points(section.figures, "gan3d-energy-1")
    assert ratio["generated", 300, "solid"] == pytest.approx(2 * real[4].sum().item() / 300, rel=1e-5)
    moments = next(table for table in section.tables if table.title.startswith("Moments"))
    assert len(moments.rows) == 4 * 3 * 2


def test_one_schedule_on_every_number_of_workers_in_one_plot(tmp_path: Path) -> None:
    drawn = figures_of(samples.quality(tmp_path / "quality"))
    mine = next(figure for figure in drawn if figure.title == "naive: validation error by number of workers")
    curves = points([mine], mine.name)
    assert {series for series, _, _ in curves} == {"one worker", "8 workers", "32 workers"}
    assert curves["32 workers", 8, "solid"] == pytest.approx(1 - (0.955 - 0.0128) + 0.25 * 0.55**7)


def test_a_grid_has_every_schedule_on_every_number_of_workers(tmp_path: Path) -> None:
    [mine] = [figure for figure in figures_of(samples.quality(tmp_path / "quality")) if "grid" in figure.name]
    rows = list(csv.DictReader(io.StringIO(render.as_csv(mine))))
    names = list(dict.fromkeys(row["panel"] for row in rows))
    assert names[:3] == ["naive, 8 workers", "naive, 32 workers", "linear, 8 workers"] and len(names) == 8
    last = {
        row["series"]: float(row["y"]) for row in rows if row["panel"] == "linear, 32 workers" and row["x"] == "8.0"
    }
    error = 1 - (0.962 - 0.0128) + 0.25 * 0.55**7
    assert last == pytest.approx({"validation": error, "training": error + 0.02, "one worker": 0.015 + 0.25 * 0.55**7})
    for part in render.draw([mine], tmp_path / "files"):
        assert part.stat().st_size > 1000


def test_runs_have_a_grid_and_top_5(tmp_path: Path) -> None:
    for workers in (1, 2, 4):
        place = samples.run(tmp_path / f"on-{workers}", workers)
        lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
        text = "".join(json.dumps(line | {"val_top5": 1 - (1 - line["val_accuracy"]) / 4}) + "\n" for line in lines)
        (place / "metrics.jsonl").write_text(text)
    drawn = figures_of(tmp_path)
    assert [f.spec["facet"]["sort"] for f in drawn if "grid" in f.name] == [["1 worker", "2 workers", "4 workers"]]
    top5, top1 = (points(drawn, f"error-curves-1-runs{name}") for name in ("-top5", ""))
    assert top5["2 workers", 5, "solid"] == pytest.approx(top1["2 workers", 5, "solid"] / 4)


def test_runs_are_told_by_step_and_by_time_too(tmp_path: Path) -> None:
    for workers in (1, 2):
        samples.run(tmp_path / f"on-{workers}", workers)
    drawn = figures_of(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "on-1" / "metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if "epoch_s" in line]
    by_step = points(drawn, "error-curves-1-runs-by-step")
    assert {x for _, x, _ in by_step} >= {line["step"] for line in epochs}
    by_time = points(drawn, "error-curves-1-runs-by-time")
    assert any(x == pytest.approx(sum(line["epoch_s"] for line in epochs) / 60) for _, x, _ in by_time)


def test_ddp_stands_beside_hora_and_nodes_beside_one(tmp_path: Path) -> None:
    place = samples.scaling(tmp_path / "scaling", timeline=False)
    rows = [row | {"strategy": "hora", "nodes": row["workers"]} for row in open_experiment(place).rows]
    for row in rows:
        row["node_efficiency"] = 0.9 ** (row["nodes"] - 1)
    slower = [row | {"strategy": "ddp", "images_per_s": row["images_per_s"] / 2, "low": None, "high": None}
              for row in rows if row["workers"] == 2]  # fmt: skip
    edit(place, rows=[*rows, *slower])
    [section] = [each for each in write.sections(gather([place])) if each.anchor == "scaling"]
    assert any("Hora is 2.00 times as fast" in text for text in section.words)
    by_node = points(section.figures, "efficiency-by-node")
    assert any(x == 2 and y == pytest.approx(0.9) for (_, x, _), y in by_node.items())


def test_ddp_of_a_throughput_experiment_is_compared_with_horas_single_worker(tmp_path: Path) -> None:
    place = samples.throughput(tmp_path / "throughput")
    rows = [row | {"strategy": "hora"} for row in open_experiment(place).rows]
    slower = [row | {"strategy": "ddp", "images_per_s": row["images_per_s"] / 2} for row in rows if row["workers"] > 1]
    edit(place, rows=[*rows, *slower])
    drawn = points(figures_of(place), "speed-up")
    measured = {frozenset(name.split(", ")): y for (name, x, style), y in drawn.items() if (x, style) == (4, "solid")}
    hora, ddp = (measured[frozenset((who, "batch 64"))] for who in ("hora", "ddp"))
    assert ddp == pytest.approx(hora / 2)


def test_optimizers_of_a_sweep_are_compared(tmp_path: Path) -> None:
    place = samples.sweep(tmp_path / "sweep")
    names = ["sgd", "adam", "lars"]
    rows = [row | {"optimizer": names[number % 3]} for number, row in enumerate(open_experiment(place).rows)]
    content = open_experiment(place)
    edit(place, rows=rows, options={**content.options, "swept": ["lr", "optimizer"]})
    figure = next(figure for figure in figures_of(place) if figure.name.endswith("-optimizer"))
    known = {row["row"]: row["value"] for row in figure.spec["data"]["values"]}
    done = [row for row in rows if row["val_accuracy"]]
    assert known == {name: max(row["val_accuracy"] for row in done if row["optimizer"] == name) for name in known}
    assert set(known) == {row["optimizer"] for row in done}


def test_cores_and_gpus_are_drawn_over_time(tmp_path: Path) -> None:
    place = samples.scaling(tmp_path / "scaling", timeline=False)
    trial = next(path for path in sorted((place / "trials").iterdir()) if (path / "outcome.json").exists())
    outcome = trials.load(trial)
    outcome.cpu_over_time = [[1.0, 0.5, 0.75], [2.0, 1.0, 0.25]]
    outcome.gpu_over_time = [[1.0, 0.1, 0.2], [2.0, 0.9, 0.8]]
    samples.put(trial / "outcome.json", outcome)
    drawn = figures_of(place)
    used = points(drawn, "cpu-over-time-1")
    assert used["rank 1", 2.0, "solid"] == 0.25 and used["rank 0", 1.0, "solid"] == 0.5
    assert points(drawn, "gpu-over-time-1")["GPU 1", 2.0, "solid"] == 0.8


def test_what_a_figure_shows_is_a_table_too(tmp_path: Path) -> None:
    figure = next(figure for figure in figures_of(samples.sweep(tmp_path / "sweep")) if figure.name == "sweep-1")
    first, *rows = csv.DictReader(io.StringIO(render.as_csv(figure)))
    assert len(rows) == 5 and {"series", "x", "y"} <= set(first)
    assert {(row["series"], float(row["x"]), "solid"): float(row["y"]) for row in [first, *rows]} == points(
        [figure], "sweep-1"
    )


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
