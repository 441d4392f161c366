"""``hora submit`` with a real Slurm: jobs run, follow one another, and go on where they were interrupted."""

from __future__ import annotations

import json
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.hosts import ROOT, Cluster
from tests.cluster.slurm import Job, Slurm
from tests.cluster.watch import WORKER, assert_right
from tests.launch.jobs import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(360)]

JOB_S = 100.0
EXAMPLE = ROOT / "examples" / "preemptible.py"


@pytest.fixture(autouse=True)
def nothing_left(two_hosts: Cluster) -> Iterator[None]:
    yield
    two_hosts.wait_until_gone(str(WORKER))
    two_hosts.wait_until_gone(str(EXAMPLE))


def submit(slurm: Slurm, place: Path, *arguments: str | Path) -> list[Job]:
    """Jobs as their numbers are printed, one a line; their output goes to files in ``place``."""
    command = [sys.executable, "-m", "hora", "submit", "--scheduler", "slurm", "-o", f"{place}/%j.log"]
    done = slurm.cluster.login.run([*command, *map(str, arguments)], 30, cwd=place)
    assert done.returncode == 0, done.stdout
    numbers = [int(number) for number in re.findall(r"^(\d+)$", done.stdout, re.MULTILINE)]
    return [Job(slurm, number, place / f"{number}.log") for number in numbers]


def test_a_job_on_two_nodes(slurm: Slurm, tmp_path: Path) -> None:
    [job] = submit(slurm, tmp_path, "--nodes", "2", "--tasks-per-node", "2", "--time", "5m", "python", WORKER, "right")
    output = job.wait(JOB_S)
    assert_right(output)
    assert job.exit_code == 0, output


def test_an_experiment_runs_once_and_starts_its_own_workers(slurm: Slurm, tmp_path: Path) -> None:
    hora = [sys.executable, "-m", "hora"]
    what = ["lab", "throughput", "synthetic", "--workers", "2", "--steps", "10", "--repeats", "1", "--out", "made"]
    small = ["--batch", "2", "--set", "model=mnist"]
    [job] = submit(slurm, tmp_path, "--nodes", "2", "--time", "5m", *hora, *what, *small)
    output = job.wait(JOB_S)
    assert job.exit_code == 0 and output.lower().count("kept in made") == 1, output
    [run] = (tmp_path / "made" / "trials").glob("2w-*-auto-1")
    assert json.loads((run / "run.json").read_text())["workers"] == 2
    assert json.loads((run / "outcome.json").read_text())["trial"]["hosts"] == "h1:1,h2:1"  # the allocation's


SWEEP = ["lab", "sweep", "synthetic", "--grid", "batch=1,2,3,4", "--set", "model=mnist_horovod",
         "--set", "num_batches=10", "--set", "form=tf"]  # fmt: skip


def test_a_sweep_runs_side_by_side_on_the_nodes(slurm: Slurm, tmp_path: Path) -> None:
    hora = [sys.executable, "-m", "hora", *SWEEP, "--out", "side"]
    [job] = submit(slurm, tmp_path, "--nodes", "2", "--time", "5m", *hora)
    output = job.wait(JOB_S)
    assert job.exit_code == 0, output
    assert "4 trials, 2 at a time: on h1:1; h2:1" in output and output.count(" on h2:1: ") >= 1, output
    rows = json.loads((tmp_path / "side" / "experiment.json").read_text())["rows"]
    assert [(row["batch"], row["state"]) for row in rows] == [(batch, "done") for batch in (1, 2, 3, 4)]
    hosts = {json.loads(path.read_text())["host"]["hostname"] for path in (tmp_path / "side/trials").glob("*/run.json")}
    assert hosts == {"h1", "h2"}


