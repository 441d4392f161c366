"""ResNet-50's parameters, against facts about the published network."""

from __future__ import annotations

from math import prod

from hora.bench.resnet50 import floats, shapes


def test_numbers_of_the_published_network() -> None:
    found = shapes()
    assert len(found) == 161 and floats() == 25_557_032
    convolutions = [shape for shape in found.values() if len(shape) == 4]
    assert len(convolutions) == 53  # 49 in the trunk, 4 in shortcuts
    assert sum(prod(shape) for shape in convolutions) == 23_454_912
    assert found["conv1.weight"] == (64, 3, 7, 7) and found["fc.weight"] == (1000, 2048)


def test_ten_classes_change_only_the_classifier() -> None:
    few, many = shapes(10), shapes(1000)
    assert {name for name in few if few[name] != many[name]} == {"fc.weight", "fc.bias"}
