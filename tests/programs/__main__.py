"""Random programs against the real thing: real workers, the public API, every result checked exactly.

    python -m tests.programs --seconds 600 --seed N [-np 4] [--on shm|gloo|mpi|hosts|ucx]

runs program 0, 1, 2, … of the seed, one after the other, in the same workers, each with an ``init()``, process sets and
settings of its own. At the first that goes wrong it says which, what was expected and what came, and exits with 1. The
same seed and number give the same program, though never the same schedule:

    python -m tests.programs --seed N --only K [--repeat 50] [--ops 3:9,12] [--shrink]

runs program K alone, many times, or only some of its operations, or drops what it can do without and still fail.

**Promised.** Every rank computes in numpy what everybody brought and what it must get, and compares bit by bit
(Adasum: within a tolerance). Tried at random: allreduce (Sum, Average, Min, Max, Product, Adasum), allgather,
broadcast, alltoall, reducescatter, barrier and join; single and in groups of up to 5,000 tensors, blocking and
asynchronous, in place and not, named and unnamed, with factors and with compression; all element types; sizes around
those at which the core changes its ways, and empty ones; overlapping process sets, made at init or later, removed and
made again; ordinary, strided and shared tensors; names that are repeated, used again for other shapes, or always new;
several threads; every rank in an order of its own, at a low priority, beside a busy Python thread (on shm); with
caches and fusion of several sizes. Inputs that must not change are looked at again, and so are results, later. What
hangs is found by a deadline, and shown with every rank's stacks and what it was about.

**Not covered.** Mistakes and their errors (mismatches, stalls, deaths, a ``shutdown()`` while others wait), gradients
and optimizers, sparse tensors and objects, numbers that are not exact (rounding, inf, nan), other devices than the
host, front-ends other than ``hora.torch``, more than a few MB at once, collectives other than allreduce while a rank
has joined, joins beside other threads, several hosts that are not namespaces of this machine.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time

from tests.programs.pool import LAYOUTS, Failed, Pool, missing_for
from tests.programs.program import WITHOUT, Program, draw


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long; the programs begun by then are finished")
    parser.add_argument("--steps", type=int, default=0, help="stop after so many programs")
    parser.add_argument("-np", type=int, default=4, help="workers")
    parser.add_argument("--on", choices=LAYOUTS, default="shm")
    parser.add_argument("--first", type=int, default=0, help="begin with this program")
    parser.add_argument("--only", type=int, help="only this program")
    parser.add_argument("--repeat", type=int, default=1, help="with --only: how often")
    parser.add_argument("--ops", default="", help="only these of its operations, such as 3:9,12,20:")
    parser.add_argument(
        "--shrink", action="store_true", help="with --only: look for fewer operations that fail as well"
    )
    parser.add_argument("--show", action="store_true", help="with --only: print the program, and run nothing")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds after which a program counts as hung")
    parser.add_argument("--without", default="", help=f"leave out, with commas between: {', '.join(WITHOUT)}")
    parser.add_argument("--no-idle", action="store_true", help="no worker at a low priority")
    parser.add_argument("--keep-going", action="store_true", help="count failures instead of stopping at the first")
    parsed = parser.parse_args(given)
    parsed.without = [word for word in parsed.without.split(",") if word]
    if unknown := set(parsed.without) - set(WITHOUT):
        parser.error(f"--without: {', '.join(sorted(unknown))} is none of {', '.join(WITHOUT)}")
    return parsed


def operations_in(text: str, count: int) -> list[int] | None:
    """The numbers in ``3:9,12,20:``."""
    if not text:
        return None
    kept: set[int] = set()
    for part in text.split(","):
        low, colon, high = part.partition(":")
        kept |= set(range(int(low or 0), int(high or count) if colon else int(low) + 1))
    return sorted(kept)


class Session:
    """Programs on one pool after another: a new one is started when the last was lost."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.began = given, time.monotonic()
        self.programs = self.operations = self.failures = 0
        self._pool: Pool | None = None
        self._told = 0.0

    def perform(self, number: int, kept: list[int] | None) -> None:
        given = self.given
        if self._pool is None:
            self._pool = Pool(given.on, given.np).__enter__()
            if not self.programs:
                self.began = time.monotonic()
        try:
            self.operations += self._pool.perform(
                given.seed, number, timeout_s=given.timeout, kept=kept, without=given.without, idle=not given.no_idle,
            )  # fmt: skip
        except Failed as failed:
            self.failures += 1
            if failed.lost:
                self.close()
            raise
        finally:
            self.programs += 1

    def tell(self, number: int, last: bool = False) -> None:
        """One line of progress: again and again on a terminal, else now and then."""
        every_s, end = (0.2, "\r") if sys.stdout.isatty() else (20.0, "\n")
        now = time.monotonic()
        if last or now - self._told > every_s:
            self._told = now
            failed = f", {self.failures} failed" if self.failures else ""
            print(
                f"seed {self.given.seed} on {self.given.on} -np {self.given.np}: program {number}, {self.programs} run,"
                f" {self.operations:,} operations, {now - self.began:.0f} s{failed}",
                end="\n" if last else end,
                flush=True,
            )

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.__exit__()


