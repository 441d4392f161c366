"""``python -m tests.launch.elastic --kills 30``: random kills of real workers in one long job, counted and timed.

Prints how long after each kill the survivors had finished their next step, what a newcomer cost those who trained, and
whether every sample was taken once.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.launch.jobs import clean_environment, hora

WORKER = Path(__file__).with_name("worker.py")


class Step:
    """One finished step of one worker, as it wrote it down."""

    def __init__(self, line: str) -> None:
        words = line.split()
        self.time, self.generation, self.size, self.pid = float(words[0]), *map(int, words[1:])


def steps(path: Path) -> list[Step]:
    return [Step(line) for line in path.read_text().splitlines() if line.count(" ") == 3]


def run(kills: int, workers: int, every_s: float, seed: int) -> bool:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps"
        path.touch()
        total = round(kills * every_s * 7 + 50)  # about as long as the kills take
        command = hora(
            "run", "--min-np", "1", "--max-np", str(workers), sys.executable, str(WORKER), str(total), "slow"
        )
        process = subprocess.Popen(
            command,
            env=clean_environment(STEPS_LOG=str(path)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        killed: list[float] = []
        while len(killed) < kills and process.poll() is None:
            time.sleep(every_s * chance.uniform(0.7, 1.3))
            recent = [step for step in steps(path) if step.time > time.time() - 0.5]
            pids = {step.pid for step in recent if step.generation == recent[-1].generation}
            if len(pids) > 1:
                killed.append(time.time())
                os.kill(chance.choice(sorted(pids)), signal.SIGKILL)
        said, _ = process.communicate(timeout=600)
        done = steps(path)
        waits, joins = [], []
        for at in killed:
            before = max((step.generation for step in done if step.time <= at), default=0)
            waits.append(min(step.time for step in done if step.time > at and step.generation > before) - at)
        for older, newer in itertools.pairwise(done):
            if newer.size > older.size:
                joins.append(newer.time - older.time)
        exact = process.returncode == 0 and "exact True" in said and "exact False" not in said
        print(f"{len(killed)} kills, {done[-1].generation} generations, exit code {process.returncode}, exact: {exact}")
        for name, found in (("kill to the next step", waits), ("step to step over a join", joins)):
            ordered = sorted(found)
            if ordered:
                p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
                print(
                    f"{name}: median {1e3 * statistics.median(ordered):.0f} ms, p99 {1e3 * p99:.0f} ms ({len(ordered)})"
                )
        if not exact:
            print(said[-3000:])
        return exact


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--every", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    sys.exit(not run(given.kills, given.workers, given.every, given.seed))


if __name__ == "__main__":
    main()
