"""Plants bugs in a copy of the tree, one at a time, and tells which of them no test notices.

``python -m tests.mutants --c 100 --python 100 --seed 1 [--only native/table.c] [--list] [--results FILE]``

A mutant that does not compile, or compiles to the same, is no mutant, and another takes its place. Results are appended
to a file as JSON lines; what is in it is not run again. A hang is found too, but told apart: it costs whoever made the
bug a minute. Survivors that were looked at and change nothing anybody could notice are in ``equivalent.txt``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.mutants import in_c, in_python, reach
from tests.mutants.mutant import Mutant
from tests.mutants.tree import Ran, Tree

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
Result = dict[str, Any]


def equivalent() -> dict[str, str]:
    """Mutants that were judged to change nothing, and why."""
    lines = (line.partition(" ") for line in EQUIVALENT.read_text().splitlines())
    return {number: why.strip() for number, _, why in lines if number and not number.startswith("#")}


def chosen(tree: Tree, language: str, seed: int, only: str) -> list[Mutant]:
    """All mutants of a language in the order of that seed, in which each has its place whatever others come and go."""
    make = in_c.mutants if language == "c" else in_python.mutants
    files = [file for file in reach.files(tree, language) if file.startswith(only)]
    found = [mutant for file in files for mutant in make(file, (tree.root / file).read_text())]
    return sorted(found, key=lambda mutant: hashlib.sha1(f"{seed} {mutant.id}".encode()).digest())


class Bench:
    """Tries mutants in a tree. What is red there counts only if it is green without the bug."""

    def __init__(self, tree: Tree, bound_s: float, most: int = 9, kept: Path | None = None) -> None:
        self._tree, self._bound_s, self._most, self._kept = tree, bound_s, most, kept
        self._takes_s: dict[tuple[str, ...], float] = {}  # tests without a bug
        self._left_out: set[str] = set()
        self._core: bytes | None = None
        lines = kept.read_text().splitlines() if kept and kept.exists() else []
        self._calls: dict[str, list[dict[str, Any]]] = dict(map(json.loads, lines))  # by file of tests

    def attempt(self, mutant: Mutant) -> Result | None:
        """How it went; None if it was no mutant."""
        original = (self._tree.root / mutant.file).read_text()
        native = mutant.file.startswith("native/")
        if native and self._core is None:
            self._core = self._tree.build()
            assert self._core is not None, "the C core does not compile without any bug"
        if not native and in_python.same_code(original, mutant.text):
            return None
        stages = self._stages(mutant)
        while True:
            try:
                self._tree.put(mutant.file, mutant.text)
                if native and self._tree.build() in (None, self._core):
                    return None
                seconds, stage, ran = self._try(stages)
            finally:
                self._tree.put(mutant.file, original)
                if native:
                    self._tree.build()
            if ran is None or self._counts(stage, ran):
                break
        told = mutant._asdict()
        del told["text"]
        outcome = "survived" if ran is None else "by timeout" if ran.late else "found"
        return {**told, "outcome": outcome, "by": ran.by if ran else "", "seconds": round(seconds, 1)}

    def _stages(self, mutant: Mutant) -> list[list[str]]:
        """What to run. Of the tests of one process those that call the function, the quick ones first."""
        first, *more = reach.stages(self._tree, mutant.file)[: self._most]
        if mutant.file.startswith("native/"):
            return [first, *more]
        place = f"{mutant.file} {mutant.function}"
        reaching = [test for file in first for test in self._called_by(file) if place in test["calls"]]
        tests = dict.fromkeys(test["test"] for test in sorted(reaching, key=lambda test: float(test["seconds"])))
        last = [first] if self._most > 1 else []  # all of them, for some start other processes
        return [*([list(tests)] if tests else []), *more, *last]

    def _called_by(self, file: str) -> list[dict[str, Any]]:
        """What the tests of a file call; kept, if there is a place for it, as long as they are the same."""
        path = self._tree.root / file
        texts = [each.read_bytes() for each in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
        key = f"{file} {hashlib.sha1(b''.join(texts)).hexdigest()}"
        if key not in self._calls:
            self._calls[key] = self._tree.calls(file)
            if self._kept:
                with self._kept.open("a") as kept:
                    kept.write(json.dumps([key, self._calls[key]]) + "\n")
        return self._calls[key]

    def _try(self, stages: list[list[str]]) -> tuple[float, list[str], Ran | None]:
        """Run the stages of the mutant that is in the tree: how long that took, and what was red."""
        seconds = 0.0
        for stage in stages:
            if stage[0] in self._left_out:
                continue
            left_out = [word for test in sorted(self._left_out) for word in ("--deselect", test)]
            ran = self._tree.run([*stage, *(left_out if stage[0] != reach.SIMULATOR else [])], self._bound(stage))
            seconds += ran.seconds
            if ran.red:
                return seconds, stage, ran
        return seconds, [], None

    def _bound(self, stage: list[str]) -> float:
        return max(self._bound_s, 3 * self._takes_s.get(tuple(stage), 0.0))

    def _counts(self, stage: list[str], ran: Ran) -> bool:
        """Whether what was red is green without the bug, and in time; if not, it is left out, or gets longer."""
        bound_s, key = self._bound(stage), (ran.test,) if ran.test else tuple(stage)
        if key not in self._takes_s:
            again = self._tree.run(list(key), 10 * self._bound_s)
            if again.red:
                print(f"  left out, red without any bug: {again.by}\n{'' if again.test else again.said}", flush=True)
                self._left_out.add(again.test or stage[0])
                return False
            self._takes_s[key] = again.seconds
        return not (ran.late and self._bound(stage) > bound_s)


def run(mutants: list[Mutant], number: int, bench: Bench, results: Path, known: dict[str, Result]) -> Iterator[Result]:
    """The results of so many mutants; each is kept as soon as it is there. Those that were judged are not run again."""
    judged = equivalent()
    for mutant in mutants:
        if number <= 0:
            return
        result = known.get(mutant.id)
        if mutant.id in judged:
            told = mutant._asdict()
            del told["text"]
            result = {**told, "outcome": "survived", "by": "judged", "seconds": 0.0}
        if result is None:
            result = bench.attempt(mutant) or {"id": mutant.id, "outcome": "no mutant"}
            with results.open("a") as file:
                file.write(json.dumps(result) + "\n")
        if result["outcome"] != "no mutant":
            number -= 1
            yield result


def summary(language: str, results: list[Result]) -> str:
    """The score.

    >>> summary("c", [{"id": "1", "outcome": "found", "seconds": 60}, {"id": "2", "outcome": "by timeout"}])
    'c: 2 of 2 found (100 %), 1 of them by timeout, 0 after more than a minute; 0 of 0 survivors are equivalent'
    """
    survived = [result for result in results if result["outcome"] == "survived"]
    same = [result for result in survived if result["id"] in equivalent()]
    found, late = len(results) - len(survived), sum(result["outcome"] == "by timeout" for result in results)
    slow = sum(result["outcome"] == "found" and result["seconds"] > 60 for result in results)
    of = len(results) - len(same)
    share = f"{100 * found / of:.0f} %" if of else "nothing to find"
    return (
        f"{language}: {found} of {of} found ({share}), {late} of them by timeout, {slow} after more than a minute; "
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
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it; tests send it
    given.results.parent.mkdir(parents=True, exist_ok=True)
    lines = given.results.read_text().splitlines() if given.results.exists() else []
    known = {result["id"]: result for result in map(json.loads, lines)}
    with tempfile.TemporaryDirectory(prefix="hora-mutants-") as folder:
        tree = Tree(ROOT, Path(folder))
        wanted = {"c": given.c, "python": given.python}
        bench = None if given.list else Bench(tree, given.bound_s, given.stages, given.results.with_suffix(".calls"))
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