def test_a_sweep_as_a_job_array_has_the_same_records(slurm: Slurm, tmp_path: Path) -> None:
    hora = [sys.executable, "-m", "hora", *SWEEP]
    [job] = submit(slurm, tmp_path, "--array", "0-3", "--time", "5m", *hora, "--out", "array", "--task", "{task}")
    job.wait(JOB_S)

    def all_done() -> bool:
        return len(list((tmp_path / "array/trials").glob("*/outcome.json"))) == 4

    wait_until(all_done, JOB_S, "four tasks to leave their outcomes", every_s=0.2)
    done = slurm.cluster.login.run([*hora, "--out", "array"], 60, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.count("(from before)") == 4, done.stdout
    rows = json.loads((tmp_path / "array" / "experiment.json").read_text())["rows"]
    assert [(row["batch"], row["state"]) for row in rows] == [(batch, "done") for batch in (1, 2, 3, 4)]


def test_who_starts_the_workers_can_be_said(slurm: Slurm, tmp_path: Path) -> None:
    own = [sys.executable, "-m", "hora", "run", "-np", "2", "-ppn", "1", "hostname"]
    [job] = submit(slurm, tmp_path, "--nodes", "2", "--time", "5m", "--launcher", "none", *own)
    output = job.wait(JOB_S)
    assert job.exit_code == 0 and sorted(re.findall(r"<stdout>:(h\d)$", output, re.MULTILINE)) == ["h1", "h2"], output


def test_ddp_on_two_nodes(slurm: Slurm, tmp_path: Path) -> None:
    hora = [sys.executable, "-m", "hora", "train", "synthetic", "--model", "mnist_horovod", "--batch", "2"]
    [job] = submit(slurm, tmp_path, "--nodes", "2", "--time", "5m", *hora, "--strategy", "ddp", "--json", "made.json")
    output = job.wait(JOB_S)
    assert job.exit_code == 0, output
    made = json.loads((tmp_path / "made.json").read_text())
    assert (made["workers"], made["strategy"]) == (2, "ddp")


def test_a_workload_runs_on_all_that_was_asked_for(slurm: Slurm, tmp_path: Path) -> None:
    hora = [sys.executable, "-m", "hora", "train", "synthetic", "--model", "mnist", "--batch", "2"]
    few = ["--max-steps", "3", "--out", "made"]
    [job] = submit(slurm, tmp_path, "--nodes", "2", *hora, *few)
    output = job.wait(JOB_S)
    assert job.exit_code == 0, output
    assert json.loads((tmp_path / "made" / "run.json").read_text())["workers"] == 2
    assert "2 workers on h1:1,h2:1, started by srun" in output


def test_staged_data_is_on_every_node(two_hosts: Cluster, slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("forty-two")
    data = tmp_path / "set.tar"
    with tarfile.open(data, "w") as archive:
        archive.add(tmp_path / "data.txt", "set/data.txt")
    script = tmp_path / "read.py"
    script.write_text(
        "import sys, socket; print(socket.gethostname(), open(sys.argv[1]).read(), sys.argv[1], flush=True)"
    )
    what = ["--nodes", "2", "--tasks-per-node", "2", "--stage", data, "python", script, "{stage}/set/data.txt"]
    [job] = submit(slurm, tmp_path, "--env", "HOSTNAME=login", *what)
    output = job.wait(JOB_S)
    assert all(f"{host.name}: {data} is now in" in output for host in two_hosts.hosts), output
    read = re.findall(r"(h\d) forty-two (\S+)", output)
    assert sorted(host for host, _ in read) == ["h1", "h1", "h2", "h2"], output
    assert all(path != str(data) for _, path in read), output
    for host in two_hosts.hosts:
        assert not (host.root / read[0][1].lstrip("/")).exists(), "the staged data was not removed"


def test_a_chain_runs_one_after_the_other(slurm: Slurm, tmp_path: Path) -> None:
    script = tmp_path / "link.py"
    script.write_text(
        "import pathlib, sys\n"
        "log = pathlib.Path(sys.argv[1])\n"
        "with log.open('a') as file: print(*sys.argv[2:], file=file)\n"
    )
    log = tmp_path / "log"
    what = ["--chain", "3", "--epochs-per-job", "2", "--checkpoint-arg", "--resume last", "python", script, log]
    jobs = submit(slurm, tmp_path, *what, "{job}", "{epochs}")
    assert len(jobs) == 3
    for job in jobs:
        output = job.wait(2 * JOB_S)
        assert job.exit_code == 0, output
    assert log.read_text().splitlines() == ["1 2", "2 4 --resume last", "3 6 --resume last"]


def test_a_failed_job_ends_its_chain(slurm: Slurm, tmp_path: Path) -> None:
    first, second = submit(slurm, tmp_path, "--chain", "2", "python", "-c", "import sys; sys.exit(5)")
    first.wait(JOB_S)
    assert first.exit_code == 5
    assert second.wait(JOB_S) == "" and second.state in ("CANCELLED", "GONE")


@pytest.mark.parametrize(
    ("to", "each"), [pytest.param(["--batch"], 2, id="script"), pytest.param([], 1, id="steps", marks=pytest.mark.long)]
)
def test_an_interrupted_job_is_requeued_and_goes_on(slurm: Slurm, tmp_path: Path, to: list[str], each: int) -> None:
    """Warned as sbatch's --signal=B:USR1 does it, which is what the script asks for, and as --signal=USR1 does."""
    steps = 300
    saved = tmp_path / "saved.pt"
    command = ["python", EXAMPLE, "--steps", str(steps), "--every", "20", "--checkpoint", saved]
    what = ["--nodes", "2", "--tasks-per-node", str(each), "--time", "30m", "--requeue", *command]
    [job] = submit(slurm, tmp_path, *what)
    try:
        wait_until(lambda: saved.exists() or job.state not in ("PENDING", "RUNNING"), JOB_S, "the first checkpoint")
        job.signal("USR1", *to)
        job.wait_for("requeued 1 of at most", JOB_S)
        output = job.wait(2 * JOB_S)
    finally:
        job.cancel()
    left = re.findall(r"<stdout>:rank \d leaves after step (\d+)", output)
    assert len(left) == 2 * each and len(set(left)) == 1, output  # all ranks at the same step
    assert f"starting at step {left[0]}" in output, output
    assert f"finished {steps} steps" in output and job.exit_code == 0, output
