"""Plants bugs in a copy of the tree, one at a time, and tells which of them no test notices.

``python -m tests.mutants --c 100 --python 100 --seed 1 [--only native/table.c] [--list] [--results FILE]``

A mutant that does not compile, or compiles to the same, is no mutant, and another takes its place. Results are appended
to a file as JSON lines; what is in it is not run again. A hang is found too, but told apart: it costs whoever made the
bug a minute. Survivors that were looked at and change nothing anybody could notice are in ``equivalent.txt``.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.mutants import in_c, in_python, reach
from tests.mutants.mutant import Mutant
from tests.mutants.tree import Tree

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
Result = dict[str, Any]


def equivalent() -> dict[str, str]:
    """Mutants that were judged to change nothing, and why."""
    lines = (line.partition(" ") for line in EQUIVALENT.read_text().splitlines())
    return {number: why.strip() for number, _, why in lines if number and not number.startswith("#")}


def chosen(tree: Tree, language: str, seed: int, only: str) -> list[Mutant]:
    """All mutants of a language in the order of that seed."""
    make = in_c.mutants if language == "c" else in_python.mutants
    files = [file for file in reach.files(tree, language) if file.startswith(only)]
    found = [mutant for file in files for mutant in make(file, (tree.root / file).read_text())]
    random.Random(seed).shuffle(found)
    return found


class Bench:
    """Tries mutants in a tree, and remembers what the tests of each file take without a bug."""

    def __init__(self, tree: Tree, bound_s: float, most: int = 9) -> None:
        self._tree, self._bound_s, self._most = tree, bound_s, most
        self._takes_s: dict[tuple[str, ...], float | None] = {}  # None: it fails by itself
        self._core: bytes | None = None

    def attempt(self, mutant: Mutant) -> Result | None:
        """How it went; None if it was no mutant."""
        original = (self._tree.root / mutant.file).read_text()
        native = mutant.file.startswith("native/")
        if native and self._core is None:
            self._core = self._tree.build()
            assert self._core is not None, "the C core does not compile without any bug"
        stages = self._healthy(mutant.file)
        try:
            if not native and in_python.same_code(original, mutant.text):
                return None
            self._tree.put(mutant.file, mutant.text)
            if native and self._tree.build() in (None, self._core):
                return None
            seconds, outcome, by = 0.0, "survived", ""
            for stage, bound_s in stages:
                ran = self._tree.run(stage, bound_s)
                seconds += ran.seconds
                if ran.red:
                    outcome, by = "by timeout" if ran.late else "found", ran.by
                    break
        finally:
            self._tree.put(mutant.file, original)
            if self._core is not None:
                self._tree.put_core(self._core)
        told = mutant._asdict()
        del told["text"]
        return {**told, "outcome": outcome, "by": by, "seconds": round(seconds, 1)}

    def _healthy(self, file: str) -> list[tuple[list[str], float]]:
        """The stages of a file with their bounds: those of the tests that are green without a bug."""
        stages = reach.stages(self._tree, file)[: self._most]
        for stage in stages:
            if tuple(stage) not in self._takes_s:
                ran = self._tree.run(stage, 10 * self._bound_s)
                self._takes_s[tuple(stage)] = None if ran.red else ran.seconds
                if ran.red:
                    print(f"  left out, red without any bug: {' '.join(stage)} ({ran.by})", flush=True)
        taken = [(stage, self._takes_s[tuple(stage)]) for stage in stages]
        return [(stage, max(self._bound_s, 3 * seconds)) for stage, seconds in taken if seconds is not None]


def run(mutants: list[Mutant], number: int, bench: Bench, results: Path, known: dict[str, Result]) -> Iterator[Result]:
    """The results of so many mutants; each is kept as soon as it is there."""
    for mutant in mutants:
        if number <= 0:
            return
        result = known.get(mutant.id)
        if result is None:
            result = bench.attempt(mutant) or {"id": mutant.id, "outcome": "no mutant"}
            with results.open("a") as file:
                file.write(json.dumps(result) + "\n")
        if result["outcome"] != "no mutant":
            number -= 1
            yield result


def summary(language: str, results: list[Result]) -> str:
    """The score.

    >>> summary("c", [{"id": "1", "outcome": "found"}, {"id": "2", "outcome": "by timeout"}])
    'c: 2 of 2 found (100 %), 1 of them by timeout; 0 of 0 survivors are equivalent'
    """
    survived = [result for result in results if result["outcome"] == "survived"]
    same = [result for result in survived if result["id"] in equivalent()]
    found, late = len(results) - len(survived), sum(result["outcome"] == "by timeout" for result in results)
    of = len(results) - len(same)
    share = f"{100 * found / of:.0f} %" if of else "nothing to find"
    return (
        f"{language}: {found} of {of} found ({share}), {late} of them by timeout; "
        f"{len(same)} of {len(survived)} survivors are equivalent"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--c", type=int, default=0, help="how many in native/")
    parser.add_argument("--python", type=int, default=0, help=f"how many in src/hora/{{{','.join(reach.PYTHON)}}}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only in files whose path begins like this")
    parser.add_argument(
        "--bound-s", type=float, default=60.0, help="for each stage of tests, or three times what it takes"
    )
    parser.add_argument("--stages", type=int, default=9, help="how many of them; 1: only tests in one process")
    parser.add_argument("--list", action="store_true", help="say what would be planted, and plant nothing")
    parser.add_argument("--results", type=Path, default=Path("build/mutants.jsonl"))
    given = parser.parse_args()
    given.results.parent.mkdir(parents=True, exist_ok=True)
    lines = given.results.read_text().splitlines() if given.results.exists() else []
    known = {result["id"]: result for result in map(json.loads, lines)}
    with tempfile.TemporaryDirectory(prefix="hora-mutants-") as folder:
        tree = Tree(ROOT, Path(folder))
        wanted = {"c": given.c, "python": given.python}
        bench = None if given.list else Bench(tree, given.bound_s, given.stages)
        scores = []
        for language, number in wanted.items():
            mutants = chosen(tree, language, given.seed, given.only) if number else []
            if bench is None:
                for mutant in mutants[:number]:
                    print(f"{mutant.id} {mutant.file}:{mutant.line} {mutant.function}: {mutant.what}\n{mutant.diff}")
                continue
            results = []
            for result in run(mutants, number, bench, given.results, known):
                results.append(result)
                where = f"{result['file']}:{result['line']} {result['function']}: {result['what']}"
                print(
                    f"{result['outcome']:10} {result['id']} {where} [{result['by']}, {result['seconds']} s]", flush=True
                )
                if result["outcome"] == "survived":
                    print(
                        result["diff"], *(f"equivalent: {equivalent()[n]}" for n in [result["id"]] if n in equivalent())
                    )
            if number:
                scores.append(summary(language, results))
        print(*scores, sep="\n")


if __name__ == "__main__":
    main()
