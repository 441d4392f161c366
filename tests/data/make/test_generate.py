"""What all generators share: whole or not there, told apart by their facts, parts over processes in order."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from hora.data.generated import is_generated
from hora.data.make.generate import Made, generate, over_processes, part_rng
from hora.data.once import StatusReporter
from hora.errors import EnvironmentUnfit, UsageError

FACTS = {"generator": "ones", "seed": 1, "samples": 3}


def ones(folder: Path, reporter: StatusReporter) -> None:
    (folder / "ones").write_bytes(b"111")


def made(folder: Path, facts: dict[str, object] = FACTS) -> Made:
    return generate(folder, ones, facts, nbytes=3)


def test_it_is_marked_and_made_once(tmp_path: Path) -> None:
    first = made(tmp_path / "set")
    assert not first.there and is_generated(tmp_path / "set")
    assert json.loads((tmp_path / "set" / "GENERATED.json").read_bytes()) == FACTS
    (tmp_path / "set" / "ones").write_bytes(b"222")  # would be seen if it were made again
    assert made(tmp_path / "set").there
    assert (tmp_path / "set" / "ones").read_bytes() == b"222"


def test_an_empty_folder_may_be_there(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    assert not made(tmp_path / "set").there
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_other_data_is_left_alone(tmp_path: Path) -> None:
    made(tmp_path / "set")
    with pytest.raises(UsageError, match=r"other generated data \(seed 1\)"):
        made(tmp_path / "set", {**FACTS, "seed": 2})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "photo").write_bytes(b"x")
    with pytest.raises(UsageError, match="is not generated data"):
        made(tmp_path / "mine")


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt()])
def test_what_fails_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def fill(folder: Path, reporter: StatusReporter) -> None:
        ones(folder, reporter)
        raise error

    with pytest.raises(type(error)):
        generate(tmp_path / "set", fill, FACTS, nbytes=3)
    assert list(tmp_path.iterdir()) == []


def test_no_room(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfit, match="Make fewer samples"):
        generate(tmp_path / "set", ones, FACTS, nbytes=shutil.disk_usage(tmp_path).total + 1)


def test_parts_come_in_order_from_several_processes() -> None:
    assert list(over_processes(abs, range(-20, 0), jobs=2)) == list(range(20, 0, -1))
    with pytest.raises(UsageError, match="jobs=0"):
        list(over_processes(abs, [1], jobs=0))


def test_a_part_that_fails_in_a_process_is_raised_here() -> None:
    with pytest.raises(FileNotFoundError):
        list(over_processes(os.stat, ["/", "/no/such/place", "/"], jobs=2))


def test_parts_have_random_numbers_of_their_own() -> None:
    drawn = {
        tuple(part_rng(seed, split, n).integers(1 << 30, size=2)) for seed in (1, 2) for split in (0, 1) for n in (0, 1)
    }
    assert len(drawn) == 8
