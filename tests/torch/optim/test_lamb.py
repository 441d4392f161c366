"""LAMB against its formula in numpy, and against torch's Adam, which it is without its ratio."""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hora.errors import UsageError
from hora.torch.optim.lamb import LAMB

Array = npt.NDArray[np.float64]


def reference(w: Array, gradients: list[Array], lr: float, decay: float) -> Array:
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        r = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + decay * w
        norms = np.linalg.norm(w), np.linalg.norm(r)
        w = w - lr * (norms[0] / norms[1] if all(norms) else 1.0) * r
    return w


@pytest.mark.parametrize("decay", [0.0, 0.01])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), steps=st.integers(1, 5))
def test_the_published_update(decay: float, seed: int, steps: int) -> None:
    random = np.random.default_rng(seed)
    start, gradients = random.normal(size=(4, 3)), [random.normal(size=(4, 3)) for _ in range(steps)]
    weight = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = LAMB([weight], lr=0.1, weight_decay=decay)
    for gradient in gradients:
        weight.grad = torch.from_numpy(gradient)
        optimizer.step()
    np.testing.assert_allclose(weight.detach().numpy(), reference(start, gradients, 0.1, decay), rtol=1e-9)


def test_without_its_ratio_it_is_torchs_adam() -> None:
    weights = [torch.nn.Parameter(torch.ones(5, dtype=torch.float64)) for _ in range(2)]
    pair = LAMB([weights[0]], lr=0.1, adapt=False), torch.optim.Adam([weights[1]], lr=0.1, eps=1e-6)
    for step in range(5):
        for weight, optimizer in zip(weights, pair, strict=True):
            weight.grad = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
            optimizer.step()
    torch.testing.assert_close(*weights)


def test_a_layer_of_zeros_can_leave_zero() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.ones(2)
    LAMB([weight], lr=0.5).step()
    assert weight.tolist() == pytest.approx([-0.5, -0.5])


def test_state_goes_through_a_checkpoint() -> None:
    def made() -> tuple[torch.nn.Parameter, LAMB]:
        weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        return weight, LAMB([weight], lr=0.5)

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


@pytest.mark.parametrize("wrong", [{"lr": -1.0}, {"lr": 0.1, "betas": (0.9, 1.0)}, {"lr": 0.1, "eps": float("nan")}])
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="for LAMB must be"):
        LAMB([torch.nn.Parameter(torch.ones(1))], **wrong)  # type: ignore[arg-type]


def test_a_parameter_without_a_gradient_stays_as_it_is() -> None:
    moved, still, seldom = (torch.nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(3))
    optimizer = LAMB([moved, still, seldom], lr=0.1)
    gradients = [np.array([1.0, 2.0, 3.0]), np.array([3.0, 1.0, 2.0])]
    for step, gradient in enumerate(gradients):
        moved.grad = torch.from_numpy(gradient)
        seldom.grad = torch.from_numpy(gradient) if step else None
        optimizer.step()
    assert still.tolist() == [1.0, 1.0, 1.0] and still not in optimizer.state
    np.testing.assert_allclose(moved.detach().numpy(), reference(np.ones(3), gradients, 0.1, 0.0), rtol=1e-9)
    np.testing.assert_allclose(seldom.detach().numpy(), reference(np.ones(3), gradients[1:], 0.1, 0.0), rtol=1e-9)
