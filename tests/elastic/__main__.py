"""``python -m tests.elastic --count 100000 --seed 1``: simulated elastic jobs, each from a seed of its own."""

from __future__ import annotations

import argparse
import time
from collections import Counter

from tests.elastic.simulation import Simulation


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began, ends = time.monotonic(), Counter[str]()
    generations = 0
    for seed in range(given.seed, given.seed + given.count):
        simulation = Simulation(seed)
        simulation.run()
        ends["finished" if simulation.finished else simulation.failed[:40]] += 1
        generations += simulation.generation
    print(f"{given.count} schedules, {generations} generations, {time.monotonic() - began:.1f} s")
    for end, count in ends.most_common():
        print(f"{count:8} {end}")


if __name__ == "__main__":
    main()
