"""Every command on a terminal as a person sees it: 80 and 200 columns, without colour, one that cannot draw; and piped.

Bars are in tests/workloads/test_progress.py and tests/cli/test_train.py; recordings are in docs/terminal.md.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.lab.report import samples
from tests.launch.jobs import on_terminal, run_hora
from tests.screen import screen

FAILS = "import sys; sys.exit('hora: ' + 'some words ' * 20)"
# what is typed, the exit code, what must be there
COMMANDS = {
    "welcome": ([], 0, "hora train mnist -np 2"),
    "help": (["train", "mnist", "--help"], 0, "--epochs"),
    "refusal": (["train", "mnist", "--data", "nowhere"], 2, "and then this again; or give the folder with --data DIR"),
    "failure": (["run", "-np", "2", "python", "-c", FAILS], 1, "rank"),
    "summary": (["run", "-np", "1", "--summary", "true"], 0, "exit code 0"),
    "dry run": (["run", "-np", "2", "--dry-run", "true"], 0, "rank 1 on localhost"),
    "make": (["data", "make", "digits", "--samples", "20", "--jobs", "1"], 0, "generated from seed 42"),
    "plan": (["plan", "--workers", "8", "--batch", "32"], 0, "epoch"),
    "doctor": (["doctor", "--only", "cores,threads,topology"], 0, "topology"),
    "env": (["env"], 0, "python"),
    "list": (["lab", "list"], 0, "mnist"),
    "show": (["lab", "show", "runs/a"], 0, "mnist"),
    "compare": (["lab", "compare", "runs/a", "runs/b"], 0, "val accuracy"),
    "report": (["lab", "report"], 0, "Wrote report.html"),
}
SIGNS = re.compile(r"\x1b\[[\d;]*m")
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-79]|4[0-79]|9\d|38;[\d;]*|48;[\d;]*)m")
WAYS: list[tuple[int, dict[str, str]]] = [(80, {}), (200, {"NO_COLOR": "1"}), (80, {"TERM": "dumb"})]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        samples.run(tmp_path / "runs" / name)
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_on_a_terminal_and_piped(name: str, place: Path) -> None:
    arguments, code, said = COMMANDS[name]
    for columns, variables in WAYS:
        shown = on_terminal(*arguments, columns=columns, cwd=place, **variables)
        assert shown.exit_code == code, shown.text
        text = screen(shown.text, columns=10_000)
        assert said in " ".join(re.sub("[│|]", " ", text).split()), text
        assert "Traceback" not in text
        if columns == 80 and name not in ("dry run", "env"):  # those have long lines to be copied
            assert not [line for line in text.splitlines() if len(line) > columns], text
        if "NO_COLOR" in variables:
            assert not COLOUR.search(shown.text), shown.text
        if "TERM" in variables:
            assert not SIGNS.search(shown.text), shown.text
    done = run_hora(*arguments, cwd=place)
    assert done.returncode == code
    assert "\x1b" not in done.stdout + done.stderr and said in " ".join((done.stdout + done.stderr).split())
