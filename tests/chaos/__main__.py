"""Faults, counted: ``python -m tests.chaos stops --count 200``. Prints a table; exits with 1 if anything was missed.

stops    SIGSTOP at random moments of tiny operations: half are continued in time, half are given up
kills    SIGKILL at random moments
joins    uneven epochs that end with join(), while a thread keeps the GIL
elastic  elastic jobs of 1-4 workers on 1-2 hosts: kills, stops and arrivals
crowd    256 workers, simulated, of which one is late with 300 operations
limits   a machine that refuses: ulimit -f -v -n -u, full disks, 513 workers, idle sockets, …
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from collections.abc import Iterable

from tests.chaos import elastic, limits, rounds
from tests.chaos.rounds import Round, percentile


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("faults", choices=["stops", "kills", "joins", "elastic", "crowd", "limits"])
    parser.add_argument("--count", type=int, help="how many (200; of joins 6000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transport", choices=["shm", "gloo"], default="shm")
    parser.add_argument("--in-lock", action="store_true", help="count only stops inside the table's lock")
    parser.add_argument("--frameworks", default=",".join(elastic.FRAMEWORKS), help="of elastic jobs")
    parser.add_argument("--only", default="", metavar="TEXT", help="of limits, those whose name has this")
    given = parser.parse_args()
    match given.faults:
        case "stops":
            return tell(rounds.stops(given.count or 200, given.seed, given.transport, given.in_lock))
        case "kills":
            return tell(rounds.kills(given.count or 200, given.seed, given.transport))
        case "joins":
            return tell(rounds.joins(given.count or 6000, given.seed, given.transport))
        case "elastic":
            return tell(elastic.storms(given.count or 300, given.seed, tuple(given.frameworks.split(","))))
        case "crowd":
            return tell(rounds.crowd())
        case _:
            return tell(limits.rows(given.only))


def tell(found: Iterable[Round]) -> int:
    """A line a fault as it comes, then the sums of equal kinds."""
    began, kinds, missed = time.monotonic(), dict[str, list[float]](), 0
    outcomes = collections.Counter[str]()
    for number, one in enumerate(found, 1):
        print(f"{number:4}  {one.seconds:6.2f} s  {one.what}: {one.said}", flush=True)
        for miss in one.misses:
            print(f"      MISSED: {miss}", flush=True)
        missed += bool(one.misses)
        outcomes["failed" if one.misses else one.outcome] += 1
        kinds.setdefault(_kind(one.what), []).append(one.seconds)
    print(f"\n{'number':>6}  {'median':>7}  {'longest':>7}")
    for kind, seconds in sorted(kinds.items()):
        print(f"{len(seconds):6}  {percentile(seconds, 0.5):5.2f} s  {max(seconds):5.2f} s  {kind}")
    total = sum(map(len, kinds.values()))
    if any(outcome not in ("", "failed") for outcome in outcomes):
        print(", ".join(f"{outcomes[name]} {name}" for name in (elastic.SURVIVED, elastic.NOBODY, "failed")))
    print(f"{total - missed} of {total} as they should be, in {time.monotonic() - began:.0f} s")
    return 1 if missed or not total else 0


def _kind(what: str) -> str:
    """Without who it was."""
    words = what.split()
    return " ".join(["a", "rank", *words[4:]]) if words[0] == "rank" else what


if __name__ == "__main__":
    sys.exit(main())
