"""The record of a run: whole lines, and a disk that fills up; a checkpoint that Ctrl-C comes into."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from hora.errors import EnvironmentUnfit
from hora.workloads.run_checkpoints import RunCheckpoints
from hora.workloads.run_record import FILE, RunRecord


def test_a_full_disk_is_named_with_the_file_and_a_way_on(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    record.epoch({"step": 1, "epoch": 1})
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, record._fd)
    os.close(full)
    with pytest.raises(EnvironmentUnfit, match=rf"{tmp_path / FILE} cannot be written: No space left.*--resume auto"):
        record.epoch({"step": 2, "epoch": 2})
    record.close()  # once is enough
    assert (tmp_path / FILE).read_text() == '{"step":1,"epoch":1}\n'


def test_ctrl_c_in_a_checkpoint_is_not_taken_for_a_disk_that_fails(tmp_path: Path) -> None:
    """As torch.save has it: closing its archive fails, because what was interrupted is missing."""

    def write(file: BinaryIO) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("unexpected pos 13522240 vs 13522132")

    with pytest.raises(KeyboardInterrupt):
        RunCheckpoints(tmp_path).save("epoch-0001.pt", write, position=1, facts={})
    assert not list(tmp_path.iterdir())