def shrink(session: Session, number: int, kept: list[int], repeat: int) -> list[int]:
    """Drop what the program can do without and still fail within ``repeat`` runs: halves, quarters, …, single ones."""

    def fails(some: list[int]) -> bool:
        for _ in range(repeat):
            try:
                session.perform(number, some)
            except Failed:
                return True
        return False

    size = len(kept) // 2
    while size:
        at = 0
        while at < len(kept):
            rest = kept[:at] + kept[at + size :]
            if rest and fails(rest):
                kept = rest
                print(f"fails with {len(kept)} operations: --ops {','.join(map(str, kept))}", flush=True)
            else:
                at += size
        size //= 2
    return kept


def main() -> int:
    given = arguments()
    if missing := missing_for(given.on):
        print(f"no workers on {given.on} here: {missing}", file=sys.stderr)
        return 3
    one = given.only is not None
    program = draw(given.seed, given.only or 0, given.np, given.without)
    every = [op.number for phase in program.phases for thread in phase.threads for op in thread]
    kept = operations_in(given.ops, len(every)) if one else None
    if one and given.show:
        show(program if kept is None else program.only(set(kept)))
        return 0
    numbers = itertools.repeat(given.only, given.repeat) if one else itertools.count(given.first)
    session = Session(given)
    try:
        if one and given.shrink:
            left = shrink(session, given.only, kept or every, given.repeat)
            show(program.only(set(left)))
            return 1 if session.failures else 0
        for number in numbers:
            try:
                session.perform(number, kept)
            except Failed as failed:
                more = f" --without {','.join(given.without)}" if given.without else ""
                again = f"--seed {given.seed} -np {given.np} --on {given.on} --only {number} --repeat 100{more}"
                print(f"\nprogram {number} of seed {given.seed}: {failed}\n{again}", flush=True)
                if not given.keep_going:
                    session.tell(number, last=True)
                    return 1
            session.tell(number)
            if not one and (time.monotonic() - session.began > given.seconds or session.programs == given.steps):
                break
        session.tell(number, last=True)
    finally:
        session.close()
    return 1 if session.failures else 0


def show(program: Program) -> None:
    sets = ", ".join(f"{number}: {list(members)}" for number, members in enumerate(program.sets))
    print(f"{program.size} ranks; sets {sets}; { ({k: v for k, v in program.settings.items() if v}) }")
    for number, phase in enumerate(program.phases):
        join = f", then join after {list(phase.quotas)}, average_active={phase.average_active}" if phase.quotas else ""
        renew = f", set {phase.renew_set} made again" if phase.renew_set else ""
        print(f"phase {number}: {phase.steps} steps{', fresh names' * phase.fresh}, window {phase.window}{join}{renew}")
        for thread, operations in enumerate(phase.threads):
            for op in operations:
                print(f"  thread {thread}, set {op.set}: {op}")


if __name__ == "__main__":
    sys.exit(main())
