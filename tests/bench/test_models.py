"""The networks of `hora bench train`, against facts about them."""

from __future__ import annotations

import pytest
import torch

from hora.bench import resnet50
from hora.bench.models import SPECS, ResNet50Gradients, batches
from hora.bench.plan import TRAININGS


def parameters(name: str) -> int:
    return sum(parameter.numel() for parameter in SPECS[name].make().parameters())


def test_sizes() -> None:
    assert parameters("resnet50") == parameters("gradients") == 25_557_032
    assert parameters("mlp") == 784 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 10 + 10
    assert parameters("mnist") == 10 * 25 + 10 + 20 * 250 + 20 + 320 * 50 + 50 + 50 * 10 + 10


def test_resnet_has_the_published_parameters_in_their_order() -> None:
    assert [(n, tuple(p.shape)) for n, p in SPECS["resnet50"].make().named_parameters()] == list(
        resnet50.shapes().items()
    )


@pytest.mark.parametrize("name", ["resnet50", "mlp", "mnist"])
def test_a_step_reaches_every_parameter(name: str) -> None:
    spec = SPECS[name]
    network = spec.make()
    images, labels = next(batches(spec, 1))
    assert len(images) == TRAININGS[name].images == spec.batch
    output = network(images)
    assert output.shape == (spec.batch, spec.classes)
    spec.loss(output, labels).backward()
    for parameter in network.parameters():
        assert parameter.grad is not None and bool(parameter.grad.isfinite().all())
        assert parameter.grad.is_contiguous()


def test_trivial_gradients_are_dense_and_those_of_the_target() -> None:
    chain = ResNet50Gradients({"a": (3, 2), "b": (4,)})
    SPECS["gradients"].loss(chain(torch.zeros(())), torch.tensor(2.5)).backward()
    for parameter in chain.parameters():
        assert parameter.grad is not None and parameter.grad.is_contiguous()
        assert bool((parameter.grad == 2.5).all())


@pytest.mark.parametrize("name", list(SPECS))
def test_ranks_get_different_batches_and_each_the_same_again(name: str) -> None:
    a, again, b = (next(batches(SPECS[name], seed)) for seed in (1, 1, 2))
    different = [not torch.equal(x, y) for x, y in zip(a, b, strict=True)]
    assert any(different)
    assert all(torch.equal(x, y) for x, y in zip(a, again, strict=True))
