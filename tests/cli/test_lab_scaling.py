"""`hora lab scaling`: what it refuses. What it measures and says is in tests/lab/scaling."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from hora.cli.lab import lab
from hora.errors import UsageError


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mnist", "--strong", "--workers", "1,3", "--batch", "64"], "Give --batch 63 or 66"),
        (["mnist", "--both", "--workers", "1,7"], "100 cannot be divided among 7 workers"),
        (["mnist", "--strategies", "hora,horovod"], "there is no 'horovod'"),
        (["mnist", "--strategies", "ddp", "--set", "framework=keras"], "--strategy ddp with --framework keras"),
        (["nist"], "there is no workload 'nist'"),
        (["mnist", "--workers", "0"], "'0' is not a number above 0"),
        (["mnist", "--out", "a", "--resume", "b"], "two folders"),
    ],
)
def test_wrong_values_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(lab, ["scaling", *arguments])
    assert isinstance(done.exception, UsageError) and said in str(done.exception)
    assert not list(tmp_path.iterdir())
