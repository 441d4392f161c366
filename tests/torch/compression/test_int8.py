"""Int8's own: chunks and their scales."""

from __future__ import annotations

import torch

from hora.torch.compression import Int8


def test_no_element_is_off_by_more_than_half_a_step_of_its_chunk() -> None:
    given = torch.randn(1000, generator=torch.Generator().manual_seed(1)) * torch.logspace(-6, 3, 1000)
    result = Int8(chunk=64, smallest=1).start("w", given.clone())()
    for chunk, sent in zip(given.split(64), result.split(64), strict=True):
        assert (chunk - sent).abs().max() <= chunk.abs().max() / 127 * 0.501


def test_whole_numbers_are_exact() -> None:
    given = torch.tensor([-127.0, -1.0, 0.0, 1.0, 63.0, 127.0, 0.0, 0.0, 0.0])
    assert torch.equal(Int8(chunk=6, smallest=1).start("w", given.clone())(), given)


def test_it_pays_for_everything_wider_than_its_byte_and_scale() -> None:
    assert Int8(smallest=1).pays(torch.zeros(5000, dtype=torch.bfloat16), 0)
    assert not Int8(chunk=2, smallest=1).pays(torch.zeros(5000, dtype=torch.bfloat16), 0)
