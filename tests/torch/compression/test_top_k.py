"""TopK's own: which elements are sent."""

from __future__ import annotations

import torch

from hora.torch.compression import TopK


def test_the_largest_are_sent_exactly_and_the_rest_is_owed() -> None:
    compressor = TopK(ratio=0.25, smallest=1)
    given = torch.tensor([0.1, -5.0, 0.2, 3.0, -0.3, 0.0, 1.0, -1.5])
    assert compressor.start("w", given.clone())().tolist() == [0, -5, 0, 3, 0, 0, 0, 0]
    assert compressor.start("w", torch.zeros(8))().tolist() == [0, 0, 0, 0, 0, 0, 1, -1.5]


def test_at_least_one_is_sent() -> None:
    compressor = TopK(ratio=1e-6, smallest=1)
    assert compressor.start("w", torch.tensor([1.0, 2.0, 4.0]))().tolist() == [0, 0, 4]


def test_it_does_not_pay_to_send_more_than_half() -> None:
    assert TopK(ratio=0.49, smallest=1).pays(torch.zeros(1000), 0)
    assert not TopK(ratio=0.5, smallest=1).pays(torch.zeros(1000), 0)
    assert not TopK(ratio=0.3, smallest=1).pays(torch.zeros(1000, dtype=torch.bfloat16), 0)
