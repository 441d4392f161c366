"""The experiments themselves: throughput (1 to 3), then quality (4 to 9), a row for each row of the study's tables.

The study's three frameworks stand for three things here: what tf_cnn_benchmarks measures (a network on random images,
warm-up left out); training by PyTorch's own DDP, over Gloo on CPUs; and training by Hora. The last two are measured by
the study's formula, over the first steps, with the very first. What has no core here is predicted from the steps of one
worker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hora.lab.quality import rows as quality_rows
from hora.lab.quality.conduct import Say, conduct, result_text
from hora.lab.quality.trials import FactorCase, QualitySetup, trial
from hora.lab.records import ExperimentWriter
from hora.lab.records.files import TRIALS
from hora.lab.records.progress import Progress
from hora.lab.study import scale as sizes
from hora.lab.study.answers import answers
from hora.lab.study.data import prepare
from hora.lab.study.published import QUALITY, SPEED, baseline_top1, published_quality, published_speed, speed_up
from hora.lab.study.scale import Scale
from hora.lab.throughput.cores import LoadMonitor
from hora.lab.throughput.measure import failures
from hora.lab.throughput.pool import plain
from hora.lab.trial import SPEED_ONLY, Trial, TrialOutcome
from hora.lab.trial.parallel import run_parallel
from hora.launch.planning.hosts import parse_hosts
from hora.predict.calibration import Calibration, model_of
from hora.predict.published import FRAMEWORKS
from hora.text import count_text, plural

__all__ = ["FRAMEWORK_TEXTS", "measure"]

FRAMEWORK_TEXTS = {
    "horovod+tensorflow": "tf_cnn form",
    "pytorch": "DDP",
    "horovod+pytorch": "Hora",
}
GRADIENT_BYTES = 4 * 3_274_634  # of the network whose speed is measured


def measure(
    scale: Scale,
    source: Path | None,
    cores: int,
    book: ExperimentWriter,
    say: Say,
    strategies: Sequence[str] = ("hora", "ddp"),
    hosts: str = "",
) -> None:
    """Run everything; rows, findings and notes are in the book, also of what was done when it is interrupted."""
    data = book.folder / "data"
    about = prepare(source, data, scale.samples, scale.test, jobs=cores)
    wanted = [name for name in FRAMEWORKS if ("ddp" if name == "pytorch" else "hora") in strategies]
    speeds = speed_trials(scale, cores, str(data), wanted)
    learnings, watch = _quality_trials(scale, cores, str(data)) if "hora" in strategies else {}, LoadMonitor()
    if hosts:
        speeds = {key: msgspec.structs.replace(each, hosts=hosts) for key, each in speeds.items()}
        learnings = {key: msgspec.structs.replace(each, hosts=hosts) for key, each in learnings.items()}
        run_parallel(list(learnings.values()), book.folder / TRIALS, parse_hosts(hosts), say, result_text)
    progress, outcomes = Progress(book, [*speeds.values(), *learnings.values()], say), []
    book.notes[:] = _notes(about, scale, cores)
    fast: dict[tuple[str, int, int], TrialOutcome] = {}
    for (framework, batch, workers), each in speeds.items():
        progress.begin(f"{FRAMEWORK_TEXTS[framework]}, {plural(workers, 'worker')}, batch {batch}")
        outcome = fast[framework, batch, workers] = conduct(book, each)
        outcomes.append(outcome)
        found = images_per_s(framework, outcome)
        progress.tell(f"{count_text(found)} images/s" if found is not None else outcome.state)
        book.rows = _speed_rows(scale, cores, fast)
    speed_rows = book.rows
    done: dict[tuple[int, FactorCase], list[TrialOutcome]] = {}
    for (experiment, cell, seed), each in learnings.items():
        progress.begin(f"experiment {experiment}, {cell.factor.name}, {plural(cell.workers, 'worker')}, seed {seed}")
        outcome = conduct(book, each)
        outcomes.append(outcome)
        done.setdefault((experiment, cell), []).append(outcome)
        progress.tell(result_text(outcome))
        book.rows = [*speed_rows, *_quality_rows(scale, cores, str(data), done)]
        book.write()
    book.findings = answers(book.rows)
    if caution := watch.caution():
        book.notes.append(caution)
    book.notes += failures(outcomes)
    book.write()


# ---- throughput ----


def speed_trials(
    scale: Scale, cores: int, data: str, frameworks: Sequence[str] = FRAMEWORKS
) -> dict[tuple[str, int, int], Trial]:
    """The trials of experiments 1 to 3, by framework, batch and workers, up to the number of cores.

    >>> [key for key in speed_trials(sizes.QUICK, 2, "d") if key[2] == 2]
    [('horovod+tensorflow', 32, 2), ('horovod+tensorflow', 128, 2), ('pytorch', 128, 2), ('horovod+pytorch', 128, 2)]
    """
    found: dict[tuple[str, int, int], Trial] = {}
    for framework in frameworks:
        for batch in sizes.speed_batches(scale, framework):
            for workers in (count for counts in SPEED.values() for count in counts if count <= cores):
                if framework == "pytorch" and workers == 1 and "horovod+pytorch" in frameworks:
                    continue  # as Hora's
                options: dict[str, Any] = {"batch": batch, "data": data, "epochs": 1000.0, "max_steps": scale.steps}
                workload, name = "mnist", framework.replace("+", "-")
                if framework == "pytorch" and workers > 1:
                    options["strategy"] = "ddp"
                if framework == "horovod+tensorflow":
                    workload = "synthetic"
                    options = {"batch": batch, "model": "mnist", "form": "tf", "num_batches": scale.steps}
                found[framework, batch, workers] = Trial(
                    name=f"speed-{name}-b{batch}-{workers}w",
                    workload=workload,
                    workers=workers,
                    threads_per_worker=1,  # a worker is a core here, as it is a GPU in the study: one has no more
                    options=options if workload == "synthetic" else {**SPEED_ONLY, **options},
                )
    return found


def images_per_s(framework: str, outcome: TrialOutcome) -> float | None:
    """Images/s by the formula that the study used for that framework."""
    if not outcome.done:
        return None
    value = outcome.result.get("images_per_s") if framework == "horovod+tensorflow" else outcome.images_per_s_study
    return plain(value) if isinstance(value, int | float) else None


def _speed_rows(scale: Scale, cores: int, fast: Mapping[tuple[str, int, int], TrialOutcome]) -> list[dict[str, Any]]:
    rows = []
    for experiment, counts in SPEED.items():
        for framework in FRAMEWORKS:
            for batch in sizes.speed_batches(scale, framework):
                alone = fast.get((framework, batch, 1))
                if alone is None and framework == "pytorch":
                    alone = fast.get(("horovod+pytorch", batch, 1))
                one = images_per_s(framework, alone) if alone else None
                for gpus in counts:
                    rows.append(_speed_row(experiment, framework, batch, gpus, cores, fast, alone, one))
    return rows


def _speed_row(
    experiment: int,
    framework: str,
    batch: int,
    gpus: int,
    cores: int,
    fast: Mapping[tuple[str, int, int], TrialOutcome],
    alone: TrialOutcome | None,
    one: float | None,
) -> dict[str, Any]:
    outcome = alone if gpus == 1 else fast.get((framework, batch, gpus))
    said = published_speed(framework, batch, gpus)
    here = images_per_s(framework, outcome) if outcome else None
    low = high = None
    how = "measured" if outcome else "not run"
    if outcome is None and gpus > cores and one and framework != "pytorch":
        low, here, high = predicted(one, batch, gpus, cores)
        how = "predicted"
    return {
        "experiment": experiment,
        "what": "throughput",
        "framework": framework,
        "here": FRAMEWORK_TEXTS[framework],
        "gpus": gpus,
        "workers": gpus,
        "batch": batch,
        "images_per_s": here,
        "low": low,
        "high": high,
        "steady_images_per_s": plain(outcome.images_per_s) if outcome else None,
        "first_batch_s": plain(outcome.first_batch_s) if outcome else None,
        "speed_up": plain(here / one) if here and one else None,
        "published_images_per_s": said.images_per_s if said else None,
        "published_speed_up": plain(speed_up(framework, batch, gpus) or math.nan),
        "state": outcome.state if outcome else how,
    }


def predicted(one: float, batch: int, workers: int, per_host: int) -> tuple[float | None, float | None, float | None]:
    """Images/s of more workers than there are cores: the low end, the middle and the high end of 90 %, on hosts like
    this one with 10 Gbit Ethernet between.

    >>> low, middle, high = predicted(1000.0, 128, 8, 2)
    >>> 4000 < low < middle < high < 8000
    True
    """
    basis = model_of(Calibration(compute_s=batch / one, batch=batch, gradient_bytes=GRADIENT_BYTES, per_host=per_host))
    speed = basis.model.forecast(batch, workers).images_per_s
    return plain(speed.low), plain(speed.middle), plain(speed.high)


# ---- quality ----


def _setup(scale: Scale, cores: int, experiment: int, data: str) -> QualitySetup:
    return QualitySetup(
        recipe=sizes.recipe(experiment, data), workers=(), factors=(), seeds=scale.seeds, processes=min(cores, 8),
        threads=1,
    )  # fmt: skip


def _quality_trials(scale: Scale, cores: int, data: str) -> dict[tuple[int, FactorCase, int], Trial]:
    found = {}
    for seed in scale.seeds:
        for quality, factor, workers in sizes.quality_runs(scale):
            cell = FactorCase(factor, workers)
            made = trial(_setup(scale, cores, quality.experiment, data), cell, seed)
            named = msgspec.structs.replace(made, name=f"e{quality.experiment}-{made.name}")
            found[quality.experiment, cell, seed] = named
    return found


def _quality_rows(
    scale: Scale, cores: int, data: str, done: Mapping[tuple[int, FactorCase], Sequence[TrialOutcome]]
) -> list[dict[str, Any]]:
    base = next((outcomes for (number, cell), outcomes in done.items() if number == 5 and cell.workers == 1), [])
    baseline, rows = quality_rows.runs_of(base), []
    for (experiment, cell), outcomes in done.items():
        row = quality_rows.row(_setup(scale, cores, experiment, data), cell, outcomes, baseline)
        said = published_quality(experiment, cell.workers) or {}
        top1 = said.get("top1")
        rows.append(
            {
                "experiment": experiment,
                "what": "quality",
                "gpus": cell.workers,
                **row,
                "factor": "baseline" if (experiment, cell.workers) == (5, 1) else cell.factor.name,
                "published_lr": said.get("lr"),
                "published_top1": top1,
                "published_top5": said.get("top5"),
                "published_minutes": said.get("minutes"),
                "published_vs_baseline": None if top1 is None else plain(top1 - baseline_top1()),
            }
        )
    return rows


def _notes(about: str, scale: Scale, cores: int) -> list[str]:
    numbers = [quality.experiment for quality in QUALITY]
    left_out = sorted({gpus for quality in QUALITY for gpus in quality.gpus} - set(scale.gpus))
    some = f"; without --quick also those of {', '.join(map(str, left_out))} workers" if left_out else ""
    seeds = len(scale.seeds)
    return [
        f"the data is {about}; the network of experiments 1 to 3 is TensorFlow's CNN for MNIST (3.3 million "
        "parameters), that of 4 to 9 Horovod's small one (22 thousand)",
        f"throughput: {', '.join(f'{there} becomes {here!r}' for there, here in FRAMEWORK_TEXTS.items())}: a network "
        "on random images as tf_cnn_benchmarks times it (warm-up left out); training by PyTorch's own DDP; "
        "training by Hora. The last two by the study's formula: images of a step "
        f"over the mean time of the first {scale.steps} steps, the very first included (the study: 200)",
        f"workers of experiments 1 to 3 are processes of one thread, up to {cores}, as many as cores; more are "
        f"predicted from one worker's step, for hosts of {cores} with 10 Gbit Ethernet between (90 % intervals; see "
        "'hora plan')",
        f"workers of experiments {numbers[0]} to {numbers[-1]} beyond {min(cores, 8)} are emulated: they learn what as "
        f"many would, but their time says nothing; {seeds} seed{'s' if seeds > 1 else ''}{some}",
        f"epochs: 90 become {sizes.EPOCHS}, the decays at 30, 60 and 80 become 3, 6 and 8, the warm-ups of 5 and 10 "
        f"become 0.5 and 1 and rise at every step; a batch of 128 a GPU becomes {sizes.BATCH} a worker, a rate of 0.05 "
        f"for one becomes {sizes.LR:g}, with the same momentum 0.9",
        "experiment 4 is PyTorch's default of 0.1 whatever the batch: twice the baseline's rate, also on one",
    ]
