"""What every compressor with a memory promises, on one rank. Several ranks: ``tests/multi/bodies/compression.py``."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import hora.torch as hvd
from hora.torch.compression import Compression, ErrorFeedback, GradientCompressor, Int8, OneBit, PowerSGD, TopK

MAKERS: list[Callable[[], ErrorFeedback]] = [
    lambda: PowerSGD(rank=2, smallest=1),
    lambda: TopK(ratio=0.1, smallest=1),
    lambda: OneBit(smallest=1),
    lambda: Int8(chunk=50, smallest=1),
]
every = pytest.mark.parametrize("make", MAKERS, ids=["power_sgd", "top_k", "one_bit", "int8"])
one = pytest.mark.parametrize("make", MAKERS[1:2], ids=["top_k"])


def gradient(seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(24, 18, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def reduce(compressor: ErrorFeedback, tensor: torch.Tensor, name: str = "w") -> torch.Tensor:
    return compressor.start(name, tensor)()


def error(compressor: ErrorFeedback, name: str = "w") -> torch.Tensor:
    found: torch.Tensor = compressor.state_dict()["memory"][name]["tensors"]["error"]
    return found


@every
def test_it_is_what_the_optimizer_takes(make: Callable[[], ErrorFeedback]) -> None:
    assert isinstance(make(), GradientCompressor)
    assert not isinstance(Compression.fp16, GradientCompressor)


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_result_is_left_in_the_gradient_and_the_rest_is_remembered(
    make: Callable[[], ErrorFeedback], dtype: torch.dtype
) -> None:
    compressor, given = make(), gradient(dtype=dtype)
    before = given.clone()
    assert reduce(compressor, given) is given
    assert given.dtype is dtype and not torch.equal(given, before)
    assert error(compressor).dtype is torch.promote_types(dtype, torch.float32)
    rounding = 4 * torch.finfo(dtype).eps  # of the result, whose elements are below 4, to its type
    torch.testing.assert_close(given.double() + error(compressor), before.double(), rtol=0, atol=rounding)


@every
def test_nothing_is_lost_only_late(make: Callable[[], ErrorFeedback]) -> None:
    compressor, sent, true = make(), torch.zeros(24, 18), torch.zeros(24, 18)
    for step in range(30):
        true += gradient(step)
        sent += reduce(compressor, gradient(step))
    torch.testing.assert_close(sent + error(compressor), true, rtol=1e-4, atol=1e-4)
    assert error(compressor).norm() < true.norm(), "what is owed does not grow without end"


@every
@pytest.mark.parametrize("change", ["channels_last", "transposed", "expanded", "requires_grad"])
def test_gradients_of_every_layout(make: Callable[[], ErrorFeedback], change: str) -> None:
    values = torch.randn(8, 6, 3, 3, generator=torch.Generator().manual_seed(1))
    given = {
        "channels_last": values.to(memory_format=torch.channels_last),
        "transposed": values.transpose(0, 1).contiguous().transpose(0, 1),
        "expanded": values[:1].expand(8, 6, 3, 3),
        "requires_grad": values.clone().requires_grad_(),
    }[change]
    plain, other = make(), make()
    expected = reduce(plain, given.detach().clone(memory_format=torch.contiguous_format))
    torch.testing.assert_close(reduce(other, given).detach(), expected)
    torch.testing.assert_close(error(other), error(plain))


@every
def test_what_does_not_pay_is_sent_as_it_is(make: Callable[[], ErrorFeedback]) -> None:
    compressor = make()
    compressor.smallest = 100
    for shape in ((), (0,), (1,), (99,), (9, 11)):
        given = torch.randn(shape)
        assert torch.equal(reduce(compressor, given.clone(), str(shape)), given)
    assert compressor.raw_bytes == compressor.wire_bytes == 4 * (1 + 1 + 99 + 99)
    assert "0 of 5 tensors compressed" in compressor.report()


@every
def test_bytes_are_counted(make: Callable[[], ErrorFeedback]) -> None:
    compressor = make()
    expected = {"PowerSGD": 4 * 2 * (24 + 18), "TopK": 8 * 44, "OneBit": 4 + 54, "Int8": 432 + 9 * 4}
    for step in range(1, 3):
        reduce(compressor, gradient(step))
        assert compressor.raw_bytes == step * 432 * 4
        assert compressor.wire_bytes == step * expected[type(compressor).__name__]
    times = f"{compressor.raw_bytes / compressor.wire_bytes:.1f} times less"
    assert compressor.report().startswith(f"{compressor!r}: 3.5 kB of gradients sent as ")
    assert compressor.report().endswith(f"{times}; 1 of 1 tensors compressed")


def test_nothing_sent_yet_is_reported_as_such() -> None:
    assert OneBit().report() == "OneBit(): 0 B of gradients sent as 0 B; 0 of 0 tensors compressed"


@every
def test_it_goes_on_from_a_saved_state(make: Callable[[], ErrorFeedback]) -> None:
    compressor, copy = make(), make()
    for step in range(3):
        reduce(compressor, gradient(step))
    file = io.BytesIO()
    torch.save(compressor.state_dict(), file)
    file.seek(0)
    copy.load_state_dict(torch.load(file, weights_only=True))
    for step in range(3, 6):
        assert torch.equal(reduce(compressor, gradient(step)), reduce(copy, gradient(step)))
    assert (copy.raw_bytes, copy.wire_bytes) == (compressor.raw_bytes, compressor.wire_bytes)


@every
def test_a_state_is_a_snapshot(make: Callable[[], ErrorFeedback]) -> None:
    compressor = make()
    reduce(compressor, gradient())
    state = compressor.state_dict()
    before = state["memory"]["w"]["tensors"]["error"].clone()
    reduce(compressor, gradient(1))
    assert torch.equal(state["memory"]["w"]["tensors"]["error"], before) and state["memory"]["w"]["steps"] == 1


@one
def test_errors_of_another_rank_are_not_taken_over(make: Callable[[], ErrorFeedback]) -> None:
    compressor, other = make(), make()
    reduce(compressor, gradient())
    other.load_state_dict({**compressor.state_dict(), "rank": 1})
    assert other.state_dict()["memory"] == {"w": {"steps": 1, "tensors": {}}}


@every
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_step_that_is_not_finite_leaves_no_trace(make: Callable[[], ErrorFeedback], bad: float) -> None:
    compressor, clean = make(), make()
    for each in (compressor, clean):
        reduce(each, gradient(0))
    spoiled = gradient(1)
    spoiled[3, 4] = bad
    assert not reduce(compressor, spoiled).isfinite().all(), "others must see it, as they would without compression"
    assert torch.equal(error(compressor), error(clean))
    assert torch.equal(reduce(compressor, gradient(2)), reduce(clean, gradient(2)))


@every
def test_zeros_stay_zeros_and_do_no_harm(make: Callable[[], ErrorFeedback]) -> None:
    compressor, sent, true = make(), torch.zeros(24, 18), torch.zeros(24, 18)
    assert reduce(compressor, torch.zeros(24, 18)).count_nonzero() == 0
    for step in range(10):
        sparse = gradient(step)
        sparse[:12] = sparse[:, :9] = 0  # the first rows and columns never get anything
        true += sparse
        sent += reduce(compressor, sparse)
    torch.testing.assert_close(sent + error(compressor), true, rtol=1e-4, atol=1e-4)
    assert error(compressor).norm() < 0.9 * true.norm(), "something has arrived"


@every
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_tiny_and_huge_gradients(make: Callable[[], ErrorFeedback], scale: float) -> None:
    expected = reduce(make(), gradient())
    torch.testing.assert_close(reduce(make(), gradient() * scale) / scale, expected, rtol=1e-3, atol=1e-3)


def refused(problem: str, act: Callable[[], Any]) -> None:
    with pytest.raises(hvd.UsageError, match=problem):
        act()


@every
def test_nonsense_is_refused_before_anything_is_sent(make: Callable[[], ErrorFeedback]) -> None:
    compressor = make()
    for op in (hvd.Adasum, hvd.Min, hvd.Max, hvd.Product):
        refused("Use op=Average or op=Sum", lambda op=op: compressor.start("w", gradient(), op))
    refused("int64", lambda: compressor.start("w", torch.ones(200, 200, dtype=torch.int64)))
    refused("complex64", lambda: compressor.start("w", torch.ones(200, 200, dtype=torch.complex64)))
    refused("sparse_as_dense", lambda: compressor.start("w", gradient().to_sparse()))
    refused("without a name", lambda: compressor.start("", gradient()))
    refused("DistributedOptimizer", lambda: hvd.allreduce(gradient(), compression=compressor))  # type: ignore[arg-type]
    assert compressor.wire_bytes == compressor.raw_bytes == 0


@one
def test_the_error_of_one_tensor_is_not_added_to_another(make: Callable[[], ErrorFeedback]) -> None:
    compressor = make()
    reduce(compressor, gradient())
    refused(r"shape \(18, 24\), but its error is of shape \(24, 18\)", lambda: reduce(compressor, gradient().t()))
    refused("state of a TopK was given to a OneBit", lambda: OneBit().load_state_dict(compressor.state_dict()))


@every
def test_a_gradient_is_finished_once(make: Callable[[], ErrorFeedback]) -> None:
    compressor, clean = make(), make()
    finish = compressor.start("w", gradient())
    finish()
    refused("finished twice", finish)
    compressor.start("w", gradient(1))  # given up
    reduce(clean, gradient())
    assert torch.equal(reduce(compressor, gradient(2)), reduce(clean, gradient(2)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: TopK(ratio=0),
        lambda: TopK(ratio=-0.1),
        lambda: TopK(ratio=1.5),
        lambda: TopK(ratio=float("nan")),
        lambda: TopK(ratio=True),
        lambda: TopK(ratio="1%"),  # type: ignore[arg-type]
        lambda: PowerSGD(rank=0),
        lambda: PowerSGD(rank=1.5),  # type: ignore[arg-type]
        lambda: PowerSGD(start_step=-1),
        lambda: Int8(chunk=0),
        lambda: OneBit(smallest=-1),
    ],
)
def test_impossible_settings_are_refused(make: Callable[[], ErrorFeedback]) -> None:
    refused("(ratio|rank|start_step|chunk|smallest)=.* Give ", make)


@every
def test_it_survives_a_new_generation(make: Callable[[], ErrorFeedback]) -> None:
    compressor, clean = make(), make()
    reduce(compressor, gradient())
    reduce(clean, gradient())
    compressor.start("left", gradient())  # never finished
    hvd.shutdown()
    hvd.init()
    assert torch.equal(reduce(compressor, gradient(1)), reduce(clean, gradient(1)))


@every
def test_arrays_of_other_front_ends_are_reduced_as_tensors_are(make: Callable[[], ErrorFeedback]) -> None:
    tensors, arrays = make(), make()
    hvd.init()
    try:
        for step in range(3):
            array = gradient(step).numpy()
            expected = reduce(tensors, gradient(step))
            result = arrays.start("w", array)()
            assert result is array or result.ctypes.data == array.ctypes.data
            np.testing.assert_array_equal(result, expected.numpy())
    finally:
        hvd.shutdown()
    np.testing.assert_array_equal(error(arrays), error(tensors))
