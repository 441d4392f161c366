"""The order of trials, and that each is a trial that can be told from the others."""

from __future__ import annotations

import pytest

from hora.errors import UsageError
from hora.lab.throughput.grid import GridSetup, points, turns


def test_repeats_are_taken_by_turns_and_limits_beside_their_points() -> None:
    grid = points([1, 2], [32, 64], [1], ["auto", "gloo"])
    trials = [trial for _, trial in turns(GridSetup(workload="mnist", repeats=2), grid)]
    names = [trial.name for trial in trials]
    assert len(names) == len(set(names)) == 2 * (8 + 2)
    half = len(names) // 2
    assert [name[:-1] for name in names[:half]] == [name[:-1] for name in names[half:]]
    first = names.index("2w-b64-t1-limit-1")
    assert names[first + 1 : first + 3] == ["2w-b64-t1-auto-1", "2w-b64-t1-gloo-1"]
    assert not any(trial.independent for trial in trials if trial.workers == 1)


def test_options_that_are_given_beat_those_of_the_experiment_but_for_the_batch() -> None:
    job = GridSetup(workload="mnist", steps=30, repeats=1, options={"batch": 7, "save": True, "lr": 0.5})
    [(_, trial)] = turns(job, points([1], [32], [1], ["auto"]))
    assert trial.options == {"max_steps": 30, "validate": False, "save": True, "batch": 32, "lr": 0.5}


def test_what_cannot_be_trained_is_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match="there is no workload 'minst'"):
        GridSetup(workload="minst").check()
    with pytest.raises(UsageError, match="image-size 5 is too small"):
        GridSetup(workload="synthetic", options={"image_size": 5}).check()
