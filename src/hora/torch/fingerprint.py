"""Fingerprints of tensors: 64 bits that differ if the bits of two tensors do.

The memory is read as 64-bit words in rows of ``_WIDTH``; the rows are added up, and the sums multiplied by odd numbers
and added up, all modulo 2^64. It runs at the speed of memory, on any device. A single changed bit always shows, because
an odd multiple of a power of two is never 0; other changes go unnoticed by one chance in 2^64 or so, except if equal
words swap places in a column. It is against accidents, not against forgery.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import torch

__all__ = ["combined", "explain", "fingerprints"]

_WIDTH = 1024
_MASK = (1 << 64) - 1


def fingerprints(tensors: Sequence[torch.Tensor]) -> list[int]:
    """One for each tensor, as signed 64-bit integers.

    >>> one, other = torch.zeros(5), torch.zeros(5)
    >>> other[3] = -0.0
    >>> a, b, c = fingerprints([one, other, torch.zeros(5)])
    >>> a == c, a == b
    (True, False)
    """
    by_device: dict[torch.device, list[int]] = {}
    for i, tensor in enumerate(tensors):
        by_device.setdefault(tensor.device, []).append(i)
    result = [0] * len(tensors)
    for places in by_device.values():  # a device is waited for once
        for place, value in zip(places, torch.stack([_of(tensors[i]) for i in places]).tolist(), strict=True):
            result[place] = value
    return result


def combined(each: Sequence[int]) -> int:
    """One for all, which depends on their order.

    >>> combined([1, 2]) == combined([2, 1])
    False
    """
    total = sum(value * factor for value, factor in zip(each, _odd_numbers(len(each)), strict=True)) & _MASK
    return total - (1 << 64) if total >> 63 else total


def explain(step: int, names: Sequence[str], each: Mapping[int, Sequence[int]]) -> str:
    """Who differs and where, from the fingerprints of every rank's parameters.

    >>> print(explain(100, ["a", "b"], {0: [1, 2], 1: [1, 2], 2: [1, 3]}))
    step 100: the parameters of rank 2 differ from those of ranks 0, 1, first in b (1 of 2 parameters).
    Replicas...
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, values in each.items():
        if values:  # else it has joined and says nothing
            groups.setdefault(tuple(values), []).append(rank)
    (_, right), *others = sorted(groups.items(), key=lambda group: (-len(group[1]), group[1]))
    differing = [i for i, name in enumerate(names) if len({values[i : i + 1] for values in groups}) > 1]
    first = f"first in {names[differing[0]]}" if differing else "in their number"
    where = f"{first} ({len(differing)} of {len(names)} parameters)"
    if 2 * len(right) > sum(map(len, groups.values())):
        wrong = sorted(rank for _, ranks in others for rank in ranks)
        who = f"the parameters of {_ranks(wrong)} differ from those of {_ranks(right)}"
    else:  # nobody has the majority
        who = "the parameters differ between " + " and ".join(_ranks(ranks) for ranks in groups.values())
    hint = (
        "Were they broadcast before training? hvd.broadcast_parameters(model.state_dict(), root_rank=0)."
        if step == 1
        else "Look for what is done on some ranks only: changed parameters or options, a loaded file; or bad memory."
    )
    return (
        f"step {step}: {who}, {where}.\nReplicas that differ are not one model, and averaging cannot mend that. {hint}"
    )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


@torch.no_grad()
def _of(tensor: torch.Tensor) -> torch.Tensor:
    words = _words(tensor.detach())
    factors = _factors(tensor.device)
    rows = len(words) // _WIDTH
    rest = words[rows * _WIDTH :]
    total = (rest * factors[: len(rest)]).sum() * factors[0]
    if rows:
        total += (words[: rows * _WIDTH].view(rows, _WIDTH).sum(0) * factors).sum()
    return total


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor as whole 64-bit words, the last one filled up with zeros; a view where possible."""
    values = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    if len(values) % 8 or values.storage_offset() % 8:
        padded = values.new_zeros(-(-len(values) // 8) * 8)
        padded[: len(values)] = values
        values = padded
    return values.view(torch.int64)


@cache
def _factors(device: torch.device) -> torch.Tensor:
    signed = [value - (1 << 64) if value >> 63 else value for value in _odd_numbers(_WIDTH)]
    return torch.tensor(signed, dtype=torch.int64, device=device)


@cache
def _odd_numbers(count: int) -> tuple[int, ...]:
    """Odd 64-bit numbers without pattern, always the same (splitmix64)."""
    numbers, state = [], 0
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        numbers.append((mixed ^ (mixed >> 31)) | 1)
    return tuple(numbers)
