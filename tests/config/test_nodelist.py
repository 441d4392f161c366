"""Slurm's short forms, against a plain way of writing them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.config.nodelist import expand, expand_counts, split
from hora.errors import UsageError

PREFIX = st.from_regex(r"[a-z][a-z0-9-]{0,5}", fullmatch=True)
NUMBERS = st.lists(st.integers(min_value=0, max_value=999), min_size=1, max_size=8, unique=True).map(sorted)


def shorten(numbers: list[int], width: int) -> str:
    """Runs as first-last, the rest one by one."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{a:0{width}}" if a == b else f"{a:0{width}}-{b:0{width}}" for a, b in runs)


@given(st.lists(st.tuples(PREFIX, NUMBERS, st.integers(0, 4), PREFIX), min_size=1, max_size=4))
def test_what_was_shortened_comes_back(parts: list[tuple[str, list[int], int, str]]) -> None:
    short = ",".join(f"{prefix}[{shorten(numbers, width)}]{end}" for prefix, numbers, width, end in parts)
    full = [f"{prefix}{number:0{width}}{end}" for prefix, numbers, width, end in parts for number in numbers]
    assert list(expand(short)) == full
    assert list(expand(",".join(full))) == full


@given(NUMBERS, NUMBERS)
def test_two_brackets_count_like_two_loops(rows: list[int], columns: list[int]) -> None:
    text = f"r[{shorten(rows, 0)}]c[{shorten(columns, 2)}]"
    assert list(expand(text)) == [f"r{row}c{column:02}" for row in rows for column in columns]


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 5)), min_size=1, max_size=5))
def test_counts(pairs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in pairs)
    assert list(expand_counts(text)) == [count for count, times in pairs for _ in range(times)]


@given(st.text("h[]-,0123 x", max_size=20))
def test_anything_else_is_refused_with_its_text(text: str) -> None:
    try:
        names = expand(text)
    except UsageError as error:
        assert repr(text) in str(error)
    else:
        assert names and all(name and not set("[], ") & set(name) for name in names)


@pytest.mark.parametrize(
    "text", ["", "h[", "h]", "h[]", "h[3-1]", "h[a-b]", "h[1-2", "h,,g", "h[1-99999999]", "h[[1]]"]
)
def test_refusals(text: str) -> None:
    with pytest.raises(UsageError, match="not a list of hosts"):
        expand(text)


@pytest.mark.parametrize("text", ["", "x", "2(x)", "2(3)", "-1", "2(x999999999)"])
def test_refused_counts(text: str) -> None:
    with pytest.raises(UsageError, match="not a list of counts"):
        expand_counts(text)


def test_split_keeps_brackets_together() -> None:
    assert split("a[1,2]:3, b") == ["a[1,2]:3", "b"]
