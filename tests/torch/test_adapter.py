"""Tensors to memory and back."""

from __future__ import annotations

import pytest
import torch

from hora.errors import UsageError
from hora.torch.adapter import DTYPES, as_bits, buffer, dtype_of, from_memory, is_expanded, laid_out
from hora.types import DType


def test_every_type_of_the_engine_has_one_of_torch() -> None:
    assert set(DTYPES.values()) == set(DType)
    for dtype, ours in DTYPES.items():
        assert dtype.itemsize == ours.itemsize
        assert str(dtype) == f"torch.{ours.name.lower()}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_and_back(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[1, 0], [1, 1], [0, 1]]).to(dtype)
    described = buffer(tensor, dtype_of(tensor))
    assert (described.address, described.shape, described.owner) == (tensor.data_ptr(), (3, 2), tensor)
    memory = bytearray(tensor.view(torch.uint8).numpy().tobytes())
    assert len(memory) == described.nbytes
    assert torch.equal(from_memory(memory, dtype, (3, 2), torch.device("cpu")), tensor)


def test_memory_is_not_copied() -> None:
    memory = bytearray(4)
    tensor = from_memory(memory, torch.uint8, (4,), torch.device("cpu"))
    memory[2] = 7
    assert tensor.tolist() == [0, 0, 7, 0]


def test_empty_memory() -> None:
    assert from_memory(bytearray(), torch.float32, (0, 3), torch.device("cpu")).shape == (0, 3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (torch.zeros(2, dtype=torch.complex128), "complex128.*view_as_real"),
        (torch.zeros(2).to(torch.float8_e4m3fn), "float8_e4m3fn.*bfloat16"),
        (torch.zeros(2, dtype=torch.uint16), "uint16.*int64"),
        (torch.eye(2).to_sparse(), "sparse_coo.*to_dense"),
        ([1.0], "a list was given"),
        (None, "NoneType"),
        (3.5, "float was given.*torch.as_tensor"),
    ],
)
def test_refused(given: torch.Tensor, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        dtype_of(given)


def test_meta_tensors_have_nothing_to_send() -> None:
    with pytest.raises(UsageError, match="meta tensor"):
        laid_out(torch.zeros(2, device="meta"), stays=False)


def test_on_host_copies_only_if_it_must() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    assert laid_out(tensor, stays=False) is tensor
    assert laid_out(tensor[:1], stays=False).data_ptr() == tensor.data_ptr()
    turned = laid_out(tensor.t(), stays=False)
    assert turned.is_contiguous() and torch.equal(turned, tensor.t())
    negated = torch.tensor([1 + 2j]).conj().imag  # contiguous, but torch keeps the sign elsewhere
    assert laid_out(negated, stays=False).tolist() == [-2.0] and not laid_out(negated, stays=False).is_neg()


def test_on_host_leaves_autograd_behind() -> None:
    turned = laid_out(torch.ones(2, 3, requires_grad=True).t(), stays=False)
    assert not turned.requires_grad


@pytest.mark.parametrize(
    ("tensor", "expanded"),
    [
        (torch.zeros(1).expand(3), True),
        (torch.zeros(2, 1).expand(2, 4), True),
        (torch.zeros(1).expand(1), False),
        (torch.zeros(0).expand(3, 0), False),
        (torch.zeros(2, 3).t(), False),
        (torch.tensor(1.0), False),
    ],
)
def test_is_expanded(tensor: torch.Tensor, expanded: bool) -> None:
    assert is_expanded(tensor) == expanded


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64])
def test_as_bits_shares_memory(dtype: torch.dtype) -> None:
    for shape in ((3,), ()):
        tensor = torch.zeros(shape, dtype=dtype)
        bits = as_bits(tensor)
        dtype_of(bits)
        assert bits.data_ptr() == tensor.data_ptr()
        assert bits.nbytes == tensor.nbytes
