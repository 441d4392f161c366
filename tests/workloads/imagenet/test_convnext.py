"""ConvNeXt-T: as large as published, called as torchvision calls it, and computing what its weights say."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from hora.workloads.imagenet.convnext import BLOCKS, convnext_tiny
from hora.workloads.imagenet.model import decay_groups, network


def test_as_many_parameters_as_published_and_named_as_torchvisions() -> None:
    with torch.device("meta"):
        model = network("convnext_tiny")
    assert sum(parameter.numel() for parameter in model.parameters()) == 28_589_128
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert shapes["features.0.0.weight"] == (96, 3, 4, 4) and shapes["features.0.1.bias"] == (96,)
    assert shapes["features.1.0.block.0.weight"] == (96, 1, 7, 7) and shapes["features.1.2.layer_scale"] == (96, 1, 1)
    assert shapes["features.4.0.weight"] == (192,) and shapes["features.4.1.weight"] == (384, 192, 2, 2)
    assert shapes["features.7.2.block.5.weight"] == (768, 3072) and shapes["classifier.2.weight"] == (1000, 768)
    decayed, spared = decay_groups(model, 0.05, vectors=False)
    assert len(decayed["params"]) == 4 + 3 * sum(BLOCKS) + 1  # stem and three halvings, blocks, classifier
    assert sum(p.ndim == 3 for p in spared["params"]) == sum(BLOCKS)  # what scales a layer is a vector


def test_a_block_computed_by_hand() -> None:
    torch.manual_seed(1)
    model = convnext_tiny(classes=3).eval()
    block = model.features[1][0]
    torch.nn.init.normal_(block.layer_scale)
    weights = dict(block.named_parameters())
    x = torch.randn(2, 96, 8, 8)
    y = F.conv2d(x, weights["block.0.weight"], weights["block.0.bias"], padding=3, groups=96).permute(0, 2, 3, 1)
    y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
    y = y * weights["block.2.weight"] + weights["block.2.bias"]
    y = F.gelu(y @ weights["block.3.weight"].T + weights["block.3.bias"])
    y = (y @ weights["block.5.weight"].T + weights["block.5.bias"]).permute(0, 3, 1, 2)
    torch.testing.assert_close(block(x), x + weights["layer_scale"] * y, rtol=1e-4, atol=1e-4)
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 3)


def test_blocks_are_left_out_in_training_as_often_as_said() -> None:
    torch.manual_seed(1)
    last = convnext_tiny(classes=3).features[7][2].train()
    torch.nn.init.ones_(last.layer_scale)
    with torch.no_grad():
        same = [bool((last(x) == x).all()) for x in torch.randn(300, 1, 768, 1, 1)]
    assert 0.04 < sum(same) / 300 < 0.18  # a tenth
