"""The networks against the published counts, torchvision's names, and a second writing of their forward pass."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from hora.bench import resnet50
from hora.errors import UsageError
from hora.workloads.imagenet.model import ARCHITECTURES, BasicBlock, Bottleneck, decay_groups, resnet

PARAMETERS = {"resnet18": 11_689_512, "resnet34": 21_797_672, "resnet50": 25_557_032, "resnet101": 44_549_160,
              "resnet152": 60_192_808}  # fmt: skip


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_parameter_counts(name: str) -> None:
    with torch.device("meta"):
        model = resnet(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


def test_names_and_shapes_of_resnet_50_and_its_statistics() -> None:
    with torch.device("meta"):
        model = resnet("resnet50")
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == resnet50.shapes()
    statistics = [b for name, b in model.named_buffers() if name.endswith(("running_mean", "running_var"))]
    assert sum(b.numel() for b in statistics) == 53_120


def test_names_of_resnet_18_are_torchvisions() -> None:
    with torch.device("meta"):
        names = list(resnet("resnet18").state_dict())
    norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    expected = ["conv1.weight", *(f"bn1.{n}" for n in norm)]
    for layer in range(1, 5):
        for block in range(2):
            for part in (1, 2):
                expected += [f"layer{layer}.{block}.conv{part}.weight"]
                expected += [f"layer{layer}.{block}.bn{part}.{n}" for n in norm]
            if layer > 1 and block == 0:
                expected += [f"layer{layer}.0.downsample.0.weight"]
                expected += [f"layer{layer}.0.downsample.1.{n}" for n in norm]
    assert names == [*expected, "fc.weight", "fc.bias"]


def by_hand(state: dict[str, torch.Tensor], blocks: tuple[int, ...], x: torch.Tensor, bottleneck: bool) -> torch.Tensor:
    """The network in evaluation, from its weights alone."""

    def convolution(x: torch.Tensor, name: str, norm: str, stride: int = 1) -> torch.Tensor:
        weight = state[f"{name}.weight"]
        x = functional.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        of = {n: state[f"{norm}.{n}"][:, None, None] for n in ("running_mean", "running_var", "weight", "bias")}
        return (x - of["running_mean"]) / (of["running_var"] + 1e-5).sqrt() * of["weight"] + of["bias"]

    x = functional.max_pool2d(convolution(x, "conv1", "bn1", 2).relu(), 3, 2, 1)
    for stage, count in enumerate(blocks):
        for block in range(count):
            at, stride = f"layer{stage + 1}.{block}", 2 if stage and not block else 1
            strides = (1, stride, 1) if bottleneck else (stride, 1)  # v1.5: on the 3x3
            y = x
            for part, step in enumerate(strides, start=1):
                y = convolution(y if part == 1 else y.relu(), f"{at}.conv{part}", f"{at}.bn{part}", step)
            around = f"{at}.downsample.0"
            x = convolution(x, around, f"{at}.downsample.1", stride) if f"{around}.weight" in state else x
            x = (x + y).relu()
    return functional.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_the_forward_pass(name: str) -> None:
    torch.manual_seed(0)
    model = resnet(name, classes=7).double()
    x = torch.randn(3, 3, 64, 64, dtype=torch.float64)
    model(x)  # statistics other than 0 and 1
    model.eval()
    with torch.no_grad():
        expected = by_hand(model.state_dict(), ARCHITECTURES[name].blocks, x, ARCHITECTURES[name].bottleneck)
        torch.testing.assert_close(model(x), expected)


def test_initialisation_is_kaimings_over_the_outputs() -> None:
    torch.manual_seed(0)
    weight = resnet("resnet18").layer4[1].conv2.weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (512 * 9)), rel=0.01)
    assert weight.mean().item() == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_goyals_initialisation(name: str) -> None:
    torch.manual_seed(0)
    model = resnet(name, zero_gamma=True, small_fc=True)
    blocks = [module for module in model.modules() if isinstance(module, BasicBlock | Bottleneck)]
    assert len(blocks) == sum(ARCHITECTURES[name].blocks)
    assert not any(block.last_norm.weight.any() for block in blocks)
    ones = [m.weight for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert sum(not weight.any() for weight in ones) == len(blocks)
    assert model.fc.weight.std().item() == pytest.approx(0.01, rel=0.02) and not model.fc.bias.any()


def test_what_is_decayed() -> None:
    model = resnet("resnet18")
    (everything,) = decay_groups(model, 1e-4, vectors=True)
    assert len(everything["params"]) == 62 and everything["weight_decay"] == 1e-4
    decayed, spared = decay_groups(model, 1e-4, vectors=False)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert {names[id(p)] for p in spared["params"]} == {
        name for name in names.values() if "bn" in name or "downsample.1" in name or name.endswith("bias")
    }
    assert len(decayed["params"]) + len(spared["params"]) == 62 and spared["weight_decay"] == 0


def test_an_unknown_network() -> None:
    with pytest.raises(UsageError, match=r"no network 'resnet51'.*resnet50"):
        resnet("resnet51")
