"""Docstrings say what the table says."""

from __future__ import annotations

import pytest

from hora.ops.document import documented, render
from hora.ops.table import FUNCTIONS


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_form_is_documented(function: str) -> None:
    collective, form = FUNCTIONS[function]
    text = render(collective, form)
    assert text.startswith(collective.summary)
    assert all(len(line) <= 120 for line in text.splitlines())
    for argument in collective.parameters(form):
        assert f"    {argument.name}: " in text
    assert ("Gradient:" in text) == (bool(collective.gradient) and not form.asynchronous)


def test_own_words_come_last() -> None:
    @documented
    def barrier() -> None:
        """Mine."""

    assert (barrier.__doc__ or "").endswith("\n\nMine.")


def test_unknown_function_is_refused() -> None:
    def scatter() -> None: ...

    with pytest.raises(KeyError):
        documented(scatter)
