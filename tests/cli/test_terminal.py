"""Every command on a terminal as a person sees it: 80 and 200 columns, without colour, one that cannot draw; and piped.

Bars are in tests/workloads/test_progress.py and tests/cli/test_train.py; recordings are in docs/terminal.md.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests.lab.report import samples
from tests.launch.jobs import on_terminal, run_hora
from tests.screen import screen
from tests.timeline import traces
from tests.workloads.conftest import write_digits

from hora.data.make.textures import make_textures

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
    "convert": (["data", "convert", "pictures", "--to", "made", "--format", "tar"], 0, "as tar;"),
    "stats": (["data", "stats", "pictures"], 0, "val: 4 images of 2 classes, 2 of each"),
    "plan": (["plan", "--workers", "8", "--batch", "32"], 0, "epoch"),
    "doctor": (["doctor", "--only", "cores,threads,topology"], 0, "topology"),
    "env": (["env"], 0, "python"),
    "list": (["lab", "list"], 0, "mnist"),
    "show": (["lab", "show", "runs/a"], 0, "mnist"),
    "compare": (["lab", "compare", "runs/a", "runs/b"], 0, "validation accuracy"),
    "report": (["lab", "report"], 0, "Wrote report.html"),
    "timeline": (["timeline", "t.json", "t.rank1.json"], 0, "Bottleneck: rank 1 is late."),
    "no timeline": (["timeline", "nothing.json"], 2, "nothing.json"),
    "get": (["data", "get", "mnist"], 3, "hora data make digits"),
    "stage": (["data", "stage", "runs", "--to", "staged"], 0, "staged/runs"),
    "submit": (["submit", "--scheduler", "slurm", "--dry-run", "hora", "train", "mnist"], 0, "#SBATCH"),
    "completion": (["completion", "bash"], 0, "_hora_completion"),
    "allreduce": (
        ["bench", "allreduce", "--sizes", "4K", "--rounds", "1", "--against", "none"],
        0,
        "Median of 1 round",
    ),
}
_LAB = ["synthetic", "--set", "model=mnist_horovod", "--workers", "1,2", "--batch", "4", "--repeats", "1"]
LONG = {
    "gradients": (["bench", "gradients", "--rounds", "1", "--against", "none"], 0, "161 gradients"),
    "launch": (["bench", "launch", "--rounds", "1"], 0, "import torch"),
    "bench train": (["bench", "train", "--models", "mnist", "--rounds", "1", "--against", "none"], 0, "MNIST CNN"),
    "scaling": (["lab", "scaling", *_LAB, "--steps", "10"], 0, "Bottleneck:"),
    "throughput": (["lab", "throughput", *_LAB, "--steps", "10"], 0, "images/s"),
    "train": (["train", "synthetic", "--model", "mnist_horovod", "--batch", "4", "--max-steps", "8", "--overwrite"], 0,
              "Total img/sec"),
    "train on two": (["train", "synthetic", "-np", "2", "--model", "mnist_horovod", "--batch", "4", "--max-steps", "8",
                      "--overwrite"], 0, "Total img/sec"),
}  # fmt: skip
_SMALL = ["mnist", "--set", "network=horovod", "--set", "data=digits", "--set", "batch=8"]
TRAINING = {  # one time each, as they train several times
    "quality": (["lab", "quality", *_SMALL, "--workers", "2", "--factors", "linear", "--seeds", "1", "--epochs", ".5"],
                0, "for 2 steps"),
    "sweep": (["lab", "sweep", *_SMALL, "--grid", "lr=0.01,0.1", "--epochs", "1"], 0, "accuracy"),
    "elastic": (["lab", "elastic", *_SMALL, "--kills", "1", "--every", "1s", "--steps", "40"], 0, "goodput"),
}  # fmt: skip
SIGNS = re.compile(r"\x1b\[[\d;]*m")
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-79]|4[0-79]|9\d|38;[\d;]*|48;[\d;]*)m")
OFFLINE = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": ""}  # nobody is there
WAYS: list[tuple[int, dict[str, str]]] = [(80, {}), (200, {"NO_COLOR": "1"}), (80, {"TERM": "dumb"})]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        samples.run(tmp_path / "runs" / name)
    late = [traces.op("g", [1000 * step, 1000 * step + 600], 1000 * step + 600, 1000 * step + 700) for step in range(9)]
    traces.hora(tmp_path / "t.json", late, 0)
    traces.hora(tmp_path / "t.rank1.json", late, 1)
    write_digits(tmp_path / "digits", train=32, test=20)
    make_textures(tmp_path / "pictures", samples=8, val=4, classes=2, size=16)
    (tmp_path / "bin").mkdir()
    for client in ("npm", "apt-get"):  # the real ones decide themselves how long to try a network that is not there
        (tmp_path / "bin" / client).write_text("#!/bin/sh\necho 'npm error code ENOTFOUND'; exit 1\n")
        (tmp_path / "bin" / client).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("name", [*COMMANDS, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)])
@pytest.mark.timeout(400)
def test_on_a_terminal_and_piped(name: str, place: Path) -> None:
    arguments, code, said = {**COMMANDS, **LONG}[name]
    offline = {**OFFLINE, "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    for columns, variables in WAYS:
        shown = on_terminal(*arguments, columns=columns, cwd=place, timeout_s=90, **{**offline, **variables})
        assert shown.exit_code == code, shown.text
        text = screen(shown.text, columns=10_000)
        assert said in " ".join(re.sub("[│|]", " ", text).split()), text
        assert "Traceback" not in text
        if columns == 80 and name not in ("dry run", "env", "submit", "completion"):  # which have lines to be copied
            wide = [line for line in text.splitlines() if len(line) > columns]
            assert not [line for line in wide if " " in line.strip()], text  # a path cannot be broken
        if "NO_COLOR" in variables:
            assert not COLOUR.search(shown.text), shown.text
        if "TERM" in variables:
            assert not SIGNS.search(shown.text), shown.text
    done = run_hora(*arguments, cwd=place, **offline)
    assert done.returncode == code
    assert "\x1b" not in done.stdout + done.stderr and said in " ".join((done.stdout + done.stderr).split())


@pytest.mark.long
@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.timeout(400)
def test_experiments_that_train_on_a_terminal(name: str, place: Path) -> None:
    arguments, code, said = TRAINING[name]
    shown = on_terminal(*arguments, cwd=place, timeout_s=350, **OFFLINE)
    assert shown.exit_code == code, shown.text
    text = screen(shown.text, columns=10_000)
    assert said in " ".join(text.split()) and "Traceback" not in text, text
    assert not [line for line in text.splitlines() if len(line) > 80 and " " in line.strip()], text
