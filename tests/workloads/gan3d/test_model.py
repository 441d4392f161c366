"""The networks: shapes after every layer and parameter counts as the facts have them, initial weights, freezing."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from hora.workloads.gan3d.model import Discriminator, Generator, frozen, keras_parameters

GENERATOR_SHAPES = [  # channels last, as Keras has them, after each layer that changes the shape
    (7, 7, 8, 64),
    (14, 14, 16, 64),
    (13, 14, 9, 6),
    (26, 28, 27, 6),
    (26, 26, 26, 6),
    (25, 25, 25, 1),
]
DISCRIMINATOR_SHAPES = [(25, 25, 25, 32), (25, 25, 25, 8), (25, 25, 25, 8), (23, 23, 23, 8), (11, 11, 11, 8)]


def shapes_of(network: Generator | Discriminator, given: Tensor) -> list[tuple[int, ...]]:
    """What comes out of every convolution, upsampling and pooling, with channels last."""
    seen: list[tuple[int, ...]] = []
    for layer in network.layers:
        if isinstance(layer, nn.Conv3d | nn.Upsample | nn.AvgPool3d):
            layer.register_forward_hook(lambda _, __, out: seen.append((*out.shape[2:], out.shape[1])))
    with torch.no_grad():
        network(given)
    return seen


def test_generator_has_the_shapes_of_upstream() -> None:
    assert shapes_of(Generator(), torch.randn(1, 200)) == GENERATOR_SHAPES


def test_discriminator_has_the_shapes_of_upstream() -> None:
    assert shapes_of(Discriminator(), torch.rand(1, 1, 25, 25, 25)) == DISCRIMINATOR_SHAPES


@pytest.mark.parametrize(
    ("network", "counted"),
    [(Generator, (872_948, 872_808)), (Discriminator, (73_450, 73_402))],
    ids=["generator", "discriminator"],
)
def test_parameters_are_as_many_as_keras_counts(network: type[nn.Module], counted: tuple[int, int]) -> None:
    assert keras_parameters(network()) == counted


def test_latent_size_changes_only_the_first_layer() -> None:
    assert keras_parameters(Generator(128))[0] == 872_948 - (200 - 128) * 3136


def test_normalization_has_keras_defaults() -> None:
    layers = [m for n in (Generator(), Discriminator()) for m in n.modules() if isinstance(m, nn.BatchNorm3d)]
    assert len(layers) == 5
    assert {(layer.eps, layer.momentum) for layer in layers} == {(1e-3, 0.01)}


def test_initial_weights_follow_keras() -> None:
    torch.manual_seed(0)
    generator, discriminator = Generator().requires_grad_(False), Discriminator().requires_grad_(False)
    first, second, third, last = (layer for layer in generator.layers if isinstance(layer, nn.Conv3d))
    he = [math.sqrt(6 / fan_in) for fan_in in (8 * 6 * 6 * 8, 64 * 6 * 5 * 8, 6 * 3 * 3 * 8)]
    assert [float(layer.weight.abs().max()) for layer in (first, second, third)] == pytest.approx(he, rel=0.02)
    deviation = math.sqrt(2 / (6 * 8 + 1 * 8))
    assert float(last.weight.std()) == pytest.approx(deviation, rel=0.4)  # of 48 numbers
    assert float(last.weight.abs().max()) <= 2 * deviation / 0.8796
    assert float(generator.dense.weight.abs().max()) == pytest.approx(math.sqrt(6 / (200 + 3136)), rel=0.01)
    widest = discriminator.layers[3]
    assert isinstance(widest, nn.Conv3d)
    assert float(widest.weight.abs().max()) == pytest.approx(math.sqrt(6 / (40 * 125)), rel=0.01)
    biases = [v for n in (generator, discriminator) for k, v in n.named_parameters() if k.endswith("bias")]
    assert all(not bias.any() for bias in biases)


def test_discriminator_sums_cells_and_gives_a_probability() -> None:
    showers = torch.rand(2, 1, 25, 25, 25)
    with torch.no_grad():
        judged = Discriminator()(showers)
    torch.testing.assert_close(judged.ecal, showers.flatten(1).sum(1))
    assert ((judged.generation > 0) & (judged.generation < 1)).all()


def test_a_frozen_network_gets_nothing_but_passes_gradients_on() -> None:
    torch.manual_seed(0)
    network = Discriminator()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    showers = torch.rand(2, 1, 25, 25, 25, requires_grad=True)

    torch.manual_seed(1)
    with frozen(network):
        passed = network(showers).auxiliary
        passed.sum().backward()
    through = showers.grad
    assert through is not None and through.any()
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())

    torch.manual_seed(1)  # the same dropout
    free = network(showers).auxiliary
    assert torch.equal(free, passed)  # batch normalisation went by the batch
    free.sum().backward()
    assert all(p.grad is not None for n, p in network.named_parameters() if not n.startswith("generation"))
    assert any(not torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
