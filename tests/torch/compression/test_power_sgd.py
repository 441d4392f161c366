"""PowerSGD's own: what it sends, when it starts, and where it is exact."""

from __future__ import annotations

import pytest
import torch

from hora.torch.compression import PowerSGD


def matrix(rows: int, columns: int, rank: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows + columns)
    if rank is None:
        return torch.randn(rows, columns, generator=generator)
    return torch.randn(rows, rank, generator=generator) @ torch.randn(rank, columns, generator=generator)


def left(compressor: PowerSGD) -> torch.Tensor:
    error: torch.Tensor = compressor.state_dict()["memory"]["w"]["tensors"]["error"]
    return error


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_a_gradient_of_low_rank_is_exact(rank: int) -> None:
    given = matrix(40, 30, rank)
    result = PowerSGD(rank=rank, smallest=1).start("w", given.clone())()
    torch.testing.assert_close(result, given, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(20, 6), (6, 20), (7, 7), (6, 4, 5)])
def test_full_rank_is_exact(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PowerSGD, "pays", lambda *_: True)  # which it does not: it would be sent as it is
    compressor, given = PowerSGD(rank=100, smallest=1), torch.randn(shape)
    torch.testing.assert_close(compressor.start("w", given.clone())(), given, rtol=1e-4, atol=1e-4)
    assert left(compressor).norm() < 1e-4


def test_it_finds_the_largest_directions_step_by_step() -> None:
    """The warm start: the error of one approximation falls to that of the best of its rank."""
    u, _ = torch.linalg.qr(matrix(60, 50).double())
    v, _ = torch.linalg.qr(matrix(50, 50).double())
    given = u @ torch.diag(0.8 ** torch.arange(50.0, dtype=torch.float64)) @ v.t()
    best = (0.8 ** torch.arange(2.0, 50.0, dtype=torch.float64)).norm().item()
    compressor, distances = PowerSGD(rank=2, smallest=1), []
    for _ in range(30):
        distances.append((compressor.start("w", given.clone())() - given).norm().item())
        state = compressor.state_dict()  # each step anew, without the error
        state["memory"]["w"]["tensors"].pop("error")
        compressor.load_state_dict(state)
    assert distances[0] > 1.2 * best
    assert distances[-1] == pytest.approx(best, rel=1e-3)


def test_the_first_steps_are_uncompressed() -> None:
    compressor, given = PowerSGD(rank=1, start_step=2, smallest=1), matrix(30, 30)
    for _ in range(2):
        assert torch.equal(compressor.start("w", given.clone())(), given)
    assert compressor.wire_bytes == compressor.raw_bytes
    assert not torch.equal(compressor.start("w", given.clone())(), given)
    assert compressor.wire_bytes == 2 * 3600 + 240


def test_only_matrices_that_shrink_are_compressed() -> None:
    compressor = PowerSGD(rank=4, smallest=1)
    paying = {(100, 100): True, (8, 8): False, (8, 9): True, (1000, 4): False, (5000,): False, (64, 3, 7, 7): True}
    assert {shape: compressor.pays(torch.zeros(shape), 0) for shape in paying} == paying
    assert not compressor.pays(torch.zeros(12, 12, dtype=torch.float16), 0), "the factors are float32"


def test_rounds_of_many_gradients_run_together() -> None:
    compressor = PowerSGD(rank=2, smallest=1)
    given = {str(i): matrix(20 + i, 30, 2) for i in range(20)}
    finishes = [(name, compressor.start(name, each.clone())) for name, each in given.items()]
    for name, finish in reversed(finishes):
        torch.testing.assert_close(finish(), given[name], rtol=1e-4, atol=1e-4)
    assert not compressor._under_way or all(r.first_has_ended() for r in compressor._under_way)
