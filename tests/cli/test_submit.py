"""``hora submit`` as a user meets it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from tests.launch.jobs import clean_environment, hora, run_hora
from tests.launch.submit.stubs import Stubs


@pytest.fixture
def cluster(tmp_path: Path) -> Stubs:
    stubs = Stubs(tmp_path / "stubs")
    stubs.add("sbatch", 'echo $((40 + $(wc -l <"$RECORDS/sbatch")))\n')
    return stubs


def submit(cluster: Stubs, *arguments: str) -> subprocess.CompletedProcess[str]:
    place = {"PATH": f"{cluster.programs}:/usr/bin:/bin", "RECORDS": str(cluster.records)}
    return subprocess.run(
        hora("submit", *arguments), env=clean_environment(**place), cwd=cluster.programs.parents[1],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip


def test_a_job(cluster: Stubs, tmp_path: Path) -> None:
    done = submit(
        cluster, "--scheduler", "slurm", "--nodes", "2", "--tasks-per-node=4", "--venv", "none",
        "--json", "out/job.json", "--", "python", "train.py", "--lr", "0.1", "--help",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "41\n"), done.stderr
    assert "2 x 4 workers; output in logs/train-2x4-41.log" in done.stderr
    script = (tmp_path / "train.sbatch").read_text()
    assert "hora run -np 8 --" in script and "command=(python train.py --lr 0.1 --help)" in script
    assert "# Written by: hora submit --scheduler slurm --nodes 2" in script
    assert json.loads((tmp_path / "out" / "job.json").read_text()) == {
        "scheduler": "slurm",
        "script": "train.sbatch",
        "jobs": [
            {
                "id": "41",
                "command": ["sbatch", "--parsable", "train.sbatch"],
                "after": None,
                "output": "logs/train-2x4-41.log",
            }
        ],
    }


@pytest.mark.parametrize(
    ("command", "name", "runs"),
    [
        ("hora train mnist --epochs 2", "train-mnist", "(hora train mnist -np 8 --epochs 2)"),
        ("hora train mnist -np 4", "train-mnist", "(hora train mnist -np 4)"),
        ("python -m hora train mnist", "train-mnist", "(python -m hora train mnist -np 8)"),
        ("hora lab scaling mnist --workers 1,8", "scaling-mnist", "(hora lab scaling mnist --workers 1,8)"),
        ("hora lab quality mnist --workers 1,32", "quality-mnist", "(hora lab quality mnist --workers 1,32)"),
        ("hora run -np 2 python my.py", "my", "(hora run -np 2 python my.py)"),
    ],
)
def test_commands_of_hora_run_once_under_their_own_name(cluster: Stubs, command: str, name: str, runs: str) -> None:
    done = submit(
        cluster, "--scheduler", "slurm", "--nodes", "2", "--tasks-per-node=4", "--dry-run", *command.split()
    )  # fmt: skip
    assert f"#SBATCH --job-name={name}\n" in done.stdout, done.stderr
    assert f'command={runs}\nsay "${{command[*]}}"\n"${{command[@]}}"\n' in done.stdout


SWEEP = "hora lab sweep mnist --task {task} --grid batch=32,64"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("hora train mnist", "all would write to the same folder. Write {task} where the number goes"),
        ("hora lab sweep mnist --grid batch=1,2,3 --out out --task 1", "all would write to the same folder"),
        (SWEEP, "Give --grid and --out DIR as well"),
        (
            f"{SWEEP} --out out",
            "--array 0-2 has a task 2, and the grid has 2 points, counted from 0. Give --array 0-1.",
        ),
        ("hora train mnist --out {task}", ""),
        (f"{SWEEP},128 --out out", ""),
        ("python train.py", ""),  # which may ask for the number itself
        ("hora run -np 2 python train.py", ""),
    ],
)
def test_the_tasks_of_an_array_differ(cluster: Stubs, command: str, said: str) -> None:
    done = submit(cluster, "--scheduler", "slurm", "--dry-run", "--array", "0-2", *command.split())
    assert (done.returncode == 2 and said in done.stderr) if said else done.returncode == 0, done.stderr


def test_placeholders_are_read_as_what_they_will_be(cluster: Stubs) -> None:
    done = submit(
        cluster, "--scheduler", "slurm", "--dry-run", "--stage", "m.tar", "--chain", "2", "--epochs-per-job", "3",
        "--checkpoint-arg", "--resume auto", "hora", "train", "mnist", "--data", "{stage}/m", "--epochs", "{epochs}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (
        'command=(hora train mnist -np 1 --data "$stage"/m --epochs "$((job * 3))" --schedule-epochs 6)' in done.stdout
    )


def test_a_dry_run_leaves_no_trace(cluster: Stubs, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    done = submit(cluster, "--scheduler", "slurm", "--chain", "2", "--dry-run", "python", "train.py", "--dry-run")
    assert done.returncode == 0 and done.stdout.startswith("#!/bin/bash\n#SBATCH ")
    assert "hora submit --scheduler slurm --chain 2 python train.py --dry-run\n" in done.stdout
    assert "'--dependency=afterok:<job 1>'" in done.stderr
    assert cluster.calls("sbatch") == [] and sorted(tmp_path.iterdir()) == before


def test_the_environment_hora_runs_in_is_the_jobs(cluster: Stubs) -> None:
    import sys

    done = submit(cluster, "--scheduler", "pbs", "--dry-run", "x")
    here = Path(sys.prefix)
    assert (f"source {here}/bin/activate" in done.stdout) == (here / "bin" / "activate").is_file()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--scheduler lsf x", "lsf"),
        ("--scheduler slurm", "no command"),
        ("--scheduler slurm --nodes 0 x", "--nodes"),
        ("--scheduler slurm --time soon x", "soon"),
        ("--scheduler slurm --mem much x", "much"),
        ("--scheduler slurm --requeue --signal KILL@3 x", "KILL@3"),
        ("--scheduler slurm --stage set.tar x", "{stage}"),
        ("--scheduler pbs --qos high x", "--qos"),
        ("--scheduler slurm --dance x", "--dance"),
        ("--scheduler slurm hora train mnist --epochss 2", "--epochss"),
        ("--scheduler slurm hora train mnist --batch 0", "--batch 0"),
        ("--scheduler slurm hora train", "hora train"),
        ("--scheduler slurm hora train mnst", "mnst"),
        ("--scheduler slurm --nodes 2 hora train mnist -np 3", "2 x 1 tasks"),
        ("--scheduler slurm hora lab scaling mnist --set lrr=1 --workers 1", "lrr"),
        ("--scheduler slurm hora lab scaling mnist --workers 1,2", "2 workers"),
        ("--scheduler slurm --launcher srun hora lab scaling mnist", "--launcher srun"),
        ("--scheduler slurm --requeue --checkpoint-arg '--resum auto' hora train mnist", "--resum"),
    ],
)
def test_wrong_usage(cluster: Stubs, arguments: str, named: str) -> None:
    done = submit(cluster, *shlex.split(arguments))
    assert done.returncode == 2 and named in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 3 and not done.stdout


def test_the_scheduler_is_the_one_that_is_here(cluster: Stubs) -> None:
    done = submit(cluster, "--dry-run", "x")
    assert done.stdout.startswith("#!/bin/bash\n#SBATCH")
    (cluster.programs / "sbatch").rename(cluster.programs / "gone")
    (cluster.programs / "qsub").rename(cluster.programs / "gone too")
    done = subprocess.run(
        hora("submit", "--dry-run", "x"), env=clean_environment(PATH="/nonexistent"), capture_output=True, text=True,
        timeout=30,
    )  # fmt: skip
    assert done.returncode == 2 and "neither sbatch nor qsub" in done.stderr


@pytest.mark.parametrize("trouble", ["missing", "refusing"])
def test_no_scheduler_and_a_script_that_is_kept(cluster: Stubs, tmp_path: Path, trouble: str) -> None:
    if trouble == "refusing":
        cluster.add("qsub", "echo 'qsub: Unknown queue' >&2; exit 170\n")
    else:
        (cluster.programs / "qsub").unlink()
    done = submit(cluster, "--scheduler", "pbs", "-q", "x", "python", "train.py")
    assert done.returncode == 3 and "train.pbs" in done.stderr and "Traceback" not in done.stderr
    assert ("Unknown queue" if trouble == "refusing" else "not found") in done.stderr
    assert (tmp_path / "train.pbs").read_text().startswith("#!/bin/bash")


def test_a_script_of_the_users_is_left_alone(cluster: Stubs, tmp_path: Path) -> None:
    (tmp_path / "mine.sh").write_text("mine")
    done = submit(cluster, "--scheduler", "slurm", "--script", "mine.sh", "x")
    assert done.returncode == 2 and (tmp_path / "mine.sh").read_text() == "mine"


def test_the_scripts_on_the_page_are_what_the_commands_print(cluster: Stubs) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "slurm.md").read_text()
    shown = re.findall(r"^```console\n\$ hora submit ([^`]*)^```\n+```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(shown) >= 2
    for command, script in shown:
        done = submit(cluster, *shlex.split(command.replace("\\\n", " ")))
        assert done.returncode == 0 and done.stdout == script, command


def test_a_chain_of_trainings_knows_how_long_all_of_it_is() -> None:
    chain = ("--scheduler", "slurm", "--chain", "9", "--epochs-per-job", "10", "--checkpoint-arg", "--resume auto")
    train = ("hora", "train", "imagenet", "--decay", "cosine", "--epochs", "{epochs}")
    done = run_hora("submit", "--dry-run", *chain, *train)
    assert done.returncode == 0, done.stderr
    assert "--epochs $((job * 10)) --schedule-epochs 90)" in done.stdout.replace('"', "")
    own = run_hora("submit", "--dry-run", *chain, *train, "--schedule-epochs", "120")
    assert own.returncode == 0 and "--schedule-epochs 120" in own.stdout and "--schedule-epochs 90" not in own.stdout
