"""Gradients that are reduced each by itself, and the presence check: what is sent, what comes back, what is said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hora.torch as hvd
from hora.engine import session
from hora.errors import UsageError
from hora.ops.gradients import GradientRule
from hora.torch import submit
from hora.torch.bucket import GradientEntry
from hora.torch.unbucketed import (
    DENSE,
    NOTHING,
    SPARSE,
    GradientPresence,
    PresenceCheck,
    refuse_mixed,
    send,
    stand_in,
)


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def terms(compression: Any = hvd.Compression.none, sparse_as_dense: bool = False) -> GradientRule:
    """Halved before the sum of one, and four times that after it."""
    return GradientRule(predivide=2.0, factor=2.0, compression=compression, sparse_as_dense=sparse_as_dense)


def entry_of(grad: torch.Tensor, name: str = "p") -> GradientEntry:
    parameter = torch.nn.Parameter(torch.zeros(grad.shape, dtype=grad.dtype))
    parameter.grad = grad
    entry = GradientEntry(parameter, name, None, 1)
    entry.name = name
    return entry


def received(entry: GradientEntry) -> torch.Tensor:
    assert entry.sent is not None
    return entry.sent()


def test_a_dense_one_is_reduced_in_place() -> None:
    entry = entry_of(torch.ones(3))
    send(entry, entry.parameter.grad, terms())
    assert entry.kind == DENSE
    assert received(entry) is entry.parameter.grad and entry.parameter.grad.tolist() == [2.0, 2.0, 2.0]


def test_layouts_and_types_that_are_not_simple() -> None:
    strided = torch.ones(4, 3).t()
    entry = entry_of(torch.ones(3, 4))
    send(entry, strided, terms())
    assert received(entry).tolist() == [[2.0] * 4] * 3
    entry = entry_of(torch.full((2,), 1 + 3j))
    send(entry, entry.parameter.grad, terms())
    assert received(entry).tolist() == [2 + 6j, 2 + 6j]
    entry = entry_of(torch.ones(2))
    computed = torch.ones(2, requires_grad=True) * 1
    send(entry, computed, terms())
    assert received(entry).tolist() == [2.0, 2.0]


def test_compressed() -> None:
    entry = entry_of(torch.full((2,), 0.1))
    send(entry, entry.parameter.grad, terms(hvd.Compression.bf16))
    result = received(entry)
    assert result.dtype is torch.float32 and result.tolist() == [0.2001953125] * 2


def test_sparse() -> None:
    grad = torch.sparse_coo_tensor([[1, 1]], [[2.0], [4.0]], (3, 1), check_invariants=True)
    entry = entry_of(grad)
    send(entry, grad, terms())
    assert entry.kind == SPARSE and received(entry).to_dense().tolist() == [[0.0], [6.0], [0.0]]
    entry = entry_of(grad)
    send(entry, grad, terms(sparse_as_dense=True))
    assert entry.kind == SPARSE and entry.resparse == 1 and received(entry).tolist() == [[0.0], [12.0], [0.0]]


def test_stand_ins() -> None:
    parameter = torch.nn.Parameter(torch.ones(3, 2))
    assert stand_in(parameter, DENSE, False).tolist() == [[0.0, 0.0]] * 3
    assert not stand_in(parameter, DENSE, False).requires_grad
    assert stand_in(parameter, SPARSE, True).layout is torch.strided
    nothing = stand_in(parameter, SPARSE, False)
    assert nothing.is_sparse and not nothing.requires_grad and nothing._nnz() == 0 and nothing.shape == (3, 2)


def roll(*given: GradientEntry) -> PresenceCheck:
    return PresenceCheck(given, session.engine(), "roll", hvd.global_process_set)


def test_nothing_unusual_is_not_talked_about() -> None:
    settled, unused = entry_of(torch.ones(2), "a"), entry_of(torch.ones(2), "b")
    settled.settled, settled.kind = True, DENSE
    call = roll(settled, unused)
    call.start([settled], asks=0)
    assert call.hear() is None and call.asks == 0
    call.start([settled], asks=3)
    assert call.hear() is None and call.asks == 3


def test_what_is_unusual() -> None:
    """A settled one that is missing, and others that came for the first time, in another order."""
    missing, dense, sparse = (entry_of(torch.ones(2), name) for name in "abc")
    missing.settled = True
    call = roll(missing, dense, sparse)
    dense.kind, sparse.kind = DENSE, SPARSE
    call.start([sparse, dense], asks=0)
    heard = call.hear()
    assert heard is not None
    taking_part, answers = heard
    assert taking_part == 1
    assert [answer.kind for answer in answers] == [NOTHING, DENSE, SPARSE]
    assert [answer.order for answer in answers] == [0, 2, 1]
    assert all(answer.same_layout for answer in answers)


def test_large_gradients_in_shared_memory_are_noticed() -> None:
    if not hasattr(session.engine().backend, "shares"):
        pytest.skip("nothing is shared on this transport")
    large, small, private = hvd.shared_empty(1 << 16).zero_(), hvd.shared_empty(16).zero_(), torch.zeros(1 << 16)
    given = [entry_of(grad, str(i)) for i, grad in enumerate((large, small, private))]
    call = roll(*given)
    for entry in given:
        entry.kind = DENSE
    call.start(given, asks=0)
    heard = call.hear()
    assert heard is not None and [answer.shared for answer in heard[1]] == [True, False, False]


def test_mixed_kinds_are_refused() -> None:
    refuse_mixed(entry_of(torch.ones(1)), GradientPresence(2, 0, 1, False, True))
    with pytest.raises(
        UsageError, match=r"the gradient of p is sparse on 1 ranks and dense on 2.*sparse_as_dense=True"
    ):
        refuse_mixed(entry_of(torch.ones(1)), GradientPresence(2, 1, 1, False, True))


@pytest.mark.parametrize("count", [3, 5000])
def test_what_is_begun_again_under_its_name_is_known(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first call had to find out, the others do not; each is carried out once."""
    tensor, kept, keep = torch.empty(count), list[str](), submit.keep

    def note(tensor: torch.Tensor, name: str, *more: Any) -> None:
        kept.append(name)
        keep(tensor, name, *more)

    monkeypatch.setattr(submit, "keep", note)
    for step in range(4):
        version = tensor.fill_(step + 1)._version
        begun = hvd.allreduce_async_(tensor, name="begun again", op=hvd.Sum, postscale_factor=2.0)
        assert hvd.synchronize(begun) is tensor
        assert torch.equal(tensor, torch.full((count,), 2.0 * (step + 1))) and tensor._version > version
        hvd.allreduce_(tensor, name="carried out again", op=hvd.Sum, postscale_factor=2.0)
        assert torch.equal(tensor, torch.full((count,), 4.0 * (step + 1)))
    assert kept == ["begun again", "carried out again"]
