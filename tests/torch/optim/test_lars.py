"""LARS against its formula in numpy, and on what the formula must imply."""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hora.errors import UsageError
from hora.torch.optim.lars import LARS

Array = npt.NDArray[np.float64]


def reference(
    w: Array, gradients: list[Array], rates: list[float], *, momentum: float, decay: float, eta: float, adapt: bool
) -> Array:
    v = np.zeros_like(w)
    for g, lr in zip(gradients, rates, strict=True):
        norms = np.linalg.norm(w), np.linalg.norm(g)
        trust = eta * norms[0] / (norms[1] + decay * norms[0]) if adapt and all(norms) else 1.0
        v = momentum * v + lr * trust * (g + decay * w)
        w = w - v
    return w


@pytest.mark.parametrize("adapt", [True, False])
@pytest.mark.parametrize("decay", [0.0, 2e-4])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), steps=st.integers(1, 4), momentum=st.sampled_from([0.0, 0.9]))
def test_the_published_update(adapt: bool, decay: float, seed: int, steps: int, momentum: float) -> None:
    random = np.random.default_rng(seed)
    start, gradients = random.normal(size=(4, 3)), [random.normal(size=(4, 3)) for _ in range(steps)]
    rates = random.uniform(0.1, 10, steps).tolist()
    weight = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = LARS([{"params": [weight], "adapt": adapt}], lr=1.0, momentum=momentum, weight_decay=decay)
    for gradient, rate in zip(gradients, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = torch.from_numpy(gradient)
        optimizer.step()
    expected = reference(start, gradients, rates, momentum=momentum, decay=decay, eta=0.001, adapt=adapt)
    np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-10)


def test_without_adaption_and_at_a_constant_rate_it_is_torchs_sgd() -> None:
    gradients = [torch.randn(5, generator=torch.Generator().manual_seed(step)) for step in range(5)]
    weights = [torch.nn.Parameter(torch.ones(5)) for _ in range(2)]
    pair = (
        LARS([weights[0]], lr=0.1, weight_decay=0.01, adapt=False),
        torch.optim.SGD([weights[1]], lr=0.1, momentum=0.9, weight_decay=0.01),
    )
    for gradient in gradients:
        for weight, optimizer in zip(weights, pair, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(*weights)


def test_the_size_of_the_gradient_does_not_matter_without_decay() -> None:
    ends = []
    for factor in (1.0, 1000.0):
        weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        weight.grad = factor * torch.tensor([0.3, -0.4])
        LARS([weight], lr=1.0).step()
        ends.append(weight.detach())
    torch.testing.assert_close(*ends)


def test_a_layer_of_zeros_can_leave_zero_and_a_zero_gradient_divides_nothing() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.ones(2)
    optimizer = LARS([weight], lr=0.5, momentum=0.0)
    optimizer.step()
    assert weight.tolist() == [-0.5, -0.5]
    weight.grad = torch.zeros(2)
    optimizer.step()
    assert weight.tolist() == [-0.5, -0.5]


def test_state_goes_through_a_checkpoint() -> None:
    def made() -> tuple[torch.nn.Parameter, LARS]:
        weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        return weight, LARS([weight], lr=0.5)

    weight, optimizer = made()
    other, resumed = made()
    for step in range(4):
        weight.grad = torch.tensor([1.0, float(step)])
        optimizer.step()
        if step == 1:
            resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            other.data.copy_(weight.data)
        elif step > 1:
            other.grad = torch.tensor([1.0, float(step)])
            resumed.step()
    assert torch.equal(weight, other)


def test_a_closure_is_called_with_gradients_on() -> None:
    weight = torch.nn.Parameter(torch.tensor([3.0]))
    optimizer = LARS([weight], lr=0.1, adapt=False)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 9.0
    assert weight.item() == pytest.approx(3.0 - 0.1 * 6.0)


def test_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match="momentum=-1"):
        LARS([torch.nn.Parameter(torch.ones(1))], lr=0.1, momentum=-1)
