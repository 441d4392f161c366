"""The guards on one rank. What ranks tell each other is in tests/multi/bodies/guards.py."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

import pytest
import torch

import hora.torch as hvd
from hora.config.settings import NonFinite, Settings
from hora.engine.backend import NotFinite
from hora.torch.guard import Guard, NonFiniteError, StepDecision, from_settings


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def guard(policy: NonFinite) -> Guard:
    return Guard(Settings(nonfinite=policy))


def pieces(flat: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    return [(f"p{i}", part) for i, part in enumerate(flat.split(10))]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 17, 99])
def test_one_element_is_found(dtype: torch.dtype, value: float, place: int) -> None:
    flat = torch.ones(100, dtype=dtype)
    flat[place] = value
    watch = guard("skip")
    watch.before_reduce(flat, pieces(flat))
    assert math.isnan(flat[0])
    assert watch.after_reduce([flat]) is StepDecision.SKIP


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_large_numbers_are_fine(dtype: torch.dtype) -> None:
    """Their sum overflows, and they do not."""
    flat = torch.full((100,), torch.finfo(dtype).max, dtype=dtype)
    watch = guard("stop")
    watch.before_reduce(flat, pieces(flat))
    assert watch.after_reduce([flat]) is StepDecision.GO
    assert torch.equal(flat, torch.full((100,), torch.finfo(dtype).max, dtype=dtype))


def test_infinities_do_not_cancel() -> None:
    flat = torch.tensor([1.0, math.inf, -math.inf])
    watch = guard("stop")
    watch.before_reduce(flat, [("w", flat)])
    with pytest.raises(NonFiniteError, match=r"on rank 0: w \(inf\)"):
        watch.after_reduce([flat])


def test_a_mark_of_its_own_leaves_the_rest_alone() -> None:
    flat = torch.tensor([1.0, 2.0, math.inf, 0.0])
    watch = guard("skip")
    watch.before_reduce(flat, [("a", flat[:2]), ("b", flat[2:3])], flat[3:])
    assert flat[:3].tolist() == [1.0, 2.0, math.inf] and math.isnan(flat[3])
    assert watch.after_reduce([flat[3:]]) is StepDecision.SKIP


@pytest.mark.parametrize(
    "like", [torch.ones(4, 6).t(), torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)]
)
def test_any_layout(like: torch.Tensor) -> None:
    flat = like.clone(memory_format=torch.preserve_format)
    flat[(-1,) * flat.dim()] = math.nan
    watch = guard("skip")
    watch.before_reduce(flat, [("w", flat)])
    assert watch.after_reduce([flat]) is StepDecision.SKIP


def test_sparse_results_are_looked_at_whole() -> None:
    values = torch.tensor([1.0, math.nan])
    watch = guard("skip")
    watch.before_reduce(values, [("embedding", values)])
    result = torch.sparse_coo_tensor(torch.tensor([[3, 1]]), values, (5,), check_invariants=True)
    assert watch.after_reduce([result]) is StepDecision.SKIP
    assert watch.after_reduce([torch.zeros(5).to_sparse()]) is StepDecision.GO


def test_what_is_not_floating_or_empty_is_left_alone() -> None:
    watch = guard("stop")
    for flat in (torch.ones(3, dtype=torch.int64), torch.zeros(0)):
        watch.before_reduce(flat, [("w", flat)])
        assert watch.after_reduce([flat]) is StepDecision.GO


def test_a_find_is_over_with_its_step() -> None:
    watch, bad, good = guard("skip"), torch.tensor([math.nan]), torch.tensor([1.0])
    watch.before_reduce(bad, [("w", bad)])
    assert watch.after_reduce([bad]) is StepDecision.SKIP
    watch.before_reduce(good, [("w", good)])
    assert watch.after_reduce([good]) is StepDecision.GO
    assert watch.spent_s > 0


def test_warnings_become_rare(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("hora"), "propagate", True)
    watch = guard("warn")
    for _ in range(9):
        bad = torch.tensor([math.nan])
        watch.before_reduce(bad, [("w", bad)])
        assert watch.after_reduce([bad]) is StepDecision.GO
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(":")[0] for text in said] == ["step 1", "step 2", "step 4", "step 8"]
    assert "The 8th time" in said[-1] and "HORA_NONFINITE=skip" in said[-1]


def test_off_does_not_look() -> None:
    watch, bad = guard("off"), torch.tensor([math.nan])
    watch.before_reduce(bad, [("w", bad)])
    assert watch.after_reduce([bad]) is StepDecision.GO
    assert watch.spent_s == 0


def test_settings_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    found = from_settings()
    assert found is not None and found.policy == "warn" and found.every == 100
    hvd.shutdown()
    monkeypatch.setenv("HORA_NONFINITE", "off")
    monkeypatch.setenv("HORA_DIVERGENCE_CHECK", "0")
    hvd.init()
    assert from_settings() is None


def told(watch: Guard, found: list[NotFinite], flat: torch.Tensor) -> str:
    watch.hear(found, lambda: pieces(flat))
    with pytest.raises(NonFiniteError) as caught:
        watch.after_reduce()
    return str(caught.value)


def test_what_the_core_found_is_named() -> None:
    flat = torch.ones(100)
    flat[17], flat[18], flat[99] = math.nan, math.inf, math.inf
    watch = guard("stop")
    assert "on rank 3: p1 (nan), p9 (inf)." in told(watch, [NotFinite(3, 0, 17, True)], flat)
    both = [NotFinite(0, 0, 99, False), NotFinite(3, 0, 17, True)]
    assert "step 2: gradients that are not finite on rank 0: p9 (inf); on rank 3: p1 (nan)." in told(watch, both, flat)
    assert "after the reduction: p1 (nan), p9 (inf), although" in told(watch, [NotFinite(-1, 0, 17, True)], flat)
    assert watch.after_reduce() is StepDecision.GO


def test_what_was_thrown_away_or_is_watched_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    watch, found = guard("stop"), [NotFinite(0, 0, 1, True)]
    watch.hear(found, lambda: pieces(torch.ones(100)))
    watch.forget()
    assert watch.after_reduce() is StepDecision.GO
    watch.hear(found, lambda: pieces(torch.full((100,), math.nan)))
    assert watch.after_reduce(watched=True) is StepDecision.GO
    assert watch.after_reduce() is StepDecision.GO
    off = guard("off")
    off.hear(found, lambda: pieces(torch.ones(100)))
    assert off.after_reduce() is StepDecision.GO
    assert not caplog.records
