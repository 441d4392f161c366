"""Submitting, to stand-ins for sbatch and qsub: chains, refusals, and what is left when one fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.launch.submit.stubs import Stubs

from hora.errors import EnvironmentUnfit, UsageError
from hora.launch.submit import SCHEDULERS, BatchJob, send, write

COUNTS = 'echo "note: hello"; echo $((100 + $(wc -l <"$RECORDS/{name}"))){ending}\n'
CHAIN = BatchJob(command=("x",), name="x", chain=3)


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stubs:
    stubs = Stubs(tmp_path / "stubs")
    monkeypatch.setenv("PATH", f"{stubs.programs}:/usr/bin:/bin")
    monkeypatch.setenv("RECORDS", str(stubs.records))
    monkeypatch.chdir(tmp_path)
    return stubs


def test_a_chain_under_slurm(stubs: Stubs, tmp_path: Path) -> None:
    stubs.add("sbatch", COUNTS.format(name="sbatch", ending="\\;cluster"))
    sent = send(CHAIN, SCHEDULERS["slurm"], Path("x.sbatch"))
    assert [(job.id, job.after) for job in sent] == [("101", None), ("102", "101"), ("103", "102")]
    assert sent[2].output == "logs/x-1x1-103.log" and (tmp_path / "logs").is_dir()
    assert stubs.calls("sbatch") == [
        ["--parsable", "--export=ALL,CHAIN_JOB=1", "x.sbatch"],
        ["--parsable", "--export=ALL,CHAIN_JOB=2", "--dependency=afterok:101", "--kill-on-invalid-dep=yes", "x.sbatch"],
        ["--parsable", "--export=ALL,CHAIN_JOB=3", "--dependency=afterok:102", "--kill-on-invalid-dep=yes", "x.sbatch"],
    ]


def test_a_chain_under_pbs(stubs: Stubs) -> None:
    stubs.add("qsub", COUNTS.format(name="qsub", ending=".server"))
    order = BatchJob(command=("x",), name="x", chain=2, chain_after="any")
    assert [job.id for job in send(order, SCHEDULERS["pbs"], Path("x.pbs"))] == ["101.server", "102.server"]
    assert stubs.calls("qsub") == [
        ["-v", "CHAIN_JOB=1", "x.pbs"],
        ["-v", "CHAIN_JOB=2", "-W", "depend=afterany:101.server", "x.pbs"],
    ]


def test_a_refusal_is_passed_on_with_what_was_submitted_before(stubs: Stubs) -> None:
    refuse = 'if [[ $* == *CHAIN_JOB=3* ]]; then echo "sbatch: error: QOSMaxSubmitJobLimit" >&2; exit 1; fi\n'
    stubs.add("sbatch", refuse + COUNTS.format(name="sbatch", ending=""))
    with pytest.raises(EnvironmentUnfit) as caught:
        send(CHAIN, SCHEDULERS["slurm"], Path("x.sbatch"))
    assert "QOSMaxSubmitJobLimit" in str(caught.value) and "scancel 101 102" in str(caught.value)
    assert "x.sbatch" in str(caught.value)


def test_no_id_is_no_success(stubs: Stubs) -> None:
    stubs.add("sbatch", "echo fine\n")
    with pytest.raises(EnvironmentUnfit, match="no job id: fine"):
        send(CHAIN, SCHEDULERS["slurm"], Path("x.sbatch"))


def test_no_scheduler(stubs: Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(EnvironmentUnfit, match="sbatch was not found"):
        send(CHAIN, SCHEDULERS["slurm"], Path("x.sbatch"))


def test_no_folder_for_the_output(stubs: Stubs, tmp_path: Path) -> None:
    stubs.add("sbatch", "echo 1\n")
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(EnvironmentUnfit, match="'logs'"):
        send(CHAIN, SCHEDULERS["slurm"], Path("x.sbatch"))
    assert stubs.calls("sbatch") == []


def test_only_scripts_of_ours_are_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.sbatch"
    write(path, "#!/bin/bash\n# Written by: hora submit\n")
    write(path, "#!/bin/bash\n# Written by: hora submit\ntrue\n")
    assert path.stat().st_mode & 0o111 and path.read_text().endswith("true\n")
    path.write_text("precious")
    with pytest.raises(UsageError, match="left alone"):
        write(path, "other")
    assert path.read_text() == "precious"
    with pytest.raises(EnvironmentUnfit, match="cannot be written"):
        write(tmp_path, "x")
