"""What is run, and what is not because it would be the same as something else."""

from __future__ import annotations

import msgspec
import pytest

from hora.errors import UsageError
from hora.lab.quality.factors import Recipe, parse_factors
from hora.lab.quality.measure import methods, refuse_exact
from hora.lab.quality.trials import QualitySetup, cells, trials


def setup(factors: str, epochs: float, samples: int = 2000) -> QualitySetup:
    recipe = Recipe.of("mnist", {"batch": 50, "base_batch": 50}, epochs)
    made = parse_factors(factors)
    return QualitySetup(recipe=recipe, workers=(1, 8), factors=made, seeds=(1,), processes=2, samples=samples)


STUDY = "naive,linear,stepping,gradual5,gradual10,reduced-batch"


def test_a_warm_up_shorter_than_a_step_is_left_out_and_said() -> None:
    """8 workers take 400 of 2,000 samples a step: 5 of 90 epochs are 0.28 of a step in one epoch, 2.5 steps in 9."""
    short = setup(STUDY, 1)
    kept = [cell.factor.name for cell in cells(short)[1:]]
    assert kept == ["naive", "linear", "reduced-batch"]  # ten of 90 epochs are 0.56 of a step
    assert len(list(trials(short))) == 1 + len(kept)
    said = " ".join(methods(short, (), None))
    assert "left out: on 8 workers gradual5 warms up for 0.28 of a step, which is no warm-up: it would be" in said
    assert "one seed, which has no interval" in said and "±" not in said
    assert [cell.factor.name for cell in cells(setup(STUDY, 9))[1:]] == STUDY.split(",")


def test_where_a_run_is_trained_is_no_part_of_it() -> None:
    made = setup("linear", 9)
    away = msgspec.structs.replace(made, hosts="node1:2,node2:2")
    assert list(trials(away)) == list(trials(made))


def test_a_warm_up_that_was_given_in_epochs_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--factors iteration:0.1: on 8 workers .* 0.5 of a step"):
        refuse_exact(setup("linear,iteration:0.1", 2))
    small = QualitySetup(
        recipe=Recipe.of("mnist", {"batch": 10}, 2), workers=(1, 8), factors=parse_factors("gradual:1"), seeds=(1,),
        processes=2, samples=2000,
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"--factors gradual:1: .*it would be linear"):
        refuse_exact(small)  # 80 samples a step, of a rate for 100: it does not grow
    refuse_exact(setup("linear,iteration:1", 2))


def test_without_knowing_the_samples_nothing_is_left_out() -> None:
    assert len(cells(setup(STUDY, 1, samples=0))) == 7
