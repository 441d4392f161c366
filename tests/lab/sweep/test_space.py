"""What a sweep may search is checked before anything starts, and said in one sentence."""

from __future__ import annotations

import pytest

from hora.errors import UsageError
from hora.lab.sweep.limits import MemoryLimits
from hora.lab.sweep.search import Grid, Tpe, name_of
from hora.lab.sweep.space import Choice, Range, check_point, grid_points, parse_grid, parse_ranges


def test_a_grid_has_the_types_of_the_options() -> None:
    grid = parse_grid("cifar10", "batch=32,64 lr=0.1 network=v1,v2 augment=no decay=3,6|cosine --l2=1e-4 workers=1,2")
    assert [choice.values for choice in grid] == [
        (32, 64), (0.1,), ("v1", "v2"), ("no",), ("3,6", "cosine"), (0.0001,), (1, 2),
    ]  # fmt: skip
    assert len(grid_points(grid)) == 16


@pytest.mark.parametrize(
    "text, word",
    [
        ("", "nothing in it"), ("batch", "no value"), ("batch=", "no value"), ("batch=,", "no value"),
        ("batch=a", "batch=a"), ("batch=0", "batch=0"), ("lr=fast", "lr=fast"), ("lr=nan", "lr=nan"),
        ("speed=1", "speed"), ("batch=1 batch=2", "twice"), ("out=x", "of its own"), ("workers=0", "workers=0"),
        ("optimizer=sgdd", "optimizer=sgdd"),
    ],
)  # fmt: skip
def test_bad_grids_are_refused(text: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        parse_grid("mnist", text)


@pytest.mark.parametrize(
    "text, word",
    [("lr=1..0.1", "low end"), ("log", "after no range"), ("lr=0..1 log", "cannot begin"), ("decay=a..b", "no number"),
     ("", "nothing in it"), ("lr=a..1", "lr=a")],
)  # fmt: skip
def test_bad_ranges_are_refused(text: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        parse_ranges("mnist", [text])


def test_points_are_checked_against_the_workload() -> None:
    check_point("cifar10", {}, {"depth": 20, "workers": 2})
    with pytest.raises(UsageError, match=r"depth=21.*9n\+2"):
        check_point("cifar10", {}, {"depth": 21})


def test_small_batches_come_first_and_names_are_folders() -> None:
    search = Grid(parse_grid("mnist", "lr=0.1,0.2 batch=64,8"))
    names = [name for name, _ in search.points()]
    assert names == ["lr=0.1,batch=8", "lr=0.2,batch=8", "lr=0.1,batch=64", "lr=0.2,batch=64"]
    assert "/" not in name_of({"data": "/a/b"})


def test_limits_are_by_kind() -> None:
    limits = MemoryLimits()
    limits.learn({"batch": 64, "workers": 1, "precision": "float32", "lr": 0.1})
    assert limits.refuses({"batch": 128, "workers": 1, "precision": "float32", "lr": 0.3}) == 64
    assert limits.refuses({"batch": 32, "workers": 1, "precision": "float32"}) is None
    assert limits.refuses({"batch": 128, "workers": 1, "precision": "bf16"}) is None


SPACE = (Range("lr", 0.001, 10.0, log=True), Range("batch", 8, 64, whole=True), Choice("optimizer", ("sgd", "adam")))


def proposals(known: int, total: int) -> list[dict[str, object]]:
    """What TPE proposes for a known hill, when the first ``known`` were told in another process, so to say."""
    found: list[dict[str, object]] = []
    search = Tpe(SPACE, total, highest=True, seed=3)
    for number, (_, point) in enumerate(search.points()):
        found.append(point)
        if number + 1 == known:
            return found
        value = -((float(point["lr"]) - 1.0) ** 2) if number % 5 else None  # some come to nothing
        search.told(point, value, hopeless=number % 2 == 0)
    return found


def test_tpe_goes_on_as_if_nothing_had_happened_and_finds_the_hill() -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    whole = proposals(25, 25)
    assert proposals(11, 25) == whole[:11]
    assert all(0.001 <= float(str(point["lr"])) <= 10 and 8 <= int(str(point["batch"])) <= 64 for point in whole)
    late = [abs(float(str(point["lr"])) - 1.0) for point in whole[15:]]
    assert min(late) < 0.5
