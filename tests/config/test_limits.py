"""Errors that only a limit explains are said as one; others pass as they are."""

from __future__ import annotations

import errno

import pytest

from hora.config.limits import limits_named
from hora.errors import EnvironmentUnfit


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.EMFILE, "Too many open files"),
            r"it fails: no more files .* this process \(Too many open files\)",
        ),
        (BlockingIOError(errno.EAGAIN, "Try again"), r"it fails: no more processes or threads .* \(Try again\)"),
        (RuntimeError("can't start new thread"), "it fails: no more processes or threads"),
        (MemoryError(), r"it fails: there is no more memory\. Raise"),
    ],
)
def test_limits(error: Exception, said: str) -> None:
    with pytest.raises(EnvironmentUnfit, match=said), limits_named("it fails"):
        raise error


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "No such file"), RuntimeError("else"), EnvironmentUnfit("x")])
def test_others_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, limits_named("it fails"):
        raise error
    assert raised.value is error
