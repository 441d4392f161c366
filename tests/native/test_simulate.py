"""The C core under the simulator: any order, death or stop that a seed leads to; and that it finds what is there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from tests.native.planted import BUGS, plant
from tests.native.simulator import NATIVE, build, simulate

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
SECONDS = 100  # on one of two cores, beside other tests


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("simulator") / "simulate"
    build(NATIVE, made)
    return made


@pytest.mark.timeout(300)
def test_nothing_is_found_in_the_core(simulator: Path) -> None:
    done = simulate(simulator, SECONDS, seed=20261118)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_is_one_schedule(simulator: Path) -> None:
    """The same steps, however often it is run: what was found once can be looked at."""

    def steps(*more: str) -> str:
        found = re.search(r"([0-9]+) steps", simulate(simulator, 60, 7, "--schedules", "40", *more).stdout)
        assert found
        return found[1]

    assert steps() == steps() != steps("--from", "40")


@pytest.mark.parametrize("name", ["joins-twice", "rings-not", "one-payload"])
def test_a_planted_bug_is_found_at_once_and_again_by_its_seed(name: str, tmp_path: Path) -> None:
    build(plant(BUGS[name], tmp_path), tmp_path / "simulate")
    done = simulate(tmp_path / "simulate", 60, seed=1)
    assert done.returncode == 1, done.stdout
    again = re.search(r"again: simulate --seed 1 --from ([0-9]+) --schedules 1", done.stdout)
    assert again
    repeated = simulate(tmp_path / "simulate", 60, 1, "--from", again[1], "--schedules", "1")
    assert repeated.returncode == 1
    assert repeated.stdout.splitlines()[0] == done.stdout.splitlines()[0]


@pytest.mark.parametrize("name", BUGS)
def test_every_bug_can_still_be_planted(name: str, tmp_path: Path) -> None:
    """The sources change; finding them all takes minutes and is for ``make test-long``."""
    assert plant(BUGS[name], tmp_path).is_dir()


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", BUGS)
def test_every_planted_bug_is_found_within_a_minute(name: str, tmp_path: Path) -> None:
    build(plant(BUGS[name], tmp_path), tmp_path / "simulate")
    assert simulate(tmp_path / "simulate", 60, seed=1).returncode == 1, BUGS[name].why
