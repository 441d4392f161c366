"""The published tables: whole, shipped, and read as they stand."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path

import pytest

from hora.errors import UsageError
from hora.predict import published

ROOT = Path(__file__).resolve().parents[3]


def test_every_throughput_of_the_study_is_there_once() -> None:
    rows = published.throughput()
    counts = (1, 2, 4, 8, 16, 24, 32)
    series = {(row.framework, row.batch) for row in rows}
    assert len(rows) == len(series) * len(counts) == 35
    for framework, batch in series:
        found = [row.workers for row in rows if (row.framework, row.batch) == (framework, batch)]
        assert tuple(found) == counts


def test_rows_agree_with_what_was_derived_from_them() -> None:
    """``derived`` was computed by others, from the same tables."""
    derived = {
        (row["framework"], row["batch_per_gpu"], row["gpus"]): row["step_time_s"]
        for row in published.tables()["derived"]["throughput_scaling"]
    }
    for row in published.throughput():
        step = row.batch * row.workers / row.images_per_s
        assert step == pytest.approx(derived[row.framework, row.batch, row.workers], abs=6e-5)


def test_times_of_whole_runs() -> None:
    rows = published.training_times()
    assert len(rows) == 20
    assert max(row.minutes for row in rows if row.minutes) == (6 * 24 + 4) * 60 + 16  # 6 d 4 h 16 min on one GPU


def test_first_batches_and_the_log_of_one_worker() -> None:
    assert sorted(published.first_batch("pytorch")) == sorted(published.first_batch("horovod+pytorch")) == [2, 32]
    assert [line.batch for line in published.one_worker_log()] == [197, 198, 199, 200, 201]


def test_an_unknown_framework_is_refused() -> None:
    with pytest.raises(UsageError, match=r"caffe.*horovod\+tensorflow"):
        published.throughput("caffe")


def test_the_tables_are_shipped() -> None:
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["hora"]
    assert any(fnmatch("lab/published/tables.json", pattern) for pattern in shipped)
    assert files(published).joinpath("tables.json").is_file()
