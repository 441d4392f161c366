"""What is planted and where, and that it is found, survives or hangs in a tree of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.mutants import in_c, in_python, reach
from tests.mutants.__main__ import Bench, chosen, equivalent, run, summary
from tests.mutants.tree import Tree

ROOT = Path(__file__).resolve().parents[2]

C = """
#include <a.h>
#define LESS(a, b) ((a) < (b))
/* 1 < 2 */
struct s { int a; };
static const int table[] = {0, 1};
int f(struct s *s) {
    int n = table[0];          // 3 < 4
    char *text = "5 < 6";
    atomic_store(&s->a, n);
    for (;;) { if (n > 7) break; n++; }
    return -n;
}
"""


def test_c_is_changed_only_where_it_runs() -> None:
    found = in_c.mutants("f.c", C)
    assert {mutant.function for mutant in found} == {"f"}
    assert [mutant.what for mutant in found] == [
        "0 -> 1", "statement dropped", "if negated", "> -> >=", "> -> <", "7 -> 8", "statement dropped",
        "statement dropped", "++ -> --",
    ]  # fmt: skip
    dropped = [mutant.diff for mutant in found if mutant.what == "statement dropped"]
    assert "-    atomic_store(&s->a, n);\n+    ;" in dropped[0]


def test_every_number_is_of_one_mutant_and_stays_when_lines_move() -> None:
    names = ["native/table.c", "src/hora/engine/agree.py"]
    for name, make in zip(names, (in_c.mutants, in_python.mutants), strict=True):
        source = (ROOT / name).read_text()
        found = make(name, source)
        assert len({mutant.id for mutant in found}) == len(found) > 100
        head = source.index("\n#include" if name.endswith(".c") else "\nfrom ") + 1
        moved = make(name, source[:head] + "\n\n" + source[head:])
        assert [mutant.id for mutant in moved] == [mutant.id for mutant in found]


def test_every_python_mutant_of_a_file_compiles() -> None:
    source = (ROOT / "src/hora/engine/hub_connection.py").read_text()
    for mutant in in_python.mutants("hub_connection.py", source):
        compile(mutant.text, mutant.file, "exec")
    assert in_python.same_code("x = 1  # a\n", "\nx = (1)") and not in_python.same_code("x = 1", "x = 2")


def test_every_file_has_tests_that_reach_it() -> None:
    tree = Tree.__new__(Tree)
    tree.root = ROOT
    for language in ("c", "python"):
        files = reach.files(tree, language)
        assert files
        for file in files:
            for stage in reach.stages(tree, file):
                assert all((ROOT / word).exists() for word in stage if word.startswith(("tests/", "src/"))), (
                    file,
                    stage,
                )


def test_survivors_judged_equivalent_say_why() -> None:
    assert all(len(number) == 10 and why for number, why in equivalent().items())


SOURCE = """
def clip(value, low=0):
    while value < low:
        value += 1
    return value
"""
TEST = """
from clip import clip
def test_clip():
    assert clip(-3) == 0 and clip(2) == 2
"""


def test_bugs_are_found_survive_or_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout, results = tmp_path / "checkout", tmp_path / "results.jsonl"
    (checkout / "src").mkdir(parents=True)
    (checkout / "tests" / "mutants").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "mutants" / "calls.py", checkout / "tests" / "mutants")
    (checkout / "src" / "clip.py").write_text(SOURCE)
    (checkout / "tests" / "test_clip.py").write_text(TEST)
    (checkout / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['long']\npythonpath = ['src']\n")
    monkeypatch.setattr(reach, "files", lambda *_: ["src/clip.py"])
    monkeypatch.setattr(reach, "stages", lambda *_: [["tests"]])
    tree = Tree(checkout, tmp_path / "tree")
    mutants = chosen(tree, "python", 1, "")
    assert {mutant.what for mutant in mutants} == {
        "< -> <=",
        "if negated",
        "1 -> 0",
        "statement dropped",
        "returns None",
    }
    bench = Bench(tree, 3.0)
    told = list(run([m for m in mutants if m.what != "statement dropped"], 4, bench, results, {}))
    outcomes = {result["what"]: result["outcome"] for result in told}
    assert outcomes == {"< -> <=": "found", "if negated": "found", "1 -> 0": "by timeout", "returns None": "found"}
    assert (checkout / "src" / "clip.py").read_text() == SOURCE == (tree.root / "src" / "clip.py").read_text()

    bench = Bench(tree, 3.0)
    (tree.root / "tests" / "test_clip.py").write_text("from clip import clip\ndef test_nothing(): clip(0)\n")
    known = {result["id"]: result for result in told}
    assert list(run([m for m in mutants if m.id in known], 4, bench, results, known)) == told  # not run again
    (survivor,) = run([m for m in mutants if m.what == "statement dropped"], 1, bench, results, known)
    assert survivor["outcome"] == "survived" and "-        value += 1" in survivor["diff"]
    assert len(results.read_text().splitlines()) == 5
    assert summary("python", [*told, survivor]).startswith("python: 4 of 5 found (80 %), 1 of them by timeout")
