"""The walk-throughs of the documentation: every command of a page is one that Hora takes, and at a small size they lead
from the first command to the figures that the page names."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.launch.jobs import run_hora

from hora.cli.main import parse
from hora.data.make.textures import make_textures

DOCS = Path(__file__).resolve().parents[2] / "docs"
# What stands in for a thing of a page at a small size, in order; every line is used, or the page has changed.
NET = "--set arch=resnet18 --set image_size=32 --set resize=36 --set loaders=0"
IMAGENET = ("--arch resnet18 --image-size 32 --resize 36 --loaders 0 --batch 4", NET)
SMALL: dict[str, list[tuple[str, str]]] = {
    "walk-course": [
        ("data get mnist", "data make digits --samples 256 --to data/mnist"),
        ("data get cifar10", "data make textures --format cifar --samples 64 --val 16 --to data/cifar10"),
        ("--workers 1,2,4,8,16 --threads 1,2,4,8 --inter 1,2",
         "--workers 1,2 --threads 1 --inter 1,2 --batch 8 --steps 10 --repeats 1"),
        ("node[1-8]:2 --workers 1,2,4,8,16", "localhost:2 --workers 1,2 --batch 8 --steps 10 --repeats 1"),
        ("--workers 1,2,8,16 --factors naive,linear,gradual5 --seeds 1,2,3",
         "--workers 1,2,4 --factors naive,linear --seeds 1 --epochs 2 --set network=horovod"),
        ("train mnist", "train mnist --network horovod --epochs 2"),
        ("--epochs 2 -np 2 --epochs 1", "--epochs 1 -np 2"),
        ("train cifar10 -np 2", "train cifar10 -np 2 --depth 11 --batch 16 --epochs 2"),
    ],
    "walk-competition": [
        ("-f hosts -np 16 -ppn 4", "-f hosts -np 2 -ppn 2"),
        ("--samples 200000", "--samples 20 --per-file 5"),
        ("--workers 16 --grid \"batch=64,128 lr=0.0005,0.001\" --epochs 2",
         "--workers 2 --grid \"lr=0.0005,0.001\" --epochs 0.1 --set batch=1 --set max_steps=1 --set test_events=2"),
        ("--batch 128 --epochs 30", "--batch 1 --epochs 2 --max-steps 14"),
        ("--epochs 10 --schedule-epochs 90", f"{IMAGENET[0]} --epochs 2 --schedule-epochs 3"),
        ("--epochs 90 --schedule-epochs 90", f"{IMAGENET[0]} --epochs 3 --schedule-epochs 3"),
        ("--workers 1,4,8,16 --steps 60", f"--workers 1,2 --steps 10 --repeats 1 --batch 4 {NET}"),
    ],
    "walk-table": [
        ("--workers 8 --grid \"batch=64,128,256 weight_decay=1e-3,1e-4 epochs=1,10 optimizer=sgd,rmsprop,adam\"",
         f"--workers 1 --grid \"batch=4,8 optimizer=sgd,adam\" --epochs 2 {NET}"),
        ("-np 8 --batch 128 --epochs 10", f"-np 2 {IMAGENET[0]} --epochs 2"),
    ],
    "walk-thesis": [
        ("lab study --quick", "lab study --help"),  # minutes; tests/lab/study has it
        ("lab compare runs/baseline runs/naive-32", "lab compare runs/baseline runs/naive-32"),
    ],
}  # fmt: skip
# What a queue would run: the thesis's jobs, which a test has no cluster for.
QUEUED = {
    "walk-thesis": [
        "hora lab throughput imagenet --workers 1,2 --batch 4 --threads 1 --strategies hora,ddp --steps 10 --repeats 1 "
        f"{NET} --out runs/lab/throughput",
        *(f"hora train imagenet -np {n} --schedule {schedule} {IMAGENET[0]} --epochs 3 --out runs/{name}"
          for name, n, schedule in (
              ("baseline", 1, "linear"), ("naive-32", 2, "naive"), ("gradual5-32", 2, "gradual:5")
          )),
    ],
}  # fmt: skip
TASKS = {"walk-table": 2}  # of a job array, of four: the table trains itself what is missing
LATER = {"gpu-over-time-1", "gan3d-energy-1"}  # which need a GPU, and more showers of some energies


def commands(page: str) -> Iterator[str]:
    for block in re.findall(r"^```console\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            if line.startswith("$ "):
                yield line[2:]


def figures(page: str) -> set[str]:
    """Those that the page's last table names."""
    table = (DOCS / f"{page}.md").read_text().rpartition("| --- |")[2]
    return set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+(?:-…)?|[a-z0-9]+-…)`", table))


@pytest.mark.parametrize("page", SMALL)
def test_every_command_is_one_that_hora_takes(page: str) -> None:
    """Its options are parsed as they stand; a job's command too."""
    found = [shlex.split(line) for line in commands(page) if line.startswith("hora ")]
    assert len(found) >= 5
    for words in found:
        parse(words[1:])
        if words[1] == "submit":
            inner = words[next(n for n in range(2, len(words)) if words[n] == "hora") + 1 :]
            parse([re.sub(r"\{(task|epochs|job)\}", "1", word) for word in inner])


@pytest.mark.long
@pytest.mark.timeout(580)
@pytest.mark.parametrize("page", SMALL)
def test_the_way_from_the_first_command_to_the_last_figure(page: str, tmp_path: Path) -> None:
    pytest.importorskip("altair")
    make_textures(tmp_path, samples=48, val=16, classes=6, size=40, format="tars")
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    unused = {pattern for pattern, _ in SMALL[page]}
    done: list[str] = []
    for line in commands(page):
        if line.startswith("docker"):
            continue
        if line.startswith("hora lab list"):
            done += [run(command, tmp_path) for command in QUEUED[page]]
        if line.startswith("hora submit"):
            done.append(run(line, tmp_path))
            job = "hora " + line.partition(" hora ")[2]
            lines = [job.replace("{task}", str(task)) for task in range(TASKS.get(page, 0))] if "{task}" in job else []
        else:
            lines = [line]
        for each in lines:
            for pattern, small in SMALL[page]:
                if pattern in each:
                    unused.discard(pattern)
                    each = each.replace(pattern, small)
            done.append(run(each, tmp_path))
    assert not unused, "the page has changed"
    made = {path.stem for path in (tmp_path / "figures").glob("*.pdf")}
    for name in figures(page) - LATER:
        start = name.removesuffix("…")
        alike = {each for each in made if f"{each}-".startswith(start)} if start != name else made & {name}
        assert alike, (name, sorted(made))
    assert all("Traceback" not in text for text in done)


def run(line: str, place: Path) -> str:
    words = shlex.split(line)
    if words[0] != "hora":
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=60)
    else:
        if words[1] == "submit":
            words[2:2] = ["--dry-run", "--venv", "none", *([] if "--scheduler" in words else ["--scheduler", "slurm"])]
        done = run_hora(*words[1:], cwd=place, timeout_s=400)
    assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    if words[:2] == ["hora", "submit"]:
        subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True, timeout=30)
    return done.stdout + done.stderr
