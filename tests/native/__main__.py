"""``make simulate``: the C core in orders that a seed decides; ``--planted``: the check of that check; ``--crowd``:
what agreement costs each of many hosts."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.native.planted import BUGS, plant
from tests.native.simulator import NATIVE, build, build_crowd, crowd, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.native", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="K", help="begin with schedule K")
    parser.add_argument("--schedules", type=int, help="how many, in place of --seconds; 1 also tells where threads are")
    parser.add_argument("--planted", action="store_true", help="plant known bugs, and say how long each takes to find")
    parser.add_argument("--crowd", action="store_true", help="what agreement costs up to a thousand hosts")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.crowd:
            return count_crowd(Path(folder), given.seed)
        if given.planted:
            return find_planted(Path(folder), given.seconds, given.seed)
        simulator = Path(folder) / "simulate"
        build(NATIVE, simulator)
        more = ["--from", str(given.first)]
        more += ["--schedules", str(given.schedules)] if given.schedules else []
        done = simulate(simulator, given.seconds, given.seed, *more, longest_wait_s=600)
        # what repeats it is this command
        print(done.stdout.replace("again: simulate", "again: python -m tests.native"), end="")
        return done.returncode


def count_crowd(folder: Path, seed: int) -> int:
    """Connections are TCP on loopback, so that what the kernel does for both ends is counted."""
    build_crowd(folder / "crowd")
    print("| hosts x workers | CPU of the busiest host, of one on average | frames | bytes | system calls |")
    print("| --- | --- | --- | --- | --- |")
    sizes = [(2, 1), (8, 8), (32, 8), (128, 1), (128, 8), (512, 1), (1000, 1)]
    for one_by_one, (hosts, workers) in [*((0, size) for size in sizes), (1, (8, 8)), (1, (128, 8))]:
        cost = crowd(folder / "crowd", hosts=hosts, workers=workers, seed=seed, tcp=1, one_by_one=one_by_one)
        cpu = " / ".join(f"{us / 1000:.2f} ms" for us in cost["cpu_us"])
        counts = [" / ".join(f"{n:,.0f}" for n in cost[what]) for what in ("frames", "bytes", "calls")]
        print(f"| {hosts} x {workers}{', one by one' * one_by_one} | {cpu} | {' | '.join(counts)} |", flush=True)
    return 0


def find_planted(folder: Path, seconds: int, seed: int) -> int:
    missed = 0
    for name, bug in BUGS.items():
        simulator = folder / name
        build(plant(bug, folder / f"with-{name}"), simulator)
        started = time.monotonic()
        found = simulate(simulator, seconds, seed).returncode != 0
        missed += not found
        print(
            f"{name}: {'found' if found else 'NOT FOUND'} in {time.monotonic() - started:.1f} s ({bug.why})", flush=True
        )
    print(f"{len(BUGS) - missed} of {len(BUGS)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
