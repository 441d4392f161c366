"""`make demo`: trains MNIST with one worker and with two, measures how well that scales, says why not better, and puts
all of it on a page. It ends with the way from ideal to measured: where the time of a step goes.

Everything is done by commands that are printed first, so that they can be tried by hand. Where MNIST cannot be fetched,
digits are generated instead.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from hora.lab.scaling.show import print_waterfall

COMMAND_TIMEOUT_S = 1800


def hora(*arguments: str, may_fail: bool = False) -> bool:
    """Run a command of Hora, its output straight to the terminal; whether it went well."""
    print(f"\n$ hora {shlex.join(arguments)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "hora", *arguments], timeout=COMMAND_TIMEOUT_S)
    if done.returncode != 0 and not may_fail:
        raise SystemExit(done.returncode)
    return done.returncode == 0


def data(images: int) -> Path:
    """The folder of MNIST, or of as many generated digits."""
    if not images and hora("data", "get", "mnist", "--to", "data/mnist", may_fail=True):
        return Path("data/mnist")
    if not images:
        print("MNIST could not be fetched. Digits are generated instead; accuracy on them says nothing about MNIST.")
    count = images or 60000
    folder = Path(f"data/digits-{count}")
    hora("data", "make", "digits", "--samples", str(count), "--to", str(folder))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder of the runs and the report")
    parser.add_argument("--workers", default="1,2", help="numbers of workers to compare")
    parser.add_argument("--images", type=int, default=0, help="so many generated digits instead of MNIST")
    parser.add_argument("--epochs", default="0.3", help="of the training on each; 0 for none")
    parser.add_argument("--steps", default="40", help="steps of a run that measures speed")
    parser.add_argument("--repeats", default="2", help="how many of them, by turns")
    args, more = parser.parse_known_args()  # more are options of `hora lab scaling`

    folder = data(args.images)
    # One worker computes with no more threads than each of several, or it would be as fast as they are together.
    threads = max(1, len(os.sched_getaffinity(0)) // max(map(int, args.workers.split(","))))
    shutil.rmtree(args.out / "scaling", ignore_errors=True)  # measured anew each time
    for workers in args.workers.split(",") if float(args.epochs) else ():
        hora(
            "train", "mnist", "-np", workers, "--threads-per-worker", str(threads), "--epochs", args.epochs,
            "--data", str(folder), "--save-every", "0", "--out", str(args.out / f"train-{workers}"), "--overwrite",
        )  # fmt: skip
    hora(
        "lab", "scaling", "mnist", "--workers", args.workers, "--steps", args.steps, "--repeats", args.repeats,
        "--pauses", "--set", f"data={folder}", "--out", str(args.out / "scaling"), *more,
    )  # fmt: skip
    page = args.out / "report.html"
    hora("lab", "report", str(args.out), "-o", str(page), "--title", "MNIST on one worker and on two")
    show_waterfall(args.out / "scaling")
    for picture in sorted((args.out / "report-plots").glob("way-*.png"))[:1]:
        print(f"\nThe same as a picture: {picture.resolve()}")
    print(f"\nThe report is {page.resolve()}: open it in a browser.")


def show_waterfall(experiment: Path) -> None:
    """Where the time of a step of the largest job goes, as `hora lab scaling` has measured it."""
    rows = json.loads((experiment / "experiment.json").read_text())["rows"]
    largest = max(rows, key=lambda row: row["workers"], default=None)
    if largest is not None:
        print_waterfall(Console(highlight=False), largest)


if __name__ == "__main__":
    main()
