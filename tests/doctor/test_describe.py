"""What a bug report gets, and what it must not get."""

from __future__ import annotations

import json

import pytest

from hora.config.env import environ
from hora.doctor import describe
from hora.doctor.machine import Machine


@pytest.mark.parametrize(
    "name", ["HORA_SECRET", "HOROVOD_SECRET_KEY", "SLURM_JWT", "NCCL_TOKEN", "OMPI_MCA_auth", "HORA_API_KEY"]
)
def test_secrets_are_masked(name: str) -> None:
    assert describe.variables({name: "s3cr3t"}) == {name: "(masked)"}


def test_what_is_no_secret_is_shown() -> None:
    given = {"SLURM_JOB_ID": "7", "OMP_NUM_THREADS": "2", "HORA_SECRET_FD": "9", "CUDA_VISIBLE_DEVICES": "0"}
    assert describe.variables({**given, "HOME": "/h", "AWS_SESSION_TOKEN": "t"}) == dict(sorted(given.items()))


def test_everything_is_there() -> None:
    facts = describe.describe(Machine(environ()))
    assert json.loads(json.dumps(facts)) == facts
    assert set(facts) == {
        "hora", "python", "packages", "platform", "cpu", "memory", "limits", "commands", "world", "environment",
    }  # fmt: skip
    assert facts["packages"]["msgspec"] and facts["cpu"]["cores"] >= 1
    assert facts["limits"]["open files"]


def test_a_world_that_makes_no_sense_is_told_and_not_raised() -> None:
    facts = describe.describe(Machine({"HORA_RANK": "5", "PATH": ""}))
    assert "HORA_SIZE" in facts["world"]["error"]
    facts = describe.describe(Machine({"HORA_RANK": "five", "PATH": ""}))
    assert "HORA_RANK" in facts["world"]["error"]
    facts = describe.describe(Machine({"HORA_TRANSPORT": "pigeon", "PATH": ""}))
    assert "pigeon" in facts["world"]["error"]
