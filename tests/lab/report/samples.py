"""Experiment and run folders as `hora lab` and `hora train` write them, with figures that are easy to recognise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from tests.timeline import traces

from hora.bench.plan import BenchRow, ContenderTime, Result
from hora.lab.records import Experiment
from hora.lab.scaling.waterfall import Levels, parts, plain
from hora.lab.trial import Trial, TrialOutcome
from hora.schedule import Decay, LearningRatePlan, Warmup
from hora.workloads.folder import RunFile

ENVIRONMENT: dict[str, Any] = {
    "versions": {"python": "3.11.7", "hora": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6"},
    "host": {
        "hostname": "node7",
        "cpu_model": "AMD EPYC",
        "cores": 2,
        "memory_bytes": 25_274_793_984,
        "system": "Linux 6.18",
    },
    "git": {"commit": "0123456789abcdef0123", "dirty": True},
}
BATCHES = (32, 64, 128)
RATES = {32: 2100.0, 64: 3050.0, 128: 3400.0}  # images/s of one worker


def put(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(value))


def trial_folder(
    folder: Path,
    trial: Trial,
    *,
    rate: float = 1000.0,
    state: Any = "done",
    error: str = "",
    accuracies: list[float] | None = None,
    generated: bool = False,
    plan: LearningRatePlan | None = None,
) -> TrialOutcome:
    """A trial that ran, with run.json, metrics.jsonl and outcome.json."""
    epochs = [
        {
            "epoch": number,
            "step": 10 * (number + 1),
            "samples": 1000 * (number + 1),
            "epoch_s": 2.0,
            "accuracy": accuracy - 0.03,
            "val_accuracy": accuracy,
            "loss": 1 - accuracy,
        }
        for number, accuracy in enumerate(accuracies or [])
    ]
    batch = trial.options.get("batch", 64)
    result = {
        "images_per_s": rate,
        "batch": batch,
        "generated_data": generated,
        "epochs": float(len(epochs)),
        "seed": 42,
    }
    result |= {"val_accuracy": accuracies[-1]} if accuracies else {}
    outcome = TrialOutcome(
        trial=trial,
        state=state,
        error=error,
        folder=str(folder),
        seconds=12.0,
        first_batch_s=0.8,
        step_s=[batch * trial.workers / rate] * 20 if state == "done" else [],
        warmup_steps=10,
        images_per_s=rate,
        images_per_s_low=rate * 0.97,
        images_per_s_high=rate * 1.02,
        images_per_s_study=rate * 0.9,
        data_s=0.001,
        cpu_share=0.93,
        memory_bytes=600_000_000 * trial.workers,
        result=result if state == "done" else {},
        epochs=epochs,
    )
    put(folder / "outcome.json", outcome)
    plan = plan or LearningRatePlan(
        base_lr=0.01, base_batch=64, batch=batch, workers=trial.workers, epochs=5, samples=60000
    )
    put(
        folder / "run.json",
        RunFile(
            workload=trial.workload,
            options={"batch": batch, "seed": 42, "epochs": plan.epochs, **trial.options},
            plan=msgspec.to_builtins(plan),
            workers=trial.workers,
            threads_per_worker=1,
            **ENVIRONMENT,
            command=["/venv/bin/hora", "train", trial.workload],
            started="2026-11-16T07:10:15+00:00",
            ended="2026-11-16T07:12:15+00:00",
            state="done" if state == "done" else "failed",
            error=error,
            result=outcome.result,
        ),
    )
    (folder / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in epochs))
    return outcome


def experiment(folder: Path, kind: str, title: str, **fields: Any) -> Path:
    """An experiment.json."""
    usual = {
        "command": ["/venv/bin/hora", "lab", kind, "mnist"],
        "started": "2026-11-16T07:10:15+00:00",
        "ended": "2026-11-16T07:20:15+00:00",
        "state": "done",
        "options": {"workload": "mnist"},
    }
    put(folder / "experiment.json", Experiment(kind=kind, title=title, **ENVIRONMENT, **(usual | fields)))
    return folder


def facts(rate: float, workers: int, batch: int) -> dict[str, Any]:
    return {
        "images_per_s": rate,
        "low": rate * 0.97,
        "high": rate * 1.02,
        "images_per_s_study": rate * 0.9,
        "study_steps": 60,
        "step_ms": 1e3 * workers * batch / rate,
        "data_ms": 0.4,
        "first_batch_s": 0.81,
        "cpu_share": min(0.98, 0.46 * workers),
        "memory_mb": 610.0 * workers,
        "runs": 3,
        "state": "done",
    }


def scaling(folder: Path, *, timeline: bool = True) -> Path:
    """One and two workers, 1.9 times the speed, 95 % efficient; a timeline of two ranks of which the second is late."""
    rows = []
    for workers, rate, limit in ((1, 3000.0, 3000.0), (2, 5700.0, 5940.0)):
        efficiency = rate / 3000 / workers
        rows.append(
            {
                "mode": "weak",
                "workers": workers,
                "batch": 64,
                "global_batch": 64 * workers,
                "threads": 1,
                "transport": "auto",
                "ideal_images_per_s": 3000.0 * workers,
                "limit_images_per_s": limit,
                "limit_efficiency": limit / 3000 / workers,
                "share_of_limit": rate / limit,
                "speed_up": rate / 3000,
                "speed_up_low": rate / 3000 - 0.04 * (workers - 1),
                "speed_up_high": rate / 3000 + 0.03 * (workers - 1),
                "efficiency": efficiency,
                "efficiency_low": efficiency - 0.02 * (workers - 1),
                "efficiency_high": efficiency + 0.015 * (workers - 1),
                "above_ideal": False,
                "slower_than_one": False,
                "waterfall": way() if workers > 1 else None,
                "link": None,
                **facts(rate, workers, 64),
            }
        )
    names = []
    for workers in (1, 2):
        names.append(f"{workers}w-b64-t1-auto-1")
        trial = Trial(name=names[-1], workload="mnist", workers=workers, options={"batch": 64, "max_steps": 60})
        trial_folder(folder / "trials" / names[-1], trial, rate=rows[workers - 1]["images_per_s"])
    if timeline:
        names.append("2w-b64-t1-timeline-1")
        place = folder / "trials" / names[-1]
        trial_folder(place, Trial(name=names[-1], workload="mnist", workers=2, options={"batch": 64}, timeline=True))
        timelines(place)
    finding = {
        "mode": "weak",
        "kind": "imbalance",
        "title": "rank 1 is late",
        "share": 0.12,
        "gain": 0.11,
        "rank": 1,
        "what": "The others wait for rank 1 12 % of the time",
        "change": "Look at what rank 1 does before it submits: data, <logging> & checkpoints; see `hora doctor`",
    }
    notes = ["images/s: over the median step; warm-up steps are left out", "weak scaling: every worker's batch stays"]
    return experiment(
        folder, "scaling", "mnist: weak scaling", rows=rows, findings=[finding], notes=notes, trials=names
    )


def way() -> list[dict[str, Any]]:
    """Of 20 ms of computing, 1 of contention, 2 of waiting and 1 of moving."""
    levels = Levels(ideal=0.020, alone=0.020, limit=0.021, in_step=0.023, job=0.024)
    return [dict(part) for part in plain(parts(levels))]


def timelines(folder: Path) -> list[Path]:
    """Of two ranks, ten steps; rank 1 comes 100 µs late to steps of 1,000."""
    ops = [
        traces.op("grad", [1000 * n, 1000 * n + 100], 1000 * n + 110, 1000 * n + 200, shape=(4096,)) for n in range(10)
    ]
    return [
        traces.hora(folder / ("timeline.json" if rank == 0 else f"timeline.rank{rank}.json"), ops, rank)
        for rank in (0, 1)
    ]


def throughput(folder: Path) -> Path:
    """Three batch sizes on one, two and four workers; one trial that ran out of memory."""
    rows, names = [], []
    for batch in BATCHES:
        for workers in (1, 2, 4):
            rate, limit = RATES[batch] * workers * 0.97**workers, RATES[batch] * workers
            rows.append(
                {
                    "workers": workers,
                    "batch": batch,
                    "threads": 1,
                    "transport": "auto",
                    "limit_images_per_s": limit,
                    "share_of_limit": rate / limit,
                    **facts(rate, workers, batch),
                }
            )
    trial = Trial(name="4w-b4096", workload="mnist", workers=4, options={"batch": 4096})
    trial_folder(
        folder / "trials" / trial.name, trial, state="out of memory", error="DefaultCPUAllocator: not enough memory"
    )
    names.append(trial.name)
    return experiment(folder, "throughput", "mnist: throughput", rows=rows, trials=names)


FACTORS = {"naive": 0.955, "linear": 0.962, "gradual5": 0.978, "gradual10": 0.981}


def quality(folder: Path) -> Path:
    """Four factors on 8 and 32 emulated workers, eight epochs."""
    rows, names = [], []

    def add(factor: str, workers: int, best: float) -> None:
        errors = [1 - best + 0.25 * 0.55**epoch for epoch in range(8)]
        plan = LearningRatePlan(
            base_lr=0.01,
            base_batch=64,
            batch=64,
            workers=workers,
            epochs=8,
            samples=60000,
            warmup=Warmup("gradual", 3) if "gradual" in factor else Warmup(),
            decay=Decay("steps", steps=((5, 0.1),)),
        )
        name = f"{factor}-{workers}w-seed1"
        names.append(name)
        trial = Trial(name=name, workload="mnist", workers=2, options={"batch": 64, "emulate_workers": workers})
        trial_folder(folder / "trials" / name, trial, accuracies=[1 - e for e in errors], generated=True, plan=plan)
        rows.append(
            {
                "factor": factor,
                "workers": workers,
                "emulated": workers > 2,
                "processes": min(2, workers),
                "batch": 64,
                "global_batch": 64 * workers,
                "peak_lr": plan.peak_lr,
                "warmup": "gradual:3" if plan.warms_up else "none",
                "epochs": 8.0,
                "seeds": 3,
                "best_top1": best,
                "best_top1_low": best - 0.004,
                "best_top1_high": best + 0.003,
                "best_top1_spread": 0.003,
                "best_top1_seeds": [best],
                "best_epoch": 8.0,
                "final_top1": best,
                "best_top5": None,
                "vs_baseline": best - 0.985 if workers > 1 else None,
                "vs_baseline_low": best - 0.99 if workers > 1 else None,
                "vs_baseline_high": best - 0.98 if workers > 1 else None,
                "time_s": 92.0,
                "state": "done",
                "error": "",
                "curve": {
                    "epoch": [float(n + 1) for n in range(8)],
                    "samples": [60000 * (n + 1) for n in range(8)],
                    "train_error": [e + 0.02 for e in errors],
                    "val_error": errors,
                    "val_error_low": [e * 0.9 for e in errors],
                    "val_error_high": [e * 1.1 for e in errors],
                },
                "budgets": [{"minutes": 1.0, "epochs": 4.0, "top1": best - 0.01, "how": "measured"}],
            }
        )

    add("baseline", 1, 0.985)
    for workers in (8, 32):
        for factor, best in FACTORS.items():
            add(factor, workers, best - 0.0004 * workers)
    finding = {
        "kind": "naive scaling",
        "title": "the rate of one worker, kept on 32, loses to one worker",
        "gain": 0.03,
        "what": "32 workers reach 94.2 %, one worker 98.5 %",
        "change": "Let the rate grow",
        "rank": None,
    }
    return experiment(folder, "quality", "mnist: quality", rows=rows, findings=[finding], trials=names)


def sweep(folder: Path) -> Path:
    """Rates by batch sizes; one point did not fit, one diverged."""
    rows: list[dict[str, Any]] = []
    for batch in (32, 64, 8192):
        for lr in (0.001, 0.01, 0.1, 1.0):
            state = "out of memory" if batch == 8192 else "diverged" if lr == 1.0 else "done"
            value = 0.98 - 0.05 * abs(lr - 0.01) ** 0.5 - batch / 5000 if state == "done" else None
            rows.append(
                {
                    "trial": f"t{len(rows):03}",
                    "batch": batch,
                    "lr": lr,
                    "workers": 1,
                    "images_per_s": 2000.0,
                    "time_s": 9.0,
                    "val_accuracy": value,
                    "best": False,
                    "state": state,
                    "error": "",
                }
            )
    max((row for row in rows if row["val_accuracy"]), key=lambda row: row["val_accuracy"])["best"] = True
    return experiment(
        folder, "sweep", "mnist: sweep", rows=rows, options={"workload": "mnist", "metric": "val_accuracy"}
    )


def run(folder: Path, workers: int = 2) -> Path:
    """A run of `hora train` by itself, of five epochs."""
    trial_folder(
        folder,
        Trial(name=folder.name, workload="mnist", workers=workers, options={"batch": 64}),
        accuracies=[each - 0.004 * workers for each in (0.9, 0.95, 0.962, 0.97, 0.974)],
        rate=2800.0 * workers,
    )
    (folder / "outcome.json").unlink()
    return folder


def gan(folder: Path, epochs: int = 5) -> Path:
    """A run of 3DGAN by itself: losses that fall, and results."""
    trial = Trial(name=folder.name, workload="gan3d", workers=2, options={"batch": 8})
    trial_folder(folder, trial, rate=2.4)
    lines = []
    for epoch in range(epochs):
        line: dict[str, Any] = {"epoch": epoch, "step": 10 * (epoch + 1), "samples": 80, "epoch_s": 30.0}
        for name, size in (("generator", 40.0), ("discriminator", 20.0)):
            for prefix, more in (("", 1.0), ("val_", 1.25)):
                line[f"{prefix}{name}_loss"] = more * size * 0.7**epoch
                for column in ("generation", "auxiliary", "ecal"):
                    line[f"{prefix}{name}_{column}_loss"] = more * 0.7**epoch
        line |= {"val_moment_error": 0.6 * 0.8**epoch, "val_profile_error": 1.2 * 0.75**epoch}
        lines.append(line | {"val_analysis": line["val_moment_error"] + line["val_profile_error"]})
    (folder / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    (folder / "outcome.json").unlink()
    return folder


def bench(path: Path) -> Path:
    """What `hora bench allreduce --json` writes."""
    sizes = {"4 KB": 4096, "1 MB": 1 << 20, "64 MB": 1 << 26}
    rows = []
    for place, (name, size) in enumerate(sizes.items()):
        cells = {
            key: ContenderTime(median_us=us, low_us=us * 0.9, high_us=us * 1.2, rounds=5)
            for key, us in {"hora": 10.0**place, "gloo": 40 * 10.0**place}.items()
        }
        rows.append(BenchRow(name=name, bytes=size, cells=cells))
    machine: dict[str, str | int] = {"cpu": "AMD EPYC", "cores": 2, "memory_bytes": 25_274_793_984, "python": "3.11.7"}
    put(
        path,
        Result(bench="allreduce", np=2, command="hora bench allreduce -np 2", rows=rows, machine=machine, versions={}),
    )
    return path


def study(folder: Path) -> Path:
    """Two frameworks of the study on one and two workers, the larger predicted; no accuracy."""
    rows: list[dict[str, Any]] = [
        {
            "experiment": 1,
            "what": "throughput",
            "framework": framework,
            "here": here,
            "gpus": workers,
            "workers": workers,
            "batch": 128,
            "images_per_s": 1000.0 * workers * kept if workers > 1 else 1000.0,
            "low": 1000.0 * workers * (kept - 0.05) if workers > 2 else None,
            "high": 1000.0 * workers * (kept + 0.05) if workers > 2 else None,
            "speed_up": workers * kept if workers > 1 else 1.0,
            "published_images_per_s": 200.0 * workers,
            "published_speed_up": workers * 0.95 if workers > 1 else 1.0,
            "state": "done" if workers <= 2 else "predicted",
        }
        for framework, here, kept in (("horovod+tensorflow", "tf_cnn form", 0.8), ("horovod+pytorch", "Hora", 0.9))
        for workers in (1, 2, 4, 8)
    ]
    question = {
        "kind": "question 1",
        "question": "How does throughput scale with workers?",
        "title": "2 workers are 1.80 times as fast as one",
        "what": "Here: Hora 1.80x",
        "change": "In the study: 1.90x",
        "gain": 0.0,
        "rank": None,
    }
    return experiment(folder, "study", "the reference study in miniature (quick)", rows=rows, findings=[question])
