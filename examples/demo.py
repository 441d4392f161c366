"""`make demo`: trains the first job with one worker and with two, and says in a table what the second one gained.

Throughput is the median over the epochs after the first, which carries the start-up of every part. The loss and the
accuracy are of the last epoch, so that a faster run that learned less would show.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

JOB = Path(__file__).with_name("first_job.py")
JOB_TIMEOUT_S = 600


def train(workers: int, result: Path, extra: list[str]) -> dict[str, Any]:
    """Run the job under `hora run`; its output goes straight to the terminal."""
    hora = [sys.executable, "-m", "hora"]
    command = [*hora, "run", "-np", str(workers), sys.executable, str(JOB), "--json", str(result), *extra]
    print(f"$ hora run -np {workers} python examples/first_job.py", flush=True)
    done = subprocess.run(command, timeout=JOB_TIMEOUT_S)
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    print(flush=True)
    measured: dict[str, Any] = json.loads(result.read_text())
    return measured


def images_per_s(run: dict[str, Any]) -> float:
    return float(statistics.median(epoch["images_per_s"] for epoch in run["epochs"][1:] or run["epochs"]))


def main() -> None:
    parser = argparse.ArgumentParser(description="train the first job at several sizes and compare")
    parser.add_argument("--workers", default="1,2", help="numbers of workers to compare")
    args, extra = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="hora-demo-") as folder:
        sizes = [int(n) for n in args.workers.split(",")]
        runs = [train(n, Path(folder) / f"{n}.json", extra) for n in sizes]

    table = Table(title="Seven-segment digits, the same script", title_justify="left")
    for heading in ("workers", "loss", "accuracy", "images/s", "speed-up", "efficiency"):
        table.add_column(heading, justify="right")
    base = images_per_s(runs[0]) / runs[0]["workers"]
    for run in runs:
        last, rate = run["epochs"][-1], images_per_s(run)
        table.add_row(
            str(run["workers"]), f"{last['loss']:.4f}", f"{last['accuracy']:.2%}", f"{rate:,.0f}",
            f"{rate / base:.2f}x", f"{rate / base / run['workers']:.0%}",
        )  # fmt: skip
    Console(highlight=False).print(table)


if __name__ == "__main__":
    main()
